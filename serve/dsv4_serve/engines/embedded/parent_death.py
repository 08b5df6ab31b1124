"""A child that ends with its parent, however the parent ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """Have the kernel send SIGTERM when the thread that started this process ends; `parent` is its pid.

    Linux only; elsewhere nothing happens. Raises `SystemExit` when the parent is gone already.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    # The parent may have ended before the call; then no signal will ever come.
    if os.getppid() != parent:
        raise SystemExit("the process that started this one is gone")
