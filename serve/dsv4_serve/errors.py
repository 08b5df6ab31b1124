"""Errors that end a command: each carries the exit code that the contract gives it."""

from __future__ import annotations


class CommandError(Exception):
    """A message for the user; `exit_code` is 1 failed, 2 usage, 3 preflight."""

    exit_code = 1


class UsageError(CommandError):
    """What was asked for is not something that can be asked for."""

    exit_code = 2


class PreflightError(CommandError):
    """What was asked for cannot be served here."""

    exit_code = 3
