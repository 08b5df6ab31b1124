"""The run's results as markdown."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]


def table(headings: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (headings, ["---"] * len(headings), *rows)]
    return "\n".join(lines)


def correctness(rows: list[Row]) -> str:
    cells = [
        [
            r["variant"],
            r["data"],
            f"{r['relative_error']:.1e}",
            f"{r['largest_error']:.1e}",
            "yes" if r["untouched"] else "NO",
            "yes" if r["repeatable"] else "NO",
            "yes" if r["passed"] else "NO",
        ]
        for r in rows
    ]
    return table(
        ["kernel", "data", "relative error", "largest / largest", "rest untouched", "repeatable", "passed"], cells
    )


def timing(rows: list[Row]) -> str:
    bar = {r["shape"]: r["us"] for r in rows if r.get("candidate") == "fp8" and "us" in r}
    cells = []
    for r in rows:
        if "us" in r:
            ratio = f"{bar[r['shape']] / r['us']:.2f}" if r["shape"] in bar else ""
            spread = f"{r['low']:.2f} to {r['high']:.2f}"
            work = [f"{r['mbytes']:.1f}", f"{r['gflop']:.1f}", f"{100 * r['roofline']:.0f} %"]
            cells.append([r["shape"], r["candidate"], f"{r['us']:.2f}", spread, ratio, *work])
        elif "sustained_us" in r:
            cells.append([r["shape"], f"{r['candidate']}, 1 s loop", f"{r['sustained_us']:.2f}", *[""] * 5])
        elif "error" in r:
            cells.append([r["shape"], r["candidate"], "failed", r["error"].splitlines()[0], *[""] * 4])
    return table(["rows x keys", "kernel", "us", "spread", "FP8 / this", "MB", "GFLOP", "of the roofline"], cells)


def engine(cpu: Row, cuda: Row, tolerance: float) -> tuple[bool, str]:
    """Whether both gave the same tokens, or their first difference is a tie; and a sentence on it."""
    if cpu["prompt"] != cuda["prompt"]:
        return False, "the two prompts differ"
    ours, theirs = cpu["tokens"], cuda["tokens"]
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if a["id"] != b["id"]:
            ranked = {int(token): p for token, p in a["top"]}
            gap = abs(ranked.get(b["id"], -99.0) - a["logprob"])
            tied = gap <= tolerance
            how = "a tie" if tied else "not a tie"
            return tied, f"first difference at token {i}: log-probabilities {gap:.2e} apart on the CPU, {how}"
    gap = max(abs(a["logprob"] - b["logprob"]) for a, b in zip(ours, theirs, strict=True))
    return True, f"all {len(ours)} tokens equal; log-probabilities at most {gap:.1e} apart"
