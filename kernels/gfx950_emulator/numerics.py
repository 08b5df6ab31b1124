"""How the result of each instruction relates to silicon: the table of docs/gfx950-emulator.md."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gfx950_emulator.isa import vector
from gfx950_emulator.isa.packed import PACKED
from gfx950_emulator.isa.scalar_tables import BINARY, SAVE_EXEC, UNARY
from gfx950_emulator.isa.vector_operation import OPERATIONS

START, END = "<!-- numerics: generated -->", "<!-- /numerics -->"


@dataclass(frozen=True)
class Category:
    """Instructions with the same relation to silicon; the first category whose pattern matches counts."""

    title: str
    meaning: str
    pattern: str

    def matches(self, mnemonic: str) -> bool:
        return re.match(self.pattern, mnemonic) is not None


CATEGORIES = (
    Category(
        "order-dependent",
        'Decoded operands in float64, one rounding an instruction (`mfma="sequential"`: float32 fused chain in k '
        "order). Silicon's order and intermediate width are not published: equal where all partial sums are exact.",
        r"v_mfma_(scale_)?f(32|64)|v_dot2|.*_atomic_(pk_add|add_f)|ds_(pk_)?add_(rtn_)?f",
    ),
    Category(
        "1 ulp on silicon",
        "Correctly rounded here; silicon approximates to about one unit in the last place (float64 forms: more).",
        r"v_(rcp|rsq|sqrt|exp|log|sin|cos)(_iflag|_legacy)?_f",
    ),
    Category(
        "assumed",
        "AMD's text is silent or wrong on a corner: v_div_scale where reciprocal and quotient are subnormal; "
        "v_div_fmas rounds once, after scaling; conversions to fp8 and bf8 of infinities without FP16_OVFL; a scale of "
        "exponent 255. The division sequence as a whole is exact in tests.",
        r"v_div_(scale|fmas)|v_cvt_scalef32|v_cvt_(pk|sr)_(fp8|bf8)",
    ),
    Category(
        "IEEE",
        "Correctly rounded, nearest even, denormals kept, as IEEE 754 and the manual say. NaN payloads and signs are "
        "not modelled.",
        r"v_(pk_)?(add|sub|subrev|mul|fma|fmac|fmaak|fmamk|mad|mad_legacy|mul_legacy|ldexp|fract|div_fixup)"
        r"(_legacy)?_f\d+|v_cvt_(f16|f32|f64|pk_bf16|pk_f16|pkrtz|pknorm)",
    ),
    Category(
        "exact",
        "Integers, bits, moves, comparisons, minimum and maximum, conversions to integers, lane moves, memory.",
        r"",
    ),
)
_FAMILIES = (
    "v_mfma_f32_*",
    "v_mfma_f64_16x16x4_f64",
    "v_mfma_i32_*",
    "v_mfma_scale_f32_*",
    "v_cvt_f16_f32",
    "v_cvt_f32_fp8",
    "v_cvt_pk_f32_fp8",
    "v_cvt_pk_fp8_f32",
    "v_cvt_sr_fp8_f32",
    "v_cvt_scalef32_pk_*",
    "v_div_scale_f32",
    "v_div_scale_f64",
    "v_div_fmas_f32",
    "v_div_fmas_f64",
    "v_cmp_*",
    "v_cmpx_*",
    "v_cndmask_b32",
    "v_bitop3_b16",
    "v_bitop3_b32",
    "v_pk_mov_b32",
    "v_add_co_u32",
    "v_addc_co_u32",
    "v_sub_co_u32",
    "v_subb_co_u32",
    "v_mad_u64_u32",
    "v_mad_i64_i32",
    "v_readlane_b32",
    "v_readfirstlane_b32",
    "v_writelane_b32",
    "v_swap_b32",
    "v_permlane16_swap_b32",
    "v_permlane32_swap_b32",
    "ds_read_*",
    "ds_write_*",
    "ds_read_b64_tr_*",
    "ds_bpermute_b32",
    "ds_permute_b32",
    "ds_swizzle_b32",
    "ds_add_f32",
    "global_*",
    "buffer_*",
    "flat_*",
    "scratch_*",
    "s_load_*",
    "s_buffer_load_*",
    "s_cmp_*",
    "s_bitcmp*",
    "s_bitset*",
    "s_cselect_*",
    "global_atomic_add_f32",
    "global_atomic_pk_add_bf16",
)


def implemented() -> list[str]:
    """Every mnemonic of the tables, and a pattern for each family that is decoded by name."""
    assert vector.TABLES, "importing the vector family fills OPERATIONS"
    return sorted({*OPERATIONS, *PACKED, *UNARY, *BINARY, *SAVE_EXEC, *_FAMILIES})


def category_of(mnemonic: str) -> Category:
    """The category of a mnemonic."""
    return next(category for category in CATEGORIES if category.matches(mnemonic))


def markdown() -> str:
    """The table, between its markers."""
    lines = [START, "| relation to silicon | what that means | instructions |", "|---|---|---|"]
    for category in CATEGORIES:
        names = [name for name in implemented() if category_of(name) is category]
        lines.append(f"| {category.title} | {category.meaning} | {', '.join(f'`{name}`' for name in names)} |")
    return "\n".join([*lines, END])
