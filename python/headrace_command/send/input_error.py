"""The end of an input that cannot be read."""

from __future__ import annotations

from headrace_command.usage_error import UsageError

__all__ = ["InputError"]


class InputError(UsageError):
    """The input is damaged, or went away. Rows before that may have been sent."""
