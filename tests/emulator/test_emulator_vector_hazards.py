"""The wait-state rules that concern vector and scalar registers, against LLVM's code for operations that meet them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from emulator.kernel_text import kernel_from
from emulator.llvm_code import Code, compile_functions
from gfx950_emulator.checks.wait_states import violations
from gfx950_emulator.isa.decoder import bind_kernel

DECLARATIONS = """
declare i32 @llvm.amdgcn.update.dpp.i32(i32, i32, i32, i32, i32, i1)
declare {i32, i32} @llvm.amdgcn.permlane32.swap(i32, i32, i1, i1)
declare {i32, i32} @llvm.amdgcn.permlane16.swap(i32, i32, i1, i1)
declare i32 @llvm.amdgcn.readfirstlane.i32(i32)
declare i32 @llvm.amdgcn.readlane.i32(i32, i32)
declare i32 @llvm.amdgcn.writelane.i32(i32, i32, i32)
declare i64 @llvm.amdgcn.ballot.i64(i1)
declare float @llvm.amdgcn.exp2.f32(float)
declare float @llvm.amdgcn.log.f32(float)
declare float @llvm.amdgcn.rcp.f32(float)
declare float @llvm.amdgcn.sqrt.f32(float)
declare i32 @llvm.amdgcn.cvt.pk.fp8.f32(float, float, i32, i1)
declare i32 @llvm.amdgcn.cvt.scalef32.pk.fp4.f32(i32, float, float, float, i32)
declare i32 @llvm.amdgcn.raw.ptr.buffer.load.i32(ptr addrspace(8), i32, i32, i32)
"""
DPP = {"quad": 177, "row_shl": 257, "row_shr": 273, "row_ror": 296, "mirror": 320, "half": 321, "bcast": 322}
FUNCTIONS: dict[str, str] = {
    "add128": "define i128 @{name}(i128 %a, i128 %b) {\n %r = add i128 %a, %b\n ret i128 %r }",
    "sub128": "define i128 @{name}(i128 %a, i128 %b) {\n %r = sub i128 %a, %b\n ret i128 %r }",
    "fdiv32": "define float @{name}(float %a, float %b) {\n %r = fdiv float %a, %b\n ret float %r }",
    "fdiv64": "define double @{name}(double %a, double %b) {\n %r = fdiv double %a, %b\n ret double %r }",
    "udiv32": "define i32 @{name}(i32 %a, i32 %b) {\n %r = udiv i32 %a, %b\n ret i32 %r }",
    "udiv64": "define i64 @{name}(i64 %a, i64 %b) {\n %r = udiv i64 %a, %b\n ret i64 %r }",
    "select": "define i32 @{name}(i32 %a, i32 %b) {\n %c = icmp slt i32 %a, %b\n"
    " %r = select i1 %c, i32 %a, i32 7\n ret i32 %r }",
    "swap32": "define i32 @{name}(i32 %a, i32 %b) {\n %x = add i32 %a, %b\n"
    " %p = call {{i32, i32}} @llvm.amdgcn.permlane32.swap(i32 %x, i32 %b, i1 false, i1 false)\n"
    " %r = extractvalue {{i32, i32}} %p, 0\n ret i32 %r }",
    "swap16": "define i32 @{name}(i32 %a, i32 %b) {\n %x = xor i32 %a, %b\n"
    " %p = call {{i32, i32}} @llvm.amdgcn.permlane16.swap(i32 %a, i32 %x, i1 false, i1 false)\n"
    " %r = extractvalue {{i32, i32}} %p, 1\n ret i32 %r }",
    "uniform": "define i32 @{name}(i32 %a, i32 %b) {\n %x = add i32 %a, %b\n"
    " %s = call i32 @llvm.amdgcn.readfirstlane.i32(i32 %x)\n %r = mul i32 %s, %a\n ret i32 %r }",
    "lane": "define i32 @{name}(i32 %a, i32 %b) {\n %s = call i32 @llvm.amdgcn.readfirstlane.i32(i32 %b)\n"
    " %r = call i32 @llvm.amdgcn.readlane.i32(i32 %a, i32 %s)\n %t = add i32 %r, %a\n ret i32 %t }",
    "write": "define i32 @{name}(i32 %a, i32 %b) {\n %s = call i32 @llvm.amdgcn.readfirstlane.i32(i32 %b)\n"
    " %r = call i32 @llvm.amdgcn.writelane.i32(i32 7, i32 %s, i32 %a)\n ret i32 %r }",
    "ballot": "define i64 @{name}(i32 %a, i32 %b) {\n %c = icmp ult i32 %a, %b\n"
    " %r = call i64 @llvm.amdgcn.ballot.i64(i1 %c)\n ret i64 %r }",
    "buffer": "define i32 @{name}(ptr addrspace(8) %p, i32 %a) {\n"
    " %r = call i32 @llvm.amdgcn.raw.ptr.buffer.load.i32(ptr addrspace(8) %p, i32 %a, i32 0, i32 0)\n ret i32 %r }",
    "fp8": "define i32 @{name}(float %a, float %b, i32 %o) {\n"
    " %x = call i32 @llvm.amdgcn.cvt.pk.fp8.f32(float %a, float %b, i32 %o, i1 true)\n"
    " %r = xor i32 %x, 5\n ret i32 %r }",
    "fp4": "define i32 @{name}(float %a, float %b, i32 %o) {\n"
    " %x = call i32 @llvm.amdgcn.cvt.scalef32.pk.fp4.f32(i32 %o, float %a, float %b, float 2.0, i32 2)\n"
    " %r = xor i32 %x, 5\n ret i32 %r }",
    **{
        f"dpp_{control}": "define i32 @{name}(i32 %a, i32 %b) {\n %x = add i32 %a, %b\n"
        f" %r = call i32 @llvm.amdgcn.update.dpp.i32(i32 0, i32 %x, i32 {code}, i32 15, i32 15, i1 true)\n"
        " %t = add i32 %r, %x\n ret i32 %t }"
        for control, code in DPP.items()
    },
    **{
        f"trans_{name}": f"define float @{{name}}(float %a) {{\n %x = call float @llvm.amdgcn.{name}.f32(float %a)\n"
        " %r = fadd float %x, %a\n ret float %r }"
        for name in ("exp2", "log", "rcp", "sqrt")
    },
}
FUNCTIONS = {key: text.replace("{{", "{").replace("}}", "}") for key, text in FUNCTIONS.items()}


@cache
def compiled() -> dict[str, Code]:
    """LLVM's code for every function at three optimisation levels."""
    source = DECLARATIONS + "\n".join(text.replace("{name}", f"f_{key}") for key, text in FUNCTIONS.items())
    names = [f"f_{key}" for key in FUNCTIONS]
    found = {}
    for level in ("-O0", "-O1", "-O3"):
        for name, code in compile_functions(source, names, level).items():
            found[f"{name} {level}"] = code
    return found


