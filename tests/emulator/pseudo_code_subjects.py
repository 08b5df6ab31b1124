"""Instructions with their pseudo-code, and a text of each that LLVM assembles."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from emulator.snippets import BF16, F16, F32, F64, Format, assemble

_FORMATS = {"f16": F16, "f32": F32, "f64": F64, "bf16": BF16}


@dataclass(frozen=True)
class Subject:
    """An instruction with its pseudo-code and a text that LLVM assembles."""

    name: str
    code: str
    text: str
    wide: tuple[bool, ...]
    wide_result: bool
    mask: bool
    """The result is one bit a lane in an SGPR pair."""

    @property
    def scalar(self) -> bool:
        return self.name.startswith("s_")

    @property
    def elements(self) -> list[Format]:
        """Float formats of the parts of the result, lowest first; empty for integers."""
        if match := re.search(r"^v_pk_\w+_(f16|f32)$|^v_cvt_pk_(bf16|f16)_f32$", self.name):
            return [_FORMATS[match[1] or match[2]]] * 2
        match = re.search(r"D0\.(f16|f32|f64)\b", self.code)
        return [_FORMATS[match[1]]] if match else []


def _width(code: str, name: str) -> bool:
    return bool(re.search(rf"\b{name}(?:\.[uifb]64|\[63)", code))


def subject_of(name: str, code: str) -> Subject | None:
    """How to run an instruction, None when no simple form of it assembles."""
    count = 1 + max((int(number) for number in re.findall(r"\bS([012])\b", code)), default=-1)
    if count == 0:
        return None
    wide = tuple(_width(code, f"S{i}") for i in range(count))
    mask = "D0.u64[laneId]" in code
    wide_result = _width(code, "D0") and not mask
    for text in _texts(name, wide, wide_result, mask):
        if _assembles(text):
            return Subject(name, code, text, wide, wide_result, mask)
    return None


def _texts(name: str, wide: tuple[bool, ...], wide_result: bool, mask: bool) -> Iterator[str]:
    file, first, step, result = ("s", 20, 2, 50) if name.startswith("s_") else ("v", 10, 2, 20)
    sources = [
        f"{file}[{first + step * i}:{first + step * i + 1}]" if w else f"{file}{first + step * i}"
        for i, w in enumerate(wide)
    ]
    joined = ", ".join(sources)
    target = f"{file}[{result}:{result + 1}]" if wide_result else f"{file}{result}"
    if file == "s":
        yield f"{name} {target}, {joined}"
        yield f"{name} {joined}"
    elif mask:
        yield f"{name}_e64 s[30:31], {joined}"
    else:
        # The forms with VCC come first: LLVM also reads carry instructions that leave it out.
        yield f"{name}_e32 {target}, vcc, {joined}, vcc"
        yield f"{name}_e32 {target}, {joined}, vcc"
        yield f"{name} {target}, vcc, {joined}"
        yield f"{name} {target}, {joined}"


@contextlib.contextmanager
def _silent_assembler() -> Iterator[None]:
    """LLVM prints what it rejects to file descriptor 2."""
    saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)


def _assembles(text: str) -> bool:
    try:
        with _silent_assembler():
            assemble(text)
    except RuntimeError:
        return False
    return True
