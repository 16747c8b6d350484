"""A writer that adds, drops and retypes columns while a reader follows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from headrace import Dispatcher, Endpoint, Reader
from headrace.testing import LocalServer

SCHEMA = pa.schema({"id": pa.int64(), "sum": pa.float64(), "text": pa.string(), "flag": pa.bool_()})

#: What the writer sends one after the other, and what the reader makes of it.
VERSIONS: list[tuple[pa.Table, list[list[Any]]]] = [
    (pa.table({"id": pa.array([1, 2], pa.int32()), "sum": [1.5, None]}), [[1, 1.5, None, None], [2, None, None, None]]),
    # `text` is added.
    (pa.table({"text": ["a"], "id": pa.array([3], pa.int32()), "sum": [2.5]}), [[3, 2.5, "a", None]]),
    # `id` and `sum` have other types, and there is a column that was not asked for.
    (
        pa.table({"id": [2**40, None], "sum": ["4.5", None], "text": ["b", "c"], "more": [[1], []]}),
        [[2**40, 4.5, "b", None], [None, None, "c", None]],
    ),
    # `sum` is dropped, `text` is a number, `flag` is added.
    (pa.table({"flag": [True], "id": [5], "text": [7]}), [[5, None, "7", True]]),
    # It is text again, and of a type with other memory.
    (pa.table({"id": ["6"], "text": pa.array(["d"]).dictionary_encode()}), [[6, None, "d", None]]),
    # Neither fits.
    (pa.table({"id": ["many"], "sum": [[1.0]], "text": ["e"]}), [[None, None, "e", None]]),
]

Layout = Callable[[pa.Table], dict[str, Any]]
LAYOUTS: dict[str, tuple[str | None, Layout]] = {
    "fields": (None, lambda table: {"fields": [name for name in table.column_names if not _is_list(table, name)]}),
    "json": ("json", lambda _: {"json": True, "rows_per_entry": 2}),
    "arrow_ipc": ("arrow_ipc", lambda _: {"arrow_ipc": True, "codec": "zstd"}),
}


def _is_list(table: pa.Table, name: str) -> bool:
    return bool(pa.types.is_list(table.schema.field(name).type))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_reader_continues_when_columns_are_added_dropped_and_retyped(server: LocalServer, layout: str) -> None:
    endpoint = Endpoint.from_url(server.url, stream_key="s")
    unpack, written = LAYOUTS[layout]
    options: dict[str, Any] = {"unpack": unpack, "schema": SCHEMA, "on_bad_field": "null"}
    everything: list[list[Any]] = []
    with Dispatcher(endpoint) as dispatcher, Reader(endpoint, **options) as reader:
        for table, expected in VERSIONS:
            dispatcher.produce_batch(table, **written(table))
            dispatcher.flush().raise_for_failures()
            rows: list[list[Any]] = []
            while len(rows) < len(expected):
                batch = pa.record_batch(next(reader))
                assert batch.schema == SCHEMA
                rows += [list(row.values()) for row in batch.to_pylist()]
            assert rows == expected
            everything += rows
    with Reader(endpoint, end="latest", **options) as reader:
        assert [list(row.values()) for row in pa.table(reader).to_pylist()] == everything
