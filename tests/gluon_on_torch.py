"""Executes the Hopper kernels' Gluon source with torch, one program after the other: layouts are dropped.

Layouts never change values, so this checks addresses, scales, masks and the order of dimensions on any machine. What it
cannot check is what only the GPU shows: that the layouts fit the instructions, and ordering in shared memory.
"""

from __future__ import annotations

import functools
import itertools
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

_DTYPES = {"float16": torch.float16, "float32": torch.float32, "int32": torch.int32, "int64": torch.int64}


class Value:
    """A tensor of a program; a scalar is a tensor without dimensions."""

    def __init__(self, t: Tensor | float) -> None:
        self.t = t if isinstance(t, Tensor) else torch.tensor(t)

    def __index__(self) -> int:
        return int(self.t)

    def __bool__(self) -> bool:
        return bool(self.t)

    def to(self, dtype: torch.dtype, bitcast: bool = False) -> Value:
        if bitcast:
            same_size = self.t if self.t.element_size() == dtype.itemsize else self.t.to(torch.int32)
            return Value(same_size.view(dtype))
        return Value(self.t.to(dtype))

    def reshape(self, shape: list[int]) -> Value:
        return Value(self.t.reshape(shape))

    def permute(self, order: list[int]) -> Value:
        return Value(self.t.permute(order))


def _raw(x: Any) -> Any:
    return x.t if isinstance(x, Value) else x


def _operator(name: str) -> Any:
    def apply(self: Value, other: Any) -> Any:
        if isinstance(other, Pointer):
            return other + self
        result = getattr(self.t, name)(_raw(other))
        assert isinstance(result, Tensor)
        return Value(result)

    return apply


