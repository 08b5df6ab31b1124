"""What is refused by name and place: unknown code, modes and launches that the emulator does not have."""

from __future__ import annotations

import pytest

from emulator.kernel_text import kernel_from, kernel_text
from emulator.strict_launch import launch
from gfx950_emulator import Options, load, run
from gfx950_emulator.errors import (
    CodeObjectError,
    EmulatorError,
    ExecutionError,
    UnsupportedFeature,
    UnsupportedInstruction,
)


def test_unknown_instructions_raise_with_text_and_place() -> None:
    with pytest.raises(UnsupportedInstruction) as caught:
        launch("v_frobnicate_b32 v1, v2")
    assert "no instruction family implements this mnemonic" in str(caught.value)
    assert "pc 3: `v_frobnicate_b32 v1, v2`" in str(caught.value)


def test_running_past_the_end() -> None:
    text = kernel_text("s_nop 0", 0).replace("\ts_endpgm\n", "")
    with pytest.raises(ExecutionError, match="ran past the end"):
        run(load(text)["test_kernel"], None, (1, 1, 1), (64, 1, 1), [])


def test_float_modes_other_than_the_default_are_refused() -> None:
    text = kernel_text("s_nop 0", 0).replace("denorm_mode_32 3", "denorm_mode_32 0")
    with pytest.raises(UnsupportedFeature, match="flushes denormals"):
        run(load(text)["test_kernel"], None, (1, 1, 1), (64, 1, 1), [])


def test_launch_arguments_are_checked() -> None:
    kernel = kernel_from("s_nop 0", 1)
    with pytest.raises(CodeObjectError, match="takes 1 arguments, 0 were given"):
        run(kernel, None, (1, 1, 1), (64, 1, 1), [])
    with pytest.raises(EmulatorError, match="workgroup of 2048 work-items"):
        run(kernel, None, (1, 1, 1), (2048, 1, 1), [0])
    with pytest.raises(EmulatorError, match="must be positive"):
        run(kernel, None, (0, 1, 1), (64, 1, 1), [0])
    with pytest.raises(EmulatorError, match="gfx950 has 163840"):
        run(kernel, None, (1, 1, 1), (64, 1, 1), [0], dynamic_lds=200_000)
    with pytest.raises(EmulatorError, match="order='sideways' is not one of"):
        Options(order="sideways")  # type: ignore[arg-type]
