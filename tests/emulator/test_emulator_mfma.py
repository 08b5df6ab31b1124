"""Matrix instructions at the edges: EXEC, operands that do not fit, forms that are left out."""

from __future__ import annotations

import numpy as np
import pytest

from emulator.kernel_text import run_lanes
from gfx950_emulator.errors import UnsupportedInstruction


def test_exec_does_not_matter() -> None:
    ones = np.full((64, 2), 0x3C003C00, np.uint32)
    body = "s_mov_b64 exec, 0\ns_nop 4\nv_mfma_f32_16x16x16_f16 a[0:3], v[10:11], v[12:13], 1.0"
    result = run_lanes(body, {"v[10:11]": ones, "v[12:13]": ones}, ["a[0:3]"])["a[0:3]"]
    assert (result.view(np.float32) == 17.0).all()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("v_smfmac_f32_16x16x64_bf16 v[20:23], v[10:13], v[14:21], v9", "sparse forms are left out"),
        ("v_mfma_f32_4x4x4_16b_f16 v[20:23], v[10:11], v[12:13], 0", "several blocks"),
        ("v_mfma_f32_16x16x128_f8f6f4 v[20:23], v[10:13], v[14:17], 0 cbsz:5 blgp:4", "cbsz=5 blgp=4"),
        ("v_mfma_f32_16x16x128_f8f6f4 v[20:23], v[10:17], v[14:17], 0 cbsz:4 blgp:4", "operand of 8 registers"),
        ("v_mfma_f32_16x16x16_f16 v[20:23], v[10:11], v[12:13], 0 cbsz:1", "block broadcast"),
    ],
)
def test_refusals(text: str, reason: str) -> None:
    with pytest.raises(UnsupportedInstruction, match=reason):
        run_lanes(text, {"v[10:17]": np.zeros((64, 8), np.uint32)}, ["v20"])
