"""An error in reading the input."""

from __future__ import annotations

from headrace_command.usage_error import UsageError

__all__ = ["InputError"]


class InputError(UsageError):
    """The input is damaged or no longer readable. The rows before that point may have been sent."""
