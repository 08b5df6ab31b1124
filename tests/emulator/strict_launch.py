"""A few lines of code over one buffer, run with every check on."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from emulator.kernel_text import kernel_from
from gfx950_emulator import LaunchRecord, Options, run

Buffer = npt.NDArray[np.uint32]
PROLOGUE = """s_load_dwordx2 s[4:5], s[0:1], 0x0
s_waitcnt lgkmcnt(0)
v_lshlrev_b32_e32 v1, 2, v0
"""


def launch(
    body: str,
    buffer: Buffer | None = None,
    items: int = 64,
    lds: int = 0,
    scratch: int = 0,
    options: Options | None = None,
) -> LaunchRecord:
    """Run a body with one buffer at s[4:5] and v1 = 4 * work-item."""
    buffer = np.zeros(items, np.uint32) if buffer is None else buffer
    kernel = kernel_from(PROLOGUE + body, 1, lds, scratch)
    return run(kernel, None, (1, 1, 1), (items, 1, 1), [buffer], options=options)
