"""Words of texts for people."""

from __future__ import annotations

__all__ = ["counted"]


def counted(count: int, noun: str = "message", plural: str = "messages") -> str:
    """A number with its noun: of messages, or of others."""
    return f"{count:,} {noun if count == 1 else plural}"
