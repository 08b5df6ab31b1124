"""Settings of the emulator's tests."""

from __future__ import annotations

import os

import torch

# Triton 3.9 warns when this is unset; warnings are errors here.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
torch.set_num_threads(1)