for _name in ("add", "sub", "mul", "mod", "and", "or", "lshift", "rshift", "lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Value, f"__{_name}__", _operator(f"__{_name}__"))
for _name in ("radd", "rmul", "rsub"):
    setattr(Value, f"__{_name}__", _operator(f"__{_name}__"))
setattr(Value, "__floordiv__", lambda self, other: Value(torch.div(self.t, _raw(other), rounding_mode="trunc")))  # noqa: B010


class Pointer:
    """Elements of a tensor's storage at offsets from its first."""

    def __init__(self, of: Tensor, at: Any = 0, accesses: set[int] | None = None) -> None:
        self.flat = torch.as_strided(
            of, (of.untyped_storage().nbytes() // of.element_size() - of.storage_offset(),), (1,)
        )
        self.at = at

    def __add__(self, other: Any) -> Pointer:
        moved = object.__new__(Pointer)
        moved.flat, moved.at = self.flat, _raw(other) + self.at
        return moved


class Memory:
    """Shared memory: poisoned, so that what is read unwritten shows."""

    def __init__(self, shape: list[int], view: Tensor | None = None) -> None:
        self.view = torch.full(shape, float("nan"), dtype=torch.float64) if view is None else view

    def slice(self, start: int, length: int, dim: int) -> Memory:
        return Memory([], self.view.narrow(dim, start, length))

    def store(self, value: Value) -> None:
        assert self.view.shape == value.t.shape
        self.view.copy_(value.t)

    def permute(self, order: list[int]) -> Value:
        return Value(self.view.permute(order))


def _load(p: Pointer, mask: Any = None, eviction_policy: str = "") -> Value:
    at = torch.as_tensor(p.at)
    assert mask is None
    assert int(at.min()) >= 0, "read before a tensor"
    assert int(at.max()) < len(p.flat), "read past a tensor"
    return Value(p.flat[at.long()])


def _store(p: Pointer, value: Value, mask: Value) -> None:
    at, live = torch.broadcast_tensors(torch.as_tensor(p.at), mask.t)  # type: ignore[no-untyped-call]
    source = value.t.expand(at.shape)
    p.flat[at[live].long()] = source[live].to(p.flat.dtype)


def _permute_bytes(a: Tensor, b: Tensor, selector: Tensor) -> Tensor:
    """PTX prmt.b32 on int64 tensors that hold 32 bits."""
    both, out = a | (b << 32), torch.zeros_like(a)
    for i in range(4):
        out |= (both >> (8 * ((selector >> (4 * i)) & 7)) & 255) << (8 * i)
    return out


def _unpack(words: Tensor, low: Tensor, high: Tensor) -> tuple[Value, Value]:
    unsigned = ((x.long() & 0xFFFFFFFF) for x in (words, low, high))
    w, t0, t1 = torch.broadcast_tensors(*unsigned)  # type: ignore[no-untyped-call]
    up, magnitudes = (w << 4) & 0xFFFFFFFF, w & 0x77777777
    results = []
    for selector, magnitude in ((0x5140, magnitudes), (0x7362, magnitudes >> 16)):
        sign = _permute_bytes(up, w, torch.full_like(w, selector)) & 0x80808080
        packed = sign | _permute_bytes(t0, t1, magnitude)
        byte = torch.arange(4)
        chosen = (packed >> (8 * byte)) & 255
        results.append(Value(chosen.to(torch.uint8).view(torch.float8_e5m2).double()))
    return results[0], results[1]


def _assembly(text: str, _registers: str, arguments: list[Value], **_options: Any) -> Any:
    if "lop3" in text:
        return _unpack(*(a.t for a in arguments))
    if "relu" in text:
        return Value(arguments[0].t.clamp(min=0))
    if "max.u16x2" in text:
        a, b = (x.t.long() for x in arguments)
        halves = [torch.maximum(a >> s & 0xFFFF, b >> s & 0xFFFF) << s for s in (0, 16)]
        return Value((halves[0] | halves[1]).int())
    if "0x4140" in text:
        return Value(arguments[0].t & 255 | arguments[0].t >> 8 << 16)
    assert "bar.warp.sync" in text
    return arguments[0]


def _product(a: Value, b: Value, accumulator: Value, **_options: Any) -> Value:
    return Value((a.t.double() @ b.t.double()).to(accumulator.t.dtype))


def _split(x: Value) -> tuple[Value, Value]:
    return Value(x.t[..., 0]), Value(x.t[..., 1])


def _where(condition: Any, a: Any, b: Any) -> Value:
    return Value(torch.where(torch.as_tensor(_raw(condition)), torch.as_tensor(_raw(a)), torch.as_tensor(_raw(b))))


def _pair(name: str) -> Any:
    def apply(a: Any, b: Any) -> Value:
        return Value(getattr(torch, name)(torch.as_tensor(_raw(a)), torch.as_tensor(_raw(b))))

    return apply


def _fold(x: Value, axis: int, combine: Any) -> Value:
    first, *rest = (Value(part) for part in x.t.unbind(axis))
    return functools.reduce(combine, rest, first)


def _scan(x: Value, axis: int, combine: Any) -> Value:
    parts = itertools.accumulate((Value(part) for part in x.t.unbind(axis)), combine)
    return Value(torch.stack([part.t for part in parts], axis))


def _nothing(*_a: Any, **_k: Any) -> None:
    return None


def _language(program: SimpleNamespace) -> SimpleNamespace:
    return SimpleNamespace(
        **_DTYPES,
        float8e5=torch.float64,
        constexpr=lambda x: x,
        static_range=range,
        program_id=lambda _axis: Value(program.id),
        arange=lambda a, b, _layout: Value(torch.arange(a, b, dtype=torch.int32)),
        full=lambda shape, x, dtype, _layout: Value(torch.full(shape, x, dtype=dtype)),
        expand_dims=lambda x, axis: Value(x.t.unsqueeze(axis)),
        broadcast=lambda a, b: (Value(a.t.expand(b.t.shape)), b),
        join=lambda a, b: Value(torch.stack([a.t, b.t], -1)),
        split=_split,
        where=_where,
        maximum=_pair("maximum"),
        minimum=_pair("minimum"),
        max=lambda x, axis: Value(x.t.amax(axis)),
        min=lambda x, axis: Value(x.t.amin(axis)),
        sum=lambda x, axis: Value(x.t.sum(axis)),
        reduce=_fold,
        associative_scan=_scan,
        abs=lambda x: Value(x.t.abs()),
        load=_load,
        store=_store,
        inline_asm_elementwise=_assembly,
        convert_layout=lambda x, _layout: x,
        allocate_shared_memory=lambda _dtype, shape, _layout: Memory(shape),
        barrier=_nothing,
        NVMMADistributedLayout=_nothing,
        NVMMASharedLayout=_nothing,
        DistributedLinearLayout=_nothing,
        BlockedLayout=_nothing,
        SliceLayout=_nothing,
        DotOperandLayout=_nothing,
    )


class Kernel:
    """`kernel[grid](...)`, as a compiled kernel is launched."""

    def __init__(self, function: Any, program: SimpleNamespace) -> None:
        self.function, self.program = function, program

    def __getitem__(self, grid: tuple[int]) -> Any:
        def launch(
            *arguments: Any, num_warps: int, enable_fp_fusion: bool, maxnreg: int = 255, **constants: Any
        ) -> Any:
            assert (num_warps, enable_fp_fusion) == (4, True)
            assert maxnreg <= 255
            for self.program.id in range(grid[0]):
                given = [Pointer(a) if isinstance(a, Tensor) else a for a in arguments]
                self.function(*given, **constants)
            return self

        return launch


def kernels(package: Path) -> dict[str, Kernel]:
    """The kernels of a Gluon package's `shares.py`, `tile.py`, `score.py` and `kernels.py`, by name."""
    program = SimpleNamespace(id=0)
    scope: dict[str, Any] = {
        "gl": _language(program),
        "gluon": SimpleNamespace(jit=lambda f=None, **_k: f if f else lambda g: g, constexpr_function=lambda f: f),
        "warpgroup_mma": _product,
        "warpgroup_mma_wait": lambda _n, deps: deps[0],
        "fence_async_shared": _nothing,
    }
    for name in ("shares", "tile", "score", "kernels"):
        source = (package / f"{name}.py").read_text()
        source = re.sub(r"^from (triton|dsv4_kernels)\S* import .*$", "", source, flags=re.MULTILINE)
        exec(compile(source, f"{name}.py", "exec", dont_inherit=True), scope)
    names = itertools.chain(key for key in scope if key.endswith("_kernel"))
    return {name: Kernel(scope[name], program) for name in names}
