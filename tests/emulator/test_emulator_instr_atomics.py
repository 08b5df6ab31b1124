"""Atomic instructions on global memory, buffers and LDS against one lane after the other in Python."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest

from emulator.snippets import BF16, F16, F32, F64, Format, execute_on_buffers, fused
from emulator.values import signed

Update = Callable[[int, int, int], int]
"""(old, operand, bits) to new."""
PLACES = 7
"""Cells that the 64 lanes share, so that lanes collide."""


def _float(form: Format, choose: Callable[[float, float], float] | None = None) -> Update:
    def update(old: int, operand: int, bits: int) -> int:
        a, b = form.value(old), form.value(operand)
        return form.pattern(fused(a, Fraction(1), b)) if choose is None else (old if choose(a, b) == a else operand)  # type: ignore[arg-type]

    return update


def _halves(form: Format) -> Update:
    add = _float(form)
    return lambda old, operand, bits: add(old & 0xFFFF, operand & 0xFFFF, 16) | add(old >> 16, operand >> 16, 16) << 16


INTEGER: dict[str, Update] = {
    "swap": lambda old, operand, bits: operand,
    "add": lambda old, operand, bits: old + operand,
    "sub": lambda old, operand, bits: old - operand,
    "smin": lambda old, operand, bits: min(signed(old, bits), signed(operand, bits)),
    "umin": lambda old, operand, bits: min(old, operand),
    "smax": lambda old, operand, bits: max(signed(old, bits), signed(operand, bits)),
    "umax": lambda old, operand, bits: max(old, operand),
    "and": lambda old, operand, bits: old & operand,
    "or": lambda old, operand, bits: old | operand,
    "xor": lambda old, operand, bits: old ^ operand,
    "inc": lambda old, operand, bits: 0 if old >= operand else old + 1,
    "dec": lambda old, operand, bits: operand if old == 0 or old > operand else old - 1,
}
FLOAT: dict[str, tuple[Update, int]] = {
    "add_f32": (_float(F32), 1),
    "pk_add_f16": (_halves(F16), 1),
    "pk_add_bf16": (_halves(BF16), 1),
    "add_f64": (_float(F64), 2),
    "min_f64": (_float(F64, min), 2),
    "max_f64": (_float(F64, max), 2),
}
LDS: dict[str, tuple[Update, int]] = {
    **{
        f"{name}_{kind}{32 * words}": (INTEGER[reference], words)
        for words in (1, 2)
        for name, kind, reference in (
            ("add", "u", "add"),
            ("sub", "u", "sub"),
            ("inc", "u", "inc"),
            ("dec", "u", "dec"),
            ("min", "i", "smin"),
            ("max", "i", "smax"),
            ("min", "u", "umin"),
            ("max", "u", "umax"),
            ("and", "b", "and"),
            ("or", "b", "or"),
            ("xor", "b", "xor"),
        )
    },
    "rsub_u32": (lambda old, operand, bits: operand - old, 1),
    "add_f32": FLOAT["add_f32"],
    "add_f64": FLOAT["add_f64"],
    "pk_add_f16": FLOAT["pk_add_f16"],
    "pk_add_bf16": FLOAT["pk_add_bf16"],
}


def _values(name: str, words: int, count: int, seed: int) -> npt.NDArray[np.uint32]:
    """Operands [count, words]: numbers of moderate size for floats, small and arbitrary bits for integers."""
    rng = np.random.default_rng(seed)
    numbers = rng.integers(-64, 65, (count, 2)).astype(np.float64)
    if name.endswith("f64"):
        return np.ascontiguousarray(numbers[:, :1]).view(np.uint32)
    if name.endswith("_f32"):
        return numbers[:, :1].astype(np.float32).view(np.uint32)
    if "pk_add" in name:
        form = BF16 if name.endswith("bf16") else F16
        return np.array([[form.pattern(Fraction(x)) | form.pattern(Fraction(y)) << 16] for x, y in numbers], np.uint32)
    values = rng.integers(0, 2**32, (count, words), dtype=np.uint32)
    values[::3] %= 5
    return values


def _expected(
    update: Update, words: int, memory: npt.NDArray[np.uint32], data: npt.NDArray[np.uint32]
) -> tuple[list[int], list[int]]:
    """(memory afterwards, value before for each lane), lanes in order."""
    bits = 32 * words
    cells = [sum(int(w) << 32 * i for i, w in enumerate(cell)) for cell in memory]
    before = []
    for lane in range(64):
        cell, operand = lane % PLACES, sum(int(w) << 32 * i for i, w in enumerate(data[lane]))
        before.append(cells[cell])
        cells[cell] = update(cells[cell], operand, bits) & ((1 << bits) - 1)
    return cells, before


def _joined(values: npt.NDArray[np.uint32]) -> list[int]:
    return [sum(int(w) << 32 * i for i, w in enumerate(row)) for row in values]


def _span(first: int, words: int) -> str:
    return f"v[{first}:{first + words - 1}]" if words > 1 else f"v{first}"


def _cell(words: int) -> str:
    """v5: byte offset of lane % PLACES, by a multiplication with 2**16 / PLACES; v4: of the lane itself."""
    shift = 2 + words.bit_length() - 1
    return f"""v_mul_u32_u24_e32 v5, {65536 // PLACES + 1}, v0
    v_lshrrev_b32_e32 v5, 16, v5
    v_mul_u32_u24_e32 v5, {PLACES}, v5
    v_sub_u32_e32 v5, v0, v5
    v_lshlrev_b32_e32 v5, {shift}, v5
    v_lshlrev_b32_e32 v4, {shift}, v0
    """


def _load(words: int, register: int, base: str, address: str) -> str:
    width = "x2" if words == 2 else ""
    return f"global_load_dword{width} {_span(register, words)}, {address}, {base}\ns_waitcnt vmcnt(0)\n"


def _store(words: int, register: int, base: str, address: str = "v4") -> str:
    return f"global_store_dword{'x2' if words == 2 else ''} {address}, {_span(register, words)}, {base}\n"


GLOBAL: list[tuple[str, Update, int]] = [
    *((name, update, 1) for name, update in INTEGER.items()),
    *((f"{name}_x2", update, 2) for name, update in INTEGER.items()),
    *((name, update, words) for name, (update, words) in FLOAT.items()),
]
SPACES = {
    "global": "v5, {data}, s[10:11]{returning}",
    "buffer": "{data}, v5, s[20:23], 0 offen{returning}",
}
RESOURCE = """s_mov_b32 s20, s10
s_and_b32 s21, s11, 0xffff
s_movk_i32 s22, 1000
s_mov_b32 s23, 0x27000
"""


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize(("name", "update", "words"), GLOBAL, ids=[case[0] for case in GLOBAL])
def test_memory_atomics(name: str, update: Update, words: int, space: str) -> None:
    memory, data = _values(name, words, PLACES, 1), _values(name, words, 64, 2)
    before = np.zeros((64, words), np.uint32)
    operands = SPACES[space].format(data=_span(8, words), returning=" sc0")
    result = 8 if space == "buffer" else 12
    target = "" if space == "buffer" else f"{_span(12, words)}, "
    body = RESOURCE + _cell(words) + _load(words, 8, "s[12:13]", "v4")
    body += f"{space}_atomic_{name} {target}{operands}\ns_waitcnt vmcnt(0)\n" + _store(words, result, "s[14:15]")
    cells, old = _expected(update, words, memory, data)
    execute_on_buffers(body, [memory, data, before])
    assert _joined(memory) == cells
    assert _joined(before) == old


@pytest.mark.parametrize("words", [1, 2])
@pytest.mark.parametrize("space", ["global", "lds"])
def test_compare_and_swap(space: str, words: int) -> None:
    memory = np.zeros((PLACES, words), np.uint32)
    # The first lane of a cell finds 0 and stores its number; every fifth one expects 0 and fails, the rest form chains.
    pairs = np.zeros((64, 2 * words), np.uint32)
    pairs[:, 0] = 100 + np.arange(64)
    pairs[:, words] = np.where(np.arange(64) % 5 == 0, 0, 100 + np.arange(64) - PLACES)
    before = np.zeros((64, words), np.uint32)
    shift = 2 + (2 * words).bit_length() - 1
    suffix = "_x2" if words == 2 else ""
    wide = 2 * words
    body = _cell(words) + f"v_lshlrev_b32_e32 v6, {shift}, v0\n"
    body += f"global_load_dwordx{wide} v[8:{7 + wide}], v6, s[12:13]\ns_waitcnt vmcnt(0)\n"
    if space == "global":
        body += f"global_atomic_cmpswap{suffix} {_span(16, words)}, v5, v[8:{7 + wide}], s[10:11] sc0\n"
    else:
        body += (
            _load(words, 20, "s[10:11]", "v5")
            + f"ds_write_b{32 * words} v5, {_span(20, words)}\ns_waitcnt lgkmcnt(0)\n"
        )
        new, compared = _span(8, words), _span(8 + words, words)
        body += f"ds_cmpst_rtn_b{32 * words} {_span(16, words)}, v5, {compared}, {new}\ns_waitcnt lgkmcnt(0)\n"
        body += f"ds_read_b{32 * words} {_span(20, words)}, v5\ns_waitcnt lgkmcnt(0)\n" + _store(
            words, 20, "s[10:11]", "v5"
        )
    body += "s_waitcnt vmcnt(0)\n" + _store(words, 16, "s[14:15]")
    cells, old = [0] * PLACES, []
    for lane in range(64):
        old.append(cells[lane % PLACES])
        if cells[lane % PLACES] == int(pairs[lane, words]):
            cells[lane % PLACES] = 100 + lane
    execute_on_buffers(body, [memory, pairs, before], lds=64)
    assert _joined(memory) == cells
    assert _joined(before) == old


@pytest.mark.parametrize("returning", [False, True])
@pytest.mark.parametrize("name", LDS)
def test_lds_atomics(name: str, returning: bool) -> None:
    update, words = LDS[name]
    memory, data = _values(name, words, PLACES, 3), _values(name, words, 64, 4)
    before = np.zeros((64, words), np.uint32)
    kind = name.rpartition("_")
    mnemonic = f"ds_{kind[0]}_rtn_{kind[2]} {_span(16, words)}," if returning else f"ds_{name}"
    body = _cell(words) + _load(words, 8, "s[12:13]", "v4") + _load(words, 20, "s[10:11]", "v5")
    body += f"ds_write_b{32 * words} v5, {_span(20, words)}\ns_waitcnt lgkmcnt(0)\n"
    body += f"{mnemonic} v5, {_span(8, words)}\ns_waitcnt lgkmcnt(0)\n"
    body += f"ds_read_b{32 * words} {_span(20, words)}, v5\ns_waitcnt lgkmcnt(0)\n" + _store(
        words, 20, "s[10:11]", "v5"
    )
    body += _store(words, 16, "s[14:15]") if returning else ""
    cells, old = _expected(update, words, memory, data)
    execute_on_buffers(body, [memory, data, before], lds=64)
    assert _joined(memory) == cells
    assert not returning or _joined(before) == old
