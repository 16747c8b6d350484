"""What is printed of an entry, its fields or the rows that are packed in it, and in which form."""

from __future__ import annotations

import json
from codecs import getincrementaldecoder
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from headrace_command.output import Output
from headrace_command.text import json_bytes, printable

__all__ = ["Entry", "Printer", "Row", "Rows"]

#: The last millisecond of the year 9999.
_LAST = 253_402_300_799_999
#: The most bytes of a value on a terminal.
_SHOWN = 200


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
        from headrace.admin import json_rows

        fields = {name.replace("\\\\", "\\"): value for name, value in entry.fields or ()}
        if self._unpack == "arrow_ipc":
            payloads = json_rows(unpack_arrow(fields, self._payload_field))
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


class Printer:
    """Writes to stdout, one entry or row at a time.

    Args:
        output: Stdout, with its form.
        fields: The fields to print, None for all.
        names_stream: Whether text output names the stream of each entry.
    """

    def __init__(self, output: Output, fields: Sequence[str] | None, *, names_stream: bool) -> None:
        self._output = output
        self._fields = fields
        self._names_stream = names_stream
        self._written = 0

    def begin(self) -> None:
        """Write what precedes the first entry."""
        if self._output.form == "json":
            self._output.payload(b"[", end=b"")

    def end(self) -> None:
        """Write what follows the last entry."""
        if self._output.form == "json":
            if self._written:
                self._output.payload(b"")  # the end of the last line
            self._output.payload(b"]")

    def entry(self, stream: bytes, entry: Entry) -> None:
        """Write an entry with its fields."""
        fields = entry.fields
        if fields is not None and self._fields is not None:
            fields = [(name, value) for wanted in self._fields for name, value in fields if name == wanted]
        if self._output.form == "text":
            shown = "(deleted)" if fields is None else "  ".join(f"{printable(n)}={self._shown(v)}" for n, v in fields)
            self._text(stream, entry, shown)
        else:
            self._object(stream, entry, {"fields": None if fields is None else _members(fields)})

    def row(self, stream: bytes, entry: Entry, place: int, row: Row) -> None:
        """Write one of the rows of an entry."""
        if self._output.form == "text":
            self._text(stream, entry, f"[{place}]  {self._shown(row.payload)}")
        else:
            self._object(stream, entry, {"row": place, "payload": row.value})

    def _text(self, stream: bytes, entry: Entry, shown: str) -> None:
        key = f"{printable(stream)}  " if self._names_stream else ""
        time = entry.timestamp or "-"
        self._output.text(f"{key}{entry.id}  {time}  {shown}")

    def _shown(self, value: bytes) -> str:
        """A value on one line; on a terminal, only its beginning."""
        is_long = self._output.is_terminal and len(value) > _SHOWN
        if not is_long:
            return printable(value)
        # A character that is cut in half is left out.
        text = getincrementaldecoder("utf-8")("surrogateescape").decode(value[:_SHOWN])
        return f"{printable(text)}… ({len(value):,} bytes)"

    def _object(self, stream: bytes, entry: Entry, more: dict[str, Any]) -> None:
        value = {"id": entry.id, "timestamp": entry.timestamp, "stream": json_bytes(stream), **more}
        if self._output.form == "jsonl":
            self._output.row(value)
            return
        text = json.dumps(value, ensure_ascii=self._output.is_terminal)
        self._output.payload(b"," if self._written else b"")
        self._output.payload(b"  " + text.encode("utf-8", "surrogatepass"), end=b"")
        self._written += 1


def _members(fields: list[tuple[str, bytes]]) -> dict[str, Any]:
    """The fields as an object; a name that occurs several times has an array of its values."""
    members: dict[str, Any] = {}
    repeated = set()
    for name, value in fields:
        shown = json_bytes(value)
        if name not in members:
            members[name] = shown
        elif name in repeated:
            members[name].append(shown)
        else:
            members[name] = [members[name], shown]
            repeated.add(name)
    return members
