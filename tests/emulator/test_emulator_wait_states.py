"""The wait-state checker against what LLVM emits: never stricter, and as strict wherever LLVM inserted an s_nop."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import pytest

from emulator.kernel_text import kernel_from
from emulator.llvm_code import Code, compile_functions
from gfx950_emulator import run
from gfx950_emulator.checks.hazard_step import matrix_passes
from gfx950_emulator.checks.wait_states import violations
from gfx950_emulator.errors import WaitStateError
from gfx950_emulator.front_end.instruction import parse_instruction
from gfx950_emulator.front_end.kernel import Kernel
from gfx950_emulator.isa.decoder import bind_kernel

SHAPES = {
    # intrinsic: (type of A, type of B, type of C and D, trailing arguments)
    "mfma.f32.16x16x4f32": ("float", "float", "<4 x float>", "i32 0, i32 0, i32 0"),
    "mfma.f32.32x32x2f32": ("float", "float", "<16 x float>", "i32 0, i32 0, i32 0"),
    "mfma.f32.16x16x32.bf16": ("<8 x bfloat>", "<8 x bfloat>", "<4 x float>", "i32 0, i32 0, i32 0"),
    "mfma.f32.32x32x16.bf16": ("<8 x bfloat>", "<8 x bfloat>", "<16 x float>", "i32 0, i32 0, i32 0"),
    "mfma.f32.16x16x32.f16": ("<8 x half>", "<8 x half>", "<4 x float>", "i32 0, i32 0, i32 0"),
    "mfma.f32.32x32x8f16": ("<4 x half>", "<4 x half>", "<16 x float>", "i32 0, i32 0, i32 0"),
    "mfma.f32.16x16x32.fp8.fp8": ("i64", "i64", "<4 x float>", "i32 0, i32 0, i32 0"),
    "mfma.f32.32x32x16.fp8.bf8": ("i64", "i64", "<16 x float>", "i32 0, i32 0, i32 0"),
}
for _size, _c in (("16x16x128", "<4 x float>"), ("32x32x64", "<16 x float>")):
    for _a, _b in ((0, 0), (0, 4), (4, 1), (4, 4), (2, 4)):
        _ta, _tb = (f"<{ {0: 8, 1: 8, 2: 6, 4: 4}[code] } x i32>" for code in (_a, _b))
        _suffix = f"v{_ta[1]}i32.v{_tb[1]}i32"
        SHAPES[f"mfma.scale.f32.{_size}.f8f6f4.{_suffix}|{_a}{_b}"] = (
            _ta,
            _tb,
            _c,
            f"i32 {_a}, i32 {_b}, i32 0, i32 7, i32 0, i32 7",
        )
CONSUMERS = {
    "add": "%s = fadd {c} %r, %r\n  ret {c} %s",
    "store": "store {c} %r, ptr addrspace(1) %p\n  ret {c} %c",
    "lds": "store {c} %r, ptr addrspace(3) %l\n  ret {c} %c",
    "chain": "%s = call {c} @llvm.amdgcn.{name}({a} %x, {b} %y, {c} %r, {rest})\n  ret {c} %s",
    "convert": "%e = extractelement {c} %r, i32 0\n  %i = fptosi float %e to i32\n"
    "  %s = insertelement {c} %c, float poison, i32 0\n  store i32 %i, ptr addrspace(1) %p\n  ret {c} %s",
}


def ir_of(key: str, consumer: str, index: int) -> tuple[str, str, str]:
    """(function name, declaration, definition) of one matrix instruction and one use of its result."""
    a, b, c, rest = SHAPES[key]
    name = key.partition("|")[0]
    declared = re.sub(r"(i32) \d+", r"i32", rest)
    declaration = f"declare {c} @llvm.amdgcn.{name}({a}, {b}, {c}, {declared})"
    body = CONSUMERS[consumer].format(a=a, b=b, c=c, name=name, rest=rest)
    definition = (
        f"define {c} @f{index}({a} %x, {b} %y, {c} %c, ptr addrspace(1) %p, ptr addrspace(3) %l) {{\n"
        f"  %r = call {c} @llvm.amdgcn.{name}({a} %x, {b} %y, {c} %c, {rest})\n  {body}\n}}"
    )
    return f"f{index}", declaration, definition


@cache
def compiled() -> dict[str, Code]:
    """LLVM's code for every shape and consumer at two optimisation levels."""
    cases = [(key, consumer) for key in SHAPES for consumer in CONSUMERS]
    declarations, definitions, names = set(), [], []
    for index, (key, consumer) in enumerate(cases):
        name, declaration, definition = ir_of(key, consumer, index)
        declarations.add(declaration)
        definitions.append(definition)
        names.append(name)
    source = "\n".join([*sorted(declarations), *definitions])
    found = {}
    for level in ("-O0", "-O2"):
        functions = compile_functions(source, names, level)
        for (key, consumer), name in zip(cases, names, strict=True):
            found[f"{key} {consumer} {level}"] = functions[name]
    return found


