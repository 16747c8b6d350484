"""What notebooks show of objects: tables in HTML, of bounded size."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from headrace import _headrace

__all__ = ["MAX_ROWS", "batch", "counters", "rows", "table"]

#: The maximum number of rows of a table that are shown, and of characters of a value.
MAX_ROWS: Final = 20
MAX_TEXT: Final = 200
#: The maximum number of fields of a batch that are shown.
MAX_FIELDS: Final = 20


def table(caption: str, columns: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """Return a table of these lines, of which the caller leaves out all but the first `MAX_ROWS`."""
    head = "".join(f"<th>{_cell(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in line)}</tr>" for line in lines)
    return f"<table><caption>{_cell(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def rows(name: str, given: _headrace.Rows) -> str:
    """Return a table of the first rows, whose caption has the number of all."""
    shown = [json.loads(row) for row in given._json_rows(MAX_ROWS)]
    columns = given._columns
    caption = f"{len(given):,} {name}" + (f", the first {len(shown)}" if len(shown) < len(given) else "")
    return table(caption, columns, ([row.get(column) for column in columns] for row in shown))


def batch(given: _headrace.ReadBatch | _headrace.ConsumerBatch) -> str:
    """Return a table of the first rows of a batch: the IDs, and the beginnings of the values of the fields."""
    shown = given._shown_rows(MAX_ROWS, MAX_FIELDS)
    names = list(dict.fromkeys(name for _, fields in shown for name, _ in fields))[:MAX_FIELDS]
    lines = ([entry_id, *(dict(fields).get(name) for name in names)] for entry_id, fields in shown)
    caption = repr(given)[1:-1] + (f", the first {len(shown)}" if len(shown) < len(given) else "")
    return table(caption, ["id", *names], lines)


def counters(stats: Any) -> str:
    """Return a table of the attributes of `Stats` or another class of counters that are one value each."""
    values = [(field.name, getattr(stats, field.name)) for field in fields(stats)]
    single = [(name, value) for name, value in values if not isinstance(value, dict | tuple)]
    return table(type(stats).__name__, ["counter", "value"], single)


def _cell(value: object) -> str:
    if value is None:
        return ""
    text = f"{value:,}" if type(value) is int else str(value)
    text = text.removeprefix("INTERVAL '").removesuffix("' DAY TO SECOND")  # a duration in Spark's JSON
    return html.escape(text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…")
