"""Conversions of several values at once to bfloat16, e4m3 and e2m1 on gfx950.

An instruction that writes a part of its register keeps the rest, and a successor may read that register one wait state
later only. LLVM does not look for that inside a block, so other instructions stand between, or a nop.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def bfloat16_pairs(even, odd):
    """int32 words of two bfloat16, the even one low."""
    return tl.inline_asm_elementwise(
        "v_cvt_pk_bf16_f32 $0, $1, $2", "=v,v,v", [even, odd], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def four_e4m3(e0, o0, e1, o1, keep):
    """int32 words of four codes, or 0 where `keep` is 0 and not -1."""
    return tl.inline_asm_elementwise(
        """
        v_cvt_pk_fp8_f32 $0, $1, $2
        s_nop 0
        v_cvt_pk_fp8_f32 $0, $3, $4 op_sel:[0,0,1]
        s_nop 0
        v_and_b32 $0, $0, $5
        """,
        "=&v,v,v,v,v,v",
        [e0, o0, e1, o1, keep],
        dtype=tl.int32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def float16_pairs(even, odd):
    """int32 words of two float16, the even one low."""
    return tl.inline_asm_elementwise(
        "v_cvt_pk_f16_f32 $0, $1, $2", "=v,v,v", [even, odd], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def eight_e2m1(p0, p1, p2, p3, keep):
    """int32 words of the codes, to nearest even, saturating, of four words of float16; 0 where `keep` is 0, not -1."""
    return tl.inline_asm_elementwise(
        """
        v_mov_b32 $0, 0
        v_cvt_scalef32_pk_fp4_f16 $0, $1, 1.0
        s_nop 0
        v_cvt_scalef32_pk_fp4_f16 $0, $2, 1.0 op_sel:[0,0,1,0]
        s_nop 0
        v_cvt_scalef32_pk_fp4_f16 $0, $3, 1.0 op_sel:[0,0,0,1]
        s_nop 0
        v_cvt_scalef32_pk_fp4_f16 $0, $4, 1.0 op_sel:[0,0,1,1]
        s_nop 0
        v_and_b32 $0, $0, $5
        """,
        "=&v,v,v,v,v,v",
        [p0, p1, p2, p3, keep],
        dtype=tl.int32,
        is_pure=True,
        pack=1,
    )
