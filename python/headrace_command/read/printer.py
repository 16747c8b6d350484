"""Writes entries and their rows in the requested form."""

from __future__ import annotations

import json
from codecs import getincrementaldecoder
from collections.abc import Sequence
from typing import Any

from headrace_command.escape import json_bytes, printable
from headrace_command.output import Output
from headrace_command.read.entry import Entry
from headrace_command.read.rows import Row

__all__ = ["Printer"]

#: The most bytes of a value on a terminal.
_SHOWN = 200


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
