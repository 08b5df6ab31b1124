"""Compares the emulator with AMD's pseudo-code as tinygrad carries it: one lane-wise or scalar instruction at a time.

    .venv/bin/pip install tinygrad==0.14.0     (not part of the locks; only its table of pseudo-code is read)
    .venv/bin/python tools/tinygrad_differential.py [--only v_min_f32 ...] [--markdown]

Each instruction runs in the emulator on edge and random values, and its pseudo-code in tests/emulator/pseudo_code.py.
Prints what differs and who is right; exits 1 when a difference has no verdict.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import re
import sys
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(_ROOT / "tests"), str(_ROOT / "kernels")]

import numpy as np  # noqa: E402
import numpy.typing as npt  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.progress import track  # noqa: E402

from emulator.pseudo_code import Lane  # noqa: E402
from emulator.pseudo_code_subjects import Subject, subject_of  # noqa: E402
from emulator.pseudo_code_values import NotComparable, Value  # noqa: E402
from emulator.snippets import execute  # noqa: E402
from emulator.values import EDGE_FLOATS, EDGE_HALVES, EDGE_INTEGERS  # noqa: E402
from gfx950_emulator.errors import EmulatorError  # noqa: E402

_FRACT = "emulator: below 1; LLVM replaces min(x - floor(x), largest value below 1) by this instruction"
_FREXP = "emulator: LLVM uses it for frexp of subnormals and zeros as it is; the pseudo-code reads the exponent field"
_PACK = "emulator: saturates, as LLVM relies on; the pseudo-code calls a conversion that it does not define"
_RNDNE = "emulator: IEEE 754's round to even, sign of zero kept; the pseudo-code adds 0.5, rounds, and loses the sign"
_ZEROS = "emulator: the pseudo-code tests for +0 and -0 with ==, which read literally picks the wrong zero"
_ROUNDED = "both: the pseudo-code rounds twice, the emulator once; silicon approximates to 1 ulp"
VERDICTS = {
    **dict.fromkeys(("v_fract_f16", "v_fract_f32", "v_fract_f64"), _FRACT),
    **dict.fromkeys(("v_frexp_exp_i16_f16", "v_frexp_exp_i32_f32", "v_frexp_exp_i32_f64"), _FREXP),
    **dict.fromkeys(("v_cvt_pk_i16_i32", "v_cvt_pk_u16_u32"), _PACK),
    **dict.fromkeys(("v_rndne_f16", "v_rndne_f32", "v_rndne_f64"), _RNDNE),
    **{f"v_{name}_{kind}": _ZEROS for name in ("min", "max", "min3", "max3", "med3") for kind in ("f16", "f32", "f64")},
    **dict.fromkeys(("v_pk_min_f16", "v_pk_max_f16"), _ZEROS),
    **dict.fromkeys(("v_rsq_f16", "v_rsq_f32", "v_rsq_f64"), _ROUNDED),
}
"""Who is right where they differ."""
EDGE_DOUBLES = (
    0,
    1 << 63,
    1,
    0x3FF0000000000000,
    0x7FEFFFFFFFFFFFFF,
    0x7FF0000000000000,
    0x7FF8000000000000,
    0xBFE0000000000000,
)
LANES = 64


@dataclass
class Comparison:
    """Outcome for one instruction."""

    name: str
    cases: int = 0
    different: int = 0
    example: str = ""
    skipped: str = ""


def pseudo_code() -> dict[str, str]:
    """All of tinygrad's CDNA pseudo-code by lower-case mnemonic, encoding suffix removed."""
    try:
        module = importlib.import_module("tinygrad.runtime.autogen.amd.cdna.str_pcode")
    except ImportError:
        sys.exit("tinygrad is not installed: .venv/bin/pip install tinygrad==0.14.0")
    found: dict[str, str] = {}
    for table in vars(module).values():
        for key, text in table.items() if isinstance(table, dict) else ():
            if hasattr(key, "name") and isinstance(text, str):
                found.setdefault(re.sub(r"_e(32|64)$", "", key.name.lower()), text)
    return found


def operands(subject: Subject, rng: np.random.Generator, count: int) -> list[npt.NDArray[np.uint64]]:
    """Edge and random patterns of each source, [count] each."""
    edges = [
        *EDGE_FLOATS,
        *EDGE_INTEGERS,
        *EDGE_HALVES,
        *(a << 16 | b for a, b in itertools.pairwise(EDGE_HALVES)),
    ]
    columns = []
    for wide in subject.wide:
        pool = EDGE_DOUBLES if wide else edges
        drawn = rng.integers(0, 2**64 if wide else 2**32, count, dtype=np.uint64)
        chosen = rng.choice(np.array(pool, np.uint64), count)
        columns.append(np.where(rng.random(count) < 0.6, chosen, drawn))
    return columns


def reference(subject: Subject, library: dict[str, str], values: list[int], lane: int, old: int, flags: int) -> Lane:
    """Execute the pseudo-code for one lane."""
    sources = {f"S{i}": Value(v, 64 if subject.wide[i] else 32, "b") for i, v in enumerate(values)}
    state = Lane(
        {
            **sources,
            "D0": Value(old, 64, "b"),
            "VCC": Value(flags << lane, 64, "b"),
            "EXEC": Value(2**64 - 1, 64, "b"),
            "SCC": Value(flags, 1, "u"),
            "laneId": Value(lane, 32, "u"),
            "ROUND_MODE": Value(0, 32, "u"),
            "ROUND_NEAREST_EVEN": Value(0, 32, "u"),
        },
        library,
    )
    state.run(subject.code)
    return state


