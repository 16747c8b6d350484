"""What notebooks show of objects: tables in HTML, of bounded size."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from headrace.failure import Failure
from headrace.tables import COUNTERS
from headrace.wording import counted

if TYPE_CHECKING:
    from headrace import _headrace

__all__ = ["MAX_ROWS", "batch", "counters", "failures", "rows", "shown", "table"]

#: The maximum number of rows of a table that are shown, and of characters of a value.
MAX_ROWS: Final = 20
MAX_TEXT: Final = 200
#: The maximum number of fields of a batch that are shown.
MAX_FIELDS: Final = 20

#: The counters that are times, in seconds since 1970.
_TIMES: Final = {counter.name for counters in COUNTERS.values() for counter in counters if counter.age}


def table(caption: str, columns: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """Return a table of these lines, of which the caller leaves out all but the first `MAX_ROWS`."""
    head = "".join(f"<th>{_cell(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in line)}</tr>" for line in lines)
    return f"<table><caption>{_cell(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def rows(given: _headrace.Rows, noun: str, plural: str) -> str:
    """Return a table of the first rows, whose caption has the number of all."""
    shown = [json.loads(row) for row in given._json_rows(MAX_ROWS)]
    columns = given._columns
    caption = _first(counted(len(given), noun, plural), len(shown), len(given))
    return table(caption, columns, ([row.get(column) for column in columns] for row in shown))


def batch(given: _headrace.ReadBatch | _headrace.ConsumerBatch | _headrace.ShardBatch) -> str:
    """Return a table of the first rows of a batch: the IDs, and the beginnings of the values of the fields."""
    shown = given._shown_rows(MAX_ROWS, MAX_FIELDS + 1)
    names = list(dict.fromkeys(name for _, fields in shown for name, _ in fields))
    more = ["…"] if len(names) > MAX_FIELDS else []
    names = names[:MAX_FIELDS]
    lines = ([entry_id, *map(dict(fields).get, names)] for entry_id, fields in shown)
    caption = _first(repr(given)[1:-1], len(shown), len(given))
    return table(caption, ["entry_id", *names, *more], lines)


def failures(report: str, first: Sequence[Sequence[object]], count: int) -> str:
    """Return a table of the first failures of a report, under its counts."""
    return table(_first(report, len(first), count), [field.name for field in fields(Failure)], first)


def counters(stats: Any) -> str:
    """Return a table of the attributes of `Stats` or another class of counters that are one value each."""
    values = {field.name: getattr(stats, field.name) for field in fields(stats)}
    single = {name: value for name, value in values.items() if not isinstance(value, dict | tuple)}
    return table(type(stats).__name__, ["counter", "value"], ((name, shown(name, single[name])) for name in single))


def shown(name: str, value: object) -> object:
    """Return the value of a counter as a table shows it: a time in UTC, other fractions with six digits."""
    if isinstance(value, float):
        return datetime.fromtimestamp(value, UTC).isoformat(" ", "milliseconds") if name in _TIMES else f"{value:,.6g}"
    return value


def _first(caption: str, count: int, of_all: int) -> str:
    return f"{caption}, the first {count}" if count < of_all else caption


def _cell(value: object) -> str:
    if value is None:
        return ""
    text = f"{value:,}" if type(value) is int else str(value)
    if text.startswith("INTERVAL '"):  # a duration in Spark's JSON: days, hours, minutes and seconds
        text = text.removeprefix("INTERVAL '").removesuffix("' DAY TO SECOND").removeprefix("0 ")
    return html.escape(text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…")
