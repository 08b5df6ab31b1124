"""What the kernels raise. Every message names the argument, its value and what would be accepted."""

from __future__ import annotations


class ArgumentError(ValueError):
    """An argument has a wrong type, shape, stride, device or value."""

    def __init__(self, name: str, value: object, accepted: str) -> None:
        super().__init__(f"{name}={value}: accepted is {accepted}")
        self.name = name


class LayoutMismatchError(ValueError):
    """Two sides hold different layouts, quantisation conventions or rotations, and would misread each other's
    bytes.
    """


class BackendUnavailableError(RuntimeError):
    """A backend that was asked for cannot serve an operation; the message says why."""