def compare_vector(subject: Subject, library: dict[str, str], rounds: int = 3) -> Comparison:
    """Run a vector instruction on 64 lanes a round."""
    result = Comparison(subject.name)
    rng = np.random.default_rng(1)
    for _ in range(rounds):
        columns = operands(subject, rng, LANES)
        old = rng.integers(0, 2**32, (LANES, 2), dtype=np.uint32)
        mask = int(rng.integers(0, 2**64, dtype=np.uint64))
        inputs = {f"v[{10 + 2 * i}:{11 + 2 * i}]": c.view(np.uint32).reshape(-1, 2) for i, c in enumerate(columns)}
        inputs |= {"v[20:21]": old, "s[40:41]": np.array([mask & 0xFFFFFFFF, mask >> 32], np.uint32)}
        body = f"s_mov_b64 vcc, s[40:41]\ns_mov_b64 s[30:31], 0\ns_nop 4\n{subject.text}\ns_nop 4\n"
        body += "s_mov_b64 exec, -1\ns_mov_b64 s[32:33], vcc"
        got = execute(body, inputs, ["v[20:21]", "s[30:33]"])
        words, masks = got["v[20:21]"].astype(np.uint64), got["s[30:33]"].astype(np.uint64)
        bits = [int(masks[0] | masks[1] << np.uint64(32)), int(masks[2] | masks[3] << np.uint64(32))]
        for lane in range(LANES):
            before = int(old[lane, 0]) | int(old[lane, 1]) << 32
            values = [int(c[lane]) for c in columns]
            state = reference(subject, library, values, lane, before, mask >> lane & 1)
            actual = bits[0] if subject.mask else int(words[lane, 0]) | int(words[lane, 1]) << 32
            _judge(subject, result, state, actual, {"VCC": bits[1]}, values, lane)
    return result


def compare_scalar(subject: Subject, library: dict[str, str], rounds: int = 24) -> Comparison:
    """Run a scalar instruction once a round."""
    result = Comparison(subject.name)
    rng = np.random.default_rng(2)
    columns = operands(subject, rng, rounds)
    for index in range(rounds):
        values, scc = [int(c[index]) for c in columns], index & 1
        inputs = {
            f"s[{20 + 2 * i}:{21 + 2 * i}]": np.array([v], np.uint64).view(np.uint32) for i, v in enumerate(values)
        }
        old = rng.integers(0, 2**32, 2, dtype=np.uint32)
        inputs |= {"s[50:51]": old, "s40": np.array([scc], np.uint32)}
        body = f"s_cmp_lg_u32 s40, 0\n{subject.text}\ns_cselect_b32 s52, 1, 0\ns_mov_b64 exec, -1"
        words = [int(v) for v in execute(body, inputs, ["s[50:52]"])["s[50:52]"]]
        state = reference(subject, library, values, 0, int(old[0]) | int(old[1]) << 32, scc)
        _judge(subject, result, state, words[0] | words[1] << 32, {"SCC": words[2]}, values, 0)
    return result


def _judge(
    subject: Subject, result: Comparison, state: Lane, actual: int, flags: dict[str, int], values: list[int], lane: int
) -> None:
    """Count one case: the bits that the pseudo-code wrote must agree."""
    result.cases += 1
    written = state.written.get("D0", 0)
    wanted = state.variables["D0"].bits
    elements = subject.elements
    if elements and written.bit_length() <= sum(form.bits for form in elements):
        same = all(
            form.same(*(word >> form.bits * i & ((1 << form.bits) - 1) for word in (actual, wanted)))
            for i, form in enumerate(elements)
        )
    else:
        same = (actual ^ wanted) & written == 0
    for name, value in flags.items():
        changed = state.written.get(name, 0) or (name == "SCC" and "SCC" in state.written)
        same &= (value ^ state.variables[name].bits) & changed == 0
    if not same:
        result.different += 1
        shown = ", ".join(f"{v:#x}" for v in values)
        result.example = (
            result.example or f"({shown}): {actual & (written or actual):#x}, pseudo-code {wanted & written:#x}"
        )


def compare(name: str, code: str, library: dict[str, str]) -> Comparison:
    """Compare one instruction, or say why that is not possible."""
    try:
        subject = subject_of(name, code)
        if subject is None:
            return Comparison(name, skipped="no simple form on gfx950")
        return (compare_scalar if subject.scalar else compare_vector)(subject, library)
    except NotComparable as reason:
        return Comparison(name, skipped=f"pseudo-code: {reason}")
    except EmulatorError as error:
        return Comparison(name, skipped=f"emulator: {str(error).splitlines()[0]}")


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description="the emulator against AMD's pseudo-code, as tinygrad carries it")
    parser.add_argument("--only", nargs="*", help="compare these mnemonics only")
    parser.add_argument("--markdown", action="store_true", help="print the table for the documentation")
    options = parser.parse_args()
    library = pseudo_code()
    names = sorted(n for n in library if n.startswith(("v_", "s_")) and (not options.only or n in options.only))
    progress = Console(stderr=True)
    results = [compare(name, library[name], library) for name in track(names, "comparing", console=progress)]
    report(results, options.markdown)
    return int(any(r.different and r.name not in VERDICTS for r in results))


def report(results: list[Comparison], markdown: bool) -> None:
    """Print the differences and a summary."""
    different = [r for r in results if r.different]
    print("| instruction | differs | example | who is right |\n|---|---|---|---|")
    for r in different:
        print(f"| `{r.name}` | {r.different} of {r.cases} | {r.example} | {VERDICTS.get(r.name, 'NOT JUDGED')} |")
    compared = [r for r in results if not r.skipped]
    print(
        f"\n{len(compared)} instructions compared on {sum(r.cases for r in compared)} cases; {len(different)} differ."
    )
    if not markdown:
        for r in results:
            if r.skipped:
                print(f"not compared: {r.name}: {r.skipped}")


if __name__ == "__main__":
    sys.exit(main())
