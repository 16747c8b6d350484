"""Imports pyarrow where it is needed."""

from __future__ import annotations

from typing import Any

from headrace_command.usage_error import UsageError

__all__ = ["pyarrow_for"]


def pyarrow_for(what: str) -> Any:
    """Import pyarrow.

    Raises:
        UsageError: It is not installed.
    """
    try:
        import pyarrow
    except ImportError:
        raise UsageError(f"{what} needs pyarrow: pip install pyarrow") from None
    return pyarrow
