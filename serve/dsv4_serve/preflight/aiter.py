"""Check of AITER: every function that the profile's flags reach, imported and held against the calls that are made."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict

from dsv4_serve.engines.sglang.index_path import IndexPath
from dsv4_serve.preflight.result import Result, fail, ok
from dsv4_serve.profiles.schema import Profile

IMPORT_SECONDS = 300.0
MARK = "dsv4-symbols:"
ACCEPTED = "an AITER with these names; or switch off the flag that needs them"


def aiter_checks(profile: Profile) -> Iterator[Result]:
    """Nothing for a profile of a CPU or of vLLM."""
    # vLLM's plugin asks its own functions of AITER, and tells who serves each.
    if profile.hardware.arch == "gfx950" and profile.engine.name == "sglang":
        yield aiter_symbols(index_path(profile), asked=profile.indexer.backend == "aiter")


def index_path(profile: Profile) -> IndexPath:
    """The parts of SGLang's FP4 index path that the profile opens."""
    v41 = profile.kv_layout == "v41"
    c4 = not v41 and profile.indexer.dtype == "fp4"
    rowgroup, page8 = bool(profile.flags.get("DSV4_ROWGROUP")), bool(profile.flags.get("DSV4_PAGE8"))
    return IndexPath(
        c4=c4,
        low_ratio=v41,
        c4_rowgroup=c4 and rowgroup,
        low_ratio_rowgroup=v41 and rowgroup,
        page8=v41 and page8,
    )


def aiter_symbols(path: IndexPath, asked: bool) -> Result:
    """In a process of its own; no version is compared. `asked`: AITER's kernels were asked for, ours will not do."""
    if not path.used:
        return ok("AITER", "nothing of its FP4 index path is asked for")
    command = [sys.executable, "-m", "dsv4_serve.preflight.aiter", json.dumps(asdict(path))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=IMPORT_SECONDS)
    except subprocess.TimeoutExpired:
        return fail("AITER", f"its import did not end within {IMPORT_SECONDS:g} s", ACCEPTED)
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if not lines:
        last = (done.stderr.strip() or "no output").splitlines()[-1]
        return fail("AITER", f"its import ended with status {done.returncode}: {last}", ACCEPTED)
    count, missing = json.loads(lines[-1].removeprefix(MARK))
    if fatal := [told for told, replaced in missing if asked or not replaced]:
        return fail("AITER", "; ".join(fatal), ACCEPTED)
    if missing:
        told = "; ".join(f"{told}: our {replaced} serves" for told, replaced in missing)
        return Result("AITER", "warn", told, ACCEPTED)
    return ok("AITER", f"{count} functions as asked")


def main(arguments: list[str]) -> int:
    """`python -m dsv4_serve.preflight.aiter PATH`: print [number, [problem, our operation instead]...], marked."""
    from dsv4_serve.engines.sglang.symbols import check

    found = check(IndexPath(**json.loads(arguments[0])))
    problems = [
        (f"{each.symbol.path}: {each.problem} (reached by {each.symbol.flags})", each.symbol.operation)
        for each in found
        if each.problem
    ]
    print(MARK + json.dumps([len(found), problems]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
