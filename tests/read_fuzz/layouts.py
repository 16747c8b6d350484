"""The layouts of the writer: which columns each of them takes, how it is written, and how it is read."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import types

from .tables import PAYLOADS

_Random = random.Random


@dataclass(frozen=True)
class Layout:
    """How a table is written and read back."""

    name: str
    #: The rows and columns that it takes.
    part: Callable[[pa.Table], pa.Table]
    #: The keywords of `produce_batch`.
    written: Callable[[_Random, pa.Table], dict[str, Any]]
    #: That of `Reader`.
    unpack: str | None = None
    #: Whether timestamps come back with milliseconds, as docs/reading.md says.
    is_cut: bool = False


def _below(kind: pa.DataType) -> Iterator[pa.DataType]:
    """The type and those within it."""
    yield kind
    if types.is_map(kind):
        yield from (below for part in (kind.key_type, kind.item_type) for below in _below(part))
    elif types.is_struct(kind):
        yield from (below for field in kind for below in _below(field.type))
    elif types.is_nested(kind):
        yield from _below(kind.value_type)


def _with_types(table: pa.Table, takes: Callable[[pa.DataType], bool]) -> pa.Table:
    return table.select([field.name for field in table.schema if takes(field.type)])


def _flat(table: pa.Table) -> pa.Table:
    numbers = pa.array(range(table.num_rows), pa.int64())
    # An entry without a field is refused, as of a row with nulls only.
    return _with_types(table, lambda kind: not types.is_nested(kind)).append_column("row", numbers)


def _payloads(table: pa.Table) -> pa.Table:
    table = _with_types(table, lambda kind: kind in PAYLOADS)
    if not table.num_columns:
        return table
    field = table.schema.field(0)
    # A null payload is refused.
    return pa.table({field.name: pa.array([value for value in table[0].to_pylist() if value is not None], field.type)})


def _without_dictionaries_within(table: pa.Table) -> pa.Table:
    def takes(kind: pa.DataType) -> bool:
        return not types.is_nested(kind) or not any(types.is_dictionary(below) for below in _below(kind))

    return _with_types(table, takes)


def _rows(random: _Random) -> dict[str, Any]:
    return {"rows_per_entry": random.choice([1, 1, 2, 7, 100])}


def _arrow_ipc(random: _Random, _: pa.Table) -> dict[str, Any]:
    return {"arrow_ipc": True, "codec": random.choice([None, "lz4", "zstd"]), **_rows(random)}


LAYOUTS = [
    Layout("fields", _flat, lambda _, table: {"fields": table.column_names}),
    Layout(
        "payload",
        _payloads,
        lambda random, table: {"payload": table.column_names[0], **_rows(random)},
        unpack="payload",
    ),
    Layout("json", lambda table: table, lambda random, _: {"json": True, **_rows(random)}, unpack="json", is_cut=True),
    Layout("arrow_ipc", _without_dictionaries_within, _arrow_ipc, unpack="arrow_ipc"),
]
