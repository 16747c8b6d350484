"""Letters as lines, and single letters in full."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from headrace.admin import DeadLetter
from headrace_command.output import Output
from headrace_command.text import json_bytes, printable

__all__ = ["Listing", "age"]

_TITLES = ("ID", "AGE", "STREAM", "CODE OR REASON", "FAILURES", "WRITTEN")
_REASON = _TITLES.index("CODE OR REASON")
#: The longest text in a column, in characters. JSON has all of it.
_WIDEST = 60


def age(seconds: float) -> str:
    """Format a duration in its largest unit: `3 h`."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{max(0, int(seconds))} s"


class Listing:
    """Writes letters to an output.

    Args:
        output: Where they go.
        now: The time, in seconds since 1970.
    """

    def __init__(self, output: Output, now: float) -> None:
        self._output = output
        self._now = now

    def write(self, pages: Iterable[Sequence[DeadLetter]]) -> None:
        """Write pages of letters, each as it arrives."""
        if self._output.form == "json":
            self._write_document(pages)
            return
        titles = [_TITLES]
        for page in pages:
            if self._output.form == "jsonl":
                for letter in page:
                    self._output.row(self.row(letter))
            else:
                for line in _aligned(self._fitting([*titles, *map(self._cells, page)])):
                    self._output.text(line)
                titles = []
            self._output.flush()

    def show(self, letter: DeadLetter) -> None:
        """Write one letter with its fields."""
        rows = self._readable_row(letter)
        if self._output.form != "text":
            whole = {
                **self.row(letter),
                "fields": [[json_bytes(name), json_bytes(value)] for name, value in letter.own],
            }
            if rows is not None:
                whole["row"] = rows
            (self._output.row if self._output.form == "jsonl" else self._output.value)(whole)
            return
        writers = {
            "consumer": "a consumer group",
            "spark": "the Spark writer",
            "send": "headrace send",
            "other": "unknown: this is not a dead letter",
        }
        facts = {
            "letter": letter.entry_id,
            "age": age(self._now - letter.milliseconds / 1000),
            "written by": writers[letter.origin],
            "stream": letter.stream,
            "row": letter.place,
            "original ID": letter.original_id,
            "code": letter.code,
            "reason": letter.reason,
            "failures": letter.failures,
            "written": letter.written,
        }
        lines = [(name, printable(value)) for name, value in facts.items() if value is not None]
        lines += [(f"field {printable(name)}", self._content(letter, name, value, rows)) for name, value in letter.own]
        for line in _aligned(lines):
            self._output.text(line)

    def row(self, letter: DeadLetter) -> dict[str, Any]:
        """Return a letter as a JSON object, without its fields."""
        names = ("stream", "original_id", "code", "reason", "written", "place")
        values = {name: value for name in names if (value := getattr(letter, name)) is not None}
        row: dict[str, Any] = {
            "id": letter.entry_id.decode(),
            "timestamp_ms": letter.milliseconds,
            "origin": letter.origin,
        }
        row |= {name: json_bytes(value) for name, value in values.items()}
        if letter.failures is not None:
            digits = letter.failures[:20]
            row["failures"] = int(digits) if digits.isdigit() else json_bytes(letter.failures)
        row["bytes"] = letter.size
        return row

    def _fitting(self, rows: Sequence[Sequence[str]]) -> list[Sequence[str]]:
        """The rows, with the column of reasons cut so that each row fits on one line of the terminal."""
        widths = [max(map(len, column)) + 2 for column in zip(*rows, strict=True)]
        room = max(self._output.width - sum(widths) + widths[_REASON] - 1, len(_TITLES[_REASON]))
        if not self._output.is_terminal:
            return list(rows)
        return [(*row[:_REASON], _cut(row[_REASON], room), *row[_REASON + 1 :]) for row in rows]

    def _cells(self, letter: DeadLetter) -> Sequence[str]:
        why = letter.code or letter.reason or (b"" if letter.origin != "other" else b"(not a dead letter)")
        parts = (letter.stream or b"-", why or b"-", letter.failures or b"-", letter.written or b"-")
        return (letter.entry_id.decode(), age(self._now - letter.milliseconds / 1000), *map(_short, parts))

    def _write_document(self, pages: Iterable[Sequence[DeadLetter]]) -> None:
        """Write an array as its letters arrive: a stream may have any number of them."""
        separator = b"["
        for page in pages:
            for letter in page:
                text = json.dumps(self.row(letter), ensure_ascii=self._output.is_terminal)
                self._output.payload(separator, end=b"\n")
                self._output.payload(b"  " + text.encode("utf-8", "surrogatepass"), end=b"")
                separator = b","
        if separator == b"[":
            self._output.payload(b"[]")
        else:
            self._output.payload(b"", end=b"\n")
            self._output.payload(b"]")

    def _content(self, letter: DeadLetter, name: bytes, value: bytes, rows: Any) -> str:
        if letter.row is None or name != b"row":
            return printable(value)
        if rows is None:
            return f"a row as an Arrow IPC stream of {len(value)} bytes, which pyarrow shows"
        return printable(json.dumps(rows, ensure_ascii=False, default=str))

    @staticmethod
    def _readable_row(letter: DeadLetter) -> dict[str, str | None] | None:
        """The row of a Spark letter, its values as text; None without pyarrow, or if the row cannot be read."""
        if letter.row is None:
            return None
        try:
            import pyarrow as pa
        except ImportError:
            return None
        from headrace import HeadraceError, unpack_arrow

        try:
            (row,) = pa.table(unpack_arrow(dict(letter.own), "row")).to_pylist()
        except (HeadraceError, ValueError, pa.ArrowException):
            return None
        return {name: value if value is None else str(value) for name, value in row.items()}


def _short(value: bytes) -> str:
    return _cut(printable(value[: 4 * _WIDEST]), _WIDEST)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
