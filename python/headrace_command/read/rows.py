"""What is printed of an entry: its fields, or the rows that are packed in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from headrace_command.escape import json_bytes
from headrace_command.read.entry import Entry

__all__ = ["Row", "Rows"]


class Row(NamedTuple):
    """A row of an entry.

    Attributes:
        payload: Its bytes as they are stored, or as JSON for a row of an Arrow IPC stream.
        value: Its value in JSON output.
    """

    payload: bytes
    value: Any


class Rows:
    """Unpacks entries.

    Args:
        unpack: "payload", "json" or "arrow_ipc".
        payload_field: The name of the field with the payload.
        members: The members or columns to keep, None for all.
    """

    def __init__(self, unpack: str, payload_field: str, members: Sequence[str] | None) -> None:
        self._unpack = unpack
        self._payload_field = payload_field
        self._members = members

    def of(self, entry: Entry) -> list[Row]:
        """Return the rows of an entry.

        Raises:
            MessageError, ValueError: It has no such rows.
        """
        from headrace import unpack, unpack_arrow

        fields = {name.replace("\\\\", "\\"): value for name, value in entry.fields or ()}
        if self._unpack == "arrow_ipc":
            payloads = unpack_arrow(fields, self._payload_field)._json_rows()
        else:
            payloads = unpack(fields, self._payload_field)
        if self._unpack == "payload":
            return [Row(payload, json_bytes(payload)) for payload in payloads]
        return [self._row(payload) for payload in payloads]

    def _row(self, payload: bytes) -> Row:
        value = json.loads(payload)
        if self._members is None:
            return Row(payload, value)
        if not isinstance(value, dict):
            raise ValueError("the payload is not a JSON object")
        kept = {name: value[name] for name in self._members if name in value}
        return Row(json.dumps(kept, ensure_ascii=False).encode(), kept)