def rules_broken(code: Code) -> list[str]:
    base = kernel_from("s_nop 0", 0)
    return [found.rule for found in violations(bind_kernel(replace(base, instructions=code)))]


def test_llvm_code_passes() -> None:
    assert len(compiled()) >= 75
    assert {name: rules_broken(code) for name, code in compiled().items() if rules_broken(code)} == {}


def test_without_its_wait_states_llvm_code_breaks_every_rule() -> None:
    broken: Counter[str] = Counter()
    for code in compiled().values():
        kept = tuple(i for i in code if i.mnemonic != "s_nop")
        if all(i.target is None for i in code):
            broken.update(set(rules_broken(kept)))
    assert set(broken) >= {
        "vector result read by v_permlane",
        "vector result read through DPP",
        "SGPR written by a vector instruction, used as lane number",
        "SGPR written by a vector instruction, read by another",
        "VCC written before v_div_fmas",
        "transcendental result read",
        "result of a partial write read",
    }, broken


@pytest.mark.parametrize(
    ("producer", "consumer", "needed"),
    [
        ("v_readfirstlane_b32 s8, v9", "buffer_load_dword v20, v1, s[8:11], 0 offen", 5),
        ("v_readfirstlane_b32 s8, v9", "v_readlane_b32 s9, v1, s8", 4),
        ("v_readfirstlane_b32 s8, v9", "v_add_u32_e32 v20, s8, v1", 2),
        ("v_cmp_eq_u32_e32 vcc, v8, v9", "v_div_fmas_f32 v20, v1, v2, v3", 4),
        ("v_cmpx_eq_u32_e32 vcc, v8, v9", "v_mov_b32_dpp v20, v1 row_shr:1", 5),
        ("v_mov_b32_e32 v10, v9", "v_mov_b32_dpp v20, v10 row_shr:1", 2),
        ("v_mov_b32_e32 v10, v9", "v_permlane32_swap_b32_e32 v10, v11", 2),
        ("v_mov_b32_e32 v10, v9", "v_mfma_f32_16x16x16_f16 v[20:23], v[10:11], v[12:13], 0", 2),
        ("v_exp_f32_e32 v10, v9", "v_add_f32_e32 v20, v10, v9", 1),
        ("v_exp_f32_e32 v10, v9", "v_log_f32_e32 v20, v10", 0),
        ("v_max_u16_sdwa v10, v8, v9 dst_sel:WORD_1", "v_add_u32_e32 v20, v10, v9", 1),
        ("global_store_dwordx4 v1, v[8:11], s[4:5]", "v_mov_b32_e32 v10, 0", 2),
        ("buffer_store_dwordx4 v[8:11], v1, s[8:11], 0 offen", "v_mov_b32_e32 v10, 0", 2),
        ("buffer_store_dwordx4 v[8:11], v1, s[8:11], s4 offen", "v_mov_b32_e32 v10, 0", 0),
        ("global_store_dwordx2 v1, v[8:9], s[4:5]", "v_mov_b32_e32 v9, 0", 0),
        ("v_max_u16_sdwa v10, v8, v9 dst_sel:DWORD", "v_add_u32_e32 v20, v10, v9", 0),
    ],
)
def test_each_rule_at_its_border(producer: str, consumer: str, needed: int) -> None:
    for wait in range(needed + 2):
        gap = f"s_nop {wait - 1}\n" if wait else ""
        code = kernel_from(f"{producer}\n{gap}{consumer}", 0).instructions
        assert bool(rules_broken(code)) == (wait < needed), wait