def problems(code: Code) -> list[str]:
    base = kernel_from("s_nop 0", 0)
    return [found.rule for found in violations(bind_kernel(replace(base, instructions=code)))]


def shorter(code: Code, index: int) -> Code:
    """The code with one wait state less at an s_nop."""
    count = code[index].operands[0].integer
    if count == 0:
        return code[:index] + code[index + 1 :]
    return (*code[:index], parse_instruction(f"s_nop {count - 1}"), *code[index + 1 :])


def test_llvm_code_passes() -> None:
    assert len(compiled()) >= 180
    failed = {name: problems(code) for name, code in compiled().items() if problems(code)}
    assert failed == {}


def test_one_wait_state_less_than_llvm_fails() -> None:
    """Where LLVM padded with s_nop, our table needs every one of its wait states."""
    padded, missed = 0, []
    for name, code in compiled().items():
        for index, instruction in enumerate(code):
            if instruction.mnemonic == "s_nop":
                padded += 1
                if not problems(shorter(code, index)):
                    missed.append((name, index, instruction.text))
    assert padded >= 180
    assert missed == []


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("v_mfma_f32_16x16x128_f8f6f4 v[0:3], v[4:7], v[8:11], v[0:3] cbsz:4 blgp:4", 4),
        ("v_mfma_f32_16x16x128_f8f6f4 v[0:3], v[4:11], v[12:15], v[0:3] blgp:4", 8),
        ("v_mfma_f32_32x32x64_f8f6f4 v[0:15], v[16:19], v[20:23], v[0:15] cbsz:4 blgp:4", 8),
        ("v_mfma_f32_32x32x64_f8f6f4 v[0:15], v[16:23], v[24:31], v[0:15]", 16),
        ("v_mfma_f32_16x16x32_bf16 v[0:3], v[4:7], v[8:11], v[0:3]", 4),
        ("v_mfma_f64_16x16x4_f64 v[0:7], v[8:9], v[10:11], v[0:7]", 16),
    ],
)
def test_passes(text: str, passes: int) -> None:
    assert matrix_passes(parse_instruction(text)) == passes


MATRIX = "v_mfma_f32_16x16x128_f8f6f4 v[12:15], v[4:7], v[8:11], 0 cbsz:4 blgp:4"


@pytest.mark.parametrize(
    ("consumer", "needed"),
    [
        ("v_add_f32 v20, v12, v12", 8),
        ("v_mov_b32 v12, 0", 8),
        ("global_store_dword v1, v15, s[4:5]", 8),
        ("ds_write_b32 v1, v13", 8),
        ("v_mfma_f32_16x16x32_bf16 v[20:23], v[12:15], v[8:11], 0", 8),
        ("v_mfma_f32_16x16x32_bf16 v[20:23], v[4:7], v[8:11], v[13:16]", 6),
        ("v_mfma_f32_16x16x32_bf16 v[12:15], v[4:7], v[8:11], v[12:15]", 0),
    ],
)
def test_each_use_of_a_matrix_result(consumer: str, needed: int) -> None:
    for wait in range(max(needed - 1, 0), needed + 2):
        gap = f"s_nop {wait - 1}\n" if wait else ""
        body = f"v_mov_b32 v16, 0\ns_nop 1\n{MATRIX}\n{gap}{consumer}"
        found = problems(kernel_from(body, 1, 256).instructions)
        assert bool(found) == (wait < needed), (consumer, wait, found)


def test_the_shortest_of_several_paths_counts() -> None:
    body = f"s_cbranch_scc1 .Lfar\n{MATRIX}\ns_branch .Luse\n.Lfar:\ns_nop 9\n.Luse:\ns_nop 5\nv_mov_b32 v20, v12"
    found = list(violations(bind_kernel(kernel_from(body, 0))))
    assert [(v.present, v.needed, v.register) for v in found] == [(7, 8, "v12")]


def test_launch_refuses_and_says_what_is_missing() -> None:
    kernel: Kernel = kernel_from(f"{MATRIX}\ns_nop 3\nv_mov_b32 v20, v12", 0)
    with pytest.raises(WaitStateError, match=r"v12 needs 8 wait states after `v_mfma.*`.*there are 4"):
        run(kernel, None, (1, 1, 1), (64, 1, 1), [])
