"""An entry that was read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

__all__ = ["Entry"]

#: The last millisecond of the year 9999.
_LAST = 253_402_300_799_999


class Entry(NamedTuple):
    """An entry: its ID, the milliseconds of the ID, and its fields in order, or None if it was deleted."""

    id: str
    milliseconds: int
    fields: list[tuple[str, bytes]] | None

    @property
    def timestamp(self) -> str | None:
        """The time of the ID in ISO 8601; None after the year 9999."""
        if self.milliseconds > _LAST:
            return None
        seconds, rest = divmod(self.milliseconds, 1000)
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:03}Z"
