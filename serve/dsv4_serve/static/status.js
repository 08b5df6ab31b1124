"use strict";
// Polls /status.json and shows it. What the engine does not report stays a dash: absent is not zero.

const POLL_MS = 1000;
const WINDOW_SECONDS = 60;
const history = [];
const byId = (id) => document.getElementById(id);
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const count = (value) => (value === null || value === undefined ? "–" : whole.format(value));
const tenths = (value) => (value === null ? "–" : value < 10 ? value.toFixed(1) : whole.format(value));
const percent = (value) => (value === null ? "–" : `${(100 * value).toFixed(value > 0.995 || value < 0.0005 ? 0 : 1)} %`);
const sum = (object) => Object.values(object).reduce((a, b) => a + b, 0);

// The metrics call the engine's own memory gpu, whatever it runs on.
const tierName = (tier) => (tier === "gpu" ? "device" : tier);

function bytes(value) {
  if (value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return `${value.toFixed(unit && value < 100 ? 1 : 0)} ${units[unit]}`;
}

// The increase of a counter between the newest sample and the oldest within `seconds`; null when either lacks it.
function increase(read, seconds, from = history) {
  const newest = from.at(-1);
  const oldest = from.find((entry) => newest.at - entry.at <= seconds);
  const [a, b] = [read(oldest.status), read(newest.status)];
  if (a === null || b === null || oldest === newest || b < a) return null;
  return { by: b - a, seconds: newest.at - oldest.at };
}

const rateOf = (from) => {
  const change = increase((s) => s.generated_tokens, 5, from);
  return change && change.by / change.seconds;
};
const ttftOf = (from) => {
  const total = increase((s) => s.time_to_first_token?.sum ?? null, WINDOW_SECONDS, from);
  const number = increase((s) => s.time_to_first_token?.count ?? null, WINDOW_SECONDS, from);
  return total && number && number.by > 0 ? (1000 * total.by) / number.by : null;
};
const hitOf = (from) => {
  const cached = increase((s) => (Object.keys(s.cached_tokens).length ? sum(s.cached_tokens) : null), WINDOW_SECONDS, from);
  const prompt = increase((s) => s.prompt_tokens, WINDOW_SECONDS, from);
  return cached && prompt && prompt.by > 0 ? cached.by / prompt.by : null;
};

function row(cells) {
  const tr = document.createElement("tr");
  for (const cell of cells) {
    const td = document.createElement("td");
    if (cell instanceof Node) td.append(cell); else td.textContent = cell.text ?? cell;
    if (cell.number) td.className = "number";
    tr.append(td);
  }
  return tr;
}

const right = (text) => ({ text, number: true });

function bar(share) {
  const outer = document.createElement("div");
  const inner = document.createElement("span");
  outer.className = "bar";
  outer.title = share === null ? "unknown" : percent(share);
  inner.style.width = `${100 * (share ?? 0)}%`;
  outer.append(inner);
  return outer;
}

function fill(id, rows, absent) {
  byId(id).querySelector("tbody").replaceChildren(...rows);
  if (absent) { byId(absent).hidden = rows.length > 0; byId(id).hidden = rows.length === 0; }
}

function showHead(status) {
  document.title = `${status.model} · ${status.state}`;
  byId("model").textContent = status.model;
  const weights = status.trained ? "" : " · untrained weights";
  byId("subtitle").textContent =
    `${status.engine} engine · index keys ${status.indexer_dtype} · KV ${status.kv_layout} · context ${count(status.context_length)}${weights}`;
  byId("state").dataset.state = status.state;
  const phase = status.running_phase;
  byId("state-text").textContent = phase ? `${phase.name.replaceAll("_", " ")} ${phase.seconds.toFixed(0)} s` : status.state;
  const notices = [...status.warnings];
  if (!status.ready && status.reason) notices.unshift(status.reason);
  byId("notice").textContent = notices.join("\n");
  byId("notice").hidden = notices.length === 0;
}

function showTables(status) {
  fill("kv", status.kv.map((r) => {
    const share = r.capacity_tokens && r.used_tokens !== undefined ? r.used_tokens / r.capacity_tokens : null;
    const planned = r.expected_tokens !== undefined ? `${count(r.expected_tokens)} tokens` : bytes(r.expected_bytes);
    return row([r.region.replaceAll("_", " "), tierName(r.tier), bar(share), right(count(r.used_tokens)), right(count(r.evictable_tokens)),
      right(count(r.capacity_tokens)), right(bytes(r.capacity_bytes)), right(planned), right(r.bytes_per_token === undefined ? "–" : String(+r.bytes_per_token.toFixed(2)))]);
  }), "kv-absent");
  const launches = Object.entries(status.indexer_launches).map(([name, value]) => row([name, right(count(value))]));
  const fallbacks = Object.entries(status.indexer_fallbacks).map(([name, value]) => row([`fallback: ${name}`, right(count(value))]));
  fill("launches", [...launches, ...fallbacks], "launches-absent");
  fill("phases", status.phases.map((p) => row([(p.source === "engine" ? "· " : "") + p.name.replaceAll("_", " "), right(`${p.seconds.toFixed(2)} s`)])));
  const cached = Object.entries(status.cached_tokens).map(([tier, value]) => row([`cached tokens, ${tierName(tier)}`, right(count(value))]));
  fill("totals", [row(["prompt tokens", right(count(status.prompt_tokens))]), ...cached,
    row(["generated tokens", right(count(status.generated_tokens))]), row(["up", right(`${count(status.uptime_seconds)} s`)])]);
}

function showFigures(status) {
  const entry = history.at(-1);
  Object.assign(entry, { rate: rateOf(history), ttft: ttftOf(history), hit: hitOf(history), running: status.running_requests });
  byId("rate").textContent = tenths(entry.rate);
  byId("ttft").textContent = tenths(entry.ttft);
  byId("hit").textContent = percent(entry.hit);
  byId("running").textContent = count(status.running_requests);
  byId("queued").textContent = count(status.queued_requests);
  const points = (name) => history.map((each) => ({ at: each.at, value: each[name] ?? null }));
  drawChart(byId("chart-rate"), points("rate"), (top) => `${count(top)} tokens/s`);
  drawChart(byId("chart-ttft"), points("ttft"), (top) => `${count(top)} ms`);
  drawChart(byId("chart-hit"), points("hit"), percent, 1);
  drawChart(byId("chart-running"), points("running"), count);
}

function show(status) {
  history.push({ at: performance.now() / 1000, status });
  while (history.at(-1).at - history[0].at > CHART.spans.at(-1)) history.shift();
  byId("panels").hidden = false;
  byId("key-form").hidden = true;
  showHead(status);
  showTables(status);
  showFigures(status);
}

function unreachable(reason) {
  byId("state").dataset.state = "unreachable";
  byId("state-text").textContent = "unreachable";
  byId("notice").textContent = `The server does not answer: ${reason}`;
  byId("notice").hidden = false;
}

async function poll() {
  const key = sessionStorage.getItem("key");
  try {
    const answer = await fetch("/status.json", { headers: key ? { Authorization: `Bearer ${key}` } : {} });
    if (answer.status === 401) byId("key-form").hidden = false;
    else if (answer.ok) show(await answer.json());
    else unreachable(`status ${answer.status}`);
  } catch (error) {
    unreachable(error.message);
  }
  setTimeout(poll, POLL_MS);
}

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("key", byId("key").value);
});
poll();
