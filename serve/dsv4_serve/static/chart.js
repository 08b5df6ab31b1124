"use strict";
// A line over an area in SVG. Points are {at: seconds, value: number or null}; null breaks the line.

const CHART = { width: 240, height: 56, spans: [60, 120, 300] };

function svgElement(name, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

// A round number at or above `value`, so that the scale does not jump with every point.
function niceCeiling(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((ceiling) => ceiling >= value);
}

// The shortest span of time that holds all points, so that a young page is not mostly empty.
function spanOf(points) {
  const age = points.length ? points.at(-1).at - points[0].at : 0;
  return CHART.spans.find((span) => span >= age) ?? CHART.spans.at(-1);
}

// Runs of consecutive known points, as pixel coordinates.
function segments(points, span, top) {
  const now = points.length ? points.at(-1).at : 0;
  const runs = [[]];
  for (const point of points) {
    if (point.value === null) { runs.push([]); continue; }
    const x = CHART.width * (1 - (now - point.at) / span);
    runs.at(-1).push([x, CHART.height * (1 - point.value / top)]);
  }
  return runs.filter((run) => run.length > 1);
}

function path(run) {
  return "M" + run.map(([x, y]) => `${x.toFixed(2)} ${y.toFixed(2)}`).join("L");
}

// Draws into `host`; `format` writes the scale's top; `ceiling` fixes it.
function drawChart(host, points, format, ceiling) {
  const span = spanOf(points);
  const known = points.map((point) => point.value).filter((value) => value !== null);
  const top = ceiling ?? niceCeiling(Math.max(0, ...known));
  const svg = svgElement("svg", { viewBox: `0 0 ${CHART.width} ${CHART.height}`, preserveAspectRatio: "none" });
  for (const y of [0, CHART.height]) svg.append(svgElement("line", { class: "grid", x1: 0, x2: CHART.width, y1: y, y2: y }));
  for (const run of segments(points, span, top)) {
    const bottom = `L${run.at(-1)[0].toFixed(2)} ${CHART.height}L${run[0][0].toFixed(2)} ${CHART.height}Z`;
    svg.append(svgElement("path", { class: "area", d: path(run) + bottom }));
    svg.append(svgElement("path", { class: "line", d: path(run) }));
  }
  const scale = document.createElement("div");
  scale.className = "scale";
  for (const text of [`${span / 60} min ago`, `scale to ${format(top)}`, "now"]) {
    const label = document.createElement("span");
    label.textContent = text;
    scale.append(label);
  }
  host.replaceChildren(svg, scale);
}
