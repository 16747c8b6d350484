"""How the entries of a schedule are written, by redis-py, and what becomes of them in a reader's batch."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace import ReadBatch

from .chain import Row
from .world import Entry, id_of

_SCHEMA = pa.schema([("v", pa.string())])


@dataclass(frozen=True)
class Packing:
    """A layout: the fields of an entry, and the options of a reader of them."""

    fields: Callable[[Entry], dict[str, str | bytes]]
    options: Callable[[], dict[str, Any]]
    has_rows: bool = True

    def rows(self, batch: ReadBatch) -> list[Row]:
        """The rows of a batch. Each value is the number of its entry and that of the row in it."""
        table = pa.record_batch(batch)
        ids = table.column("entry_id").to_pylist()
        if "fields" in table.schema.names:
            values = [dict(fields)["v"].decode() for fields in table.column("fields").to_pylist()]
        else:
            values = [value if isinstance(value, str) else value.decode() for value in table.column("v").to_pylist()]
        places = table.column("row_in_entry").to_pylist() if self.has_rows else [0] * len(ids)
        rows = []
        for entry_id, value, place in zip(ids, values, places, strict=True):
            number, _, row = value.partition(".")
            # A row that is not where it says is none of any entry.
            rows.append(Row(id_of(entry_id), int(number) if int(row) == place else -1, place))
        return rows


def _values(entry: Entry) -> list[str]:
    return [f"{entry.number}.{row}" for row in range(entry.rows)]


def _numbered(values: list[str]) -> dict[str, str | bytes]:
    return {f"payload:{place}": value for place, value in enumerate(values)}


def _stream(values: list[str]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA) as writer:
        writer.write_batch(pa.record_batch({"v": pa.array(values, pa.string())}))
    return bytes(sink.getvalue())


def _unpacking(unpack: str) -> Callable[[], dict[str, Any]]:
    return functools.partial(dict[str, Any], unpack=unpack, schema=_SCHEMA, metadata=["entry_id", "row_in_entry"])


PACKINGS = {
    "fields": Packing(lambda entry: {"v": _values(entry)[0]}, dict, has_rows=False),
    "columns": Packing(
        lambda entry: {"v": _values(entry)[0]}, lambda: {"fields": ["v"], "metadata": ["entry_id"]}, has_rows=False
    ),
    "payload": Packing(lambda entry: _numbered(_values(entry)), _unpacking("payload")),
    "json": Packing(
        lambda entry: _numbered([json.dumps({"v": value}) for value in _values(entry)]), _unpacking("json")
    ),
    "arrow_ipc": Packing(lambda entry: {"payload": _stream(_values(entry))}, _unpacking("arrow_ipc")),
}
