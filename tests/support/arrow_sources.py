"""The libraries that export Arrow data, and columns that each of them exports in its own way.

`python -m support.arrow_sources --unix-socket PATH --sources polars` prints the differences as JSON, so that a process
with another version of a library can be used.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Container
from typing import Any

import pyarrow as pa
import redis

import headrace
from headrace import Dispatcher, Endpoint
from support.json_rows import read_row, wanted_rows

#: The rows of a column, and the slice of them that a source exports: errors are most likely in offsets.
ROWS, FIRST, COUNT = 17, 3, 10

_TEXTS = ["", "a", "é", "x" * 12, "x" * 13, "longer than an inline view"]


def _values(make: Callable[[int], Any]) -> list[Any]:
    """Values with some nulls, in the slice too."""
    return [None if number % 5 == 4 else make(number) for number in range(ROWS)]


def _text(number: int) -> str:
    return _TEXTS[number % len(_TEXTS)]


def _struct(number: int) -> dict[str, Any] | None:
    return None if number % 4 == 3 else {"a": number, "b": _text(number)}


_PAIR = pa.struct([("a", pa.int64()), ("b", pa.string())])
_WORDS = pa.dictionary(pa.int32(), pa.string())

COLUMNS: dict[str, pa.Array] = {
    "int": pa.array(_values(int), pa.int64()),
    "text": pa.array(_values(_text), pa.string()),
    "struct": pa.array(_values(_struct), _PAIR),
    "struct of struct": pa.array(
        _values(lambda n: {"s": _struct(n), "c": n}), pa.struct([("s", _PAIR), ("c", pa.int8())])
    ),
    "fixed-size list": pa.array(_values(lambda n: [n, None]), pa.list_(pa.int64(), 2)),
    "fixed-size list of struct": pa.array(_values(lambda n: [_struct(n), _struct(n + 1)]), pa.list_(_PAIR, 2)),
    "list of struct": pa.array(_values(lambda n: [_struct(n + i) for i in range(n % 3)]), pa.list_(_PAIR)),
    "list of list": pa.array(_values(lambda n: [[n], None, []][: n % 4]), pa.list_(pa.list_(pa.int64()))),
    "struct of list": pa.array(
        _values(lambda n: {"l": [_text(n)] * (n % 3)}), pa.struct([("l", pa.list_(pa.string()))])
    ),
    "map": pa.array(_values(lambda n: [(_text(n), n), ("none", None)]), pa.map_(pa.string(), pa.int64())),
    "map of struct": pa.array(_values(lambda n: [("k", _struct(n))]), pa.map_(pa.string(), _PAIR)),
    "struct of map": pa.array(
        _values(lambda n: {"m": [("k", n)]}), pa.struct([("m", pa.map_(pa.string(), pa.int64()))])
    ),
    "null": pa.nulls(ROWS),
    "struct of null": pa.array(
        _values(lambda n: {"n": None, "a": n}), pa.struct([("n", pa.null()), ("a", pa.int64())])
    ),
    "list of null": pa.array(_values(lambda n: [None] * (n % 3)), pa.list_(pa.null())),
    "empty lists": pa.array([[]] * ROWS, pa.list_(pa.null())),
    "dictionary": pa.array(_values(_text), _WORDS),
    "struct of dictionary": pa.array(_values(lambda n: {"d": _text(n)}), pa.struct([("d", _WORDS)])),
    "list of dictionary": pa.array(_values(lambda n: [_text(n)] * (n % 3)), pa.list_(_WORDS)),
    "text view": pa.array(_values(_text), pa.string_view()),
    "bytes view": pa.array(_values(lambda n: _text(n).encode()), pa.binary_view()),
    "list of text view": pa.array(_values(lambda n: [_text(n), None]), pa.list_(pa.string_view())),
}

Source = Callable[[pa.Table], Any]


def _part(table: pa.Table) -> pa.Table:
    return table.slice(FIRST, COUNT)


def _batch(table: pa.Table) -> pa.RecordBatch:
    return table.combine_chunks().to_batches()[0]


def _chunks(table: pa.Table) -> pa.Table:
    return pa.concat_tables([table.slice(FIRST, 4), table.slice(FIRST + 4, 1), table.slice(FIRST + 5, COUNT - 5)])


def _generator(table: pa.Table) -> pa.RecordBatchReader:
    batch = _batch(table)
    return pa.RecordBatchReader.from_batches(table.schema, (batch.slice(FIRST + n, 1) for n in range(COUNT)))


def _scanner(table: pa.Table) -> pa.RecordBatchReader:
    import pyarrow.dataset

    return pyarrow.dataset.dataset(_part(table)).scanner(batch_size=4).to_reader()


def _pandas(table: pa.Table, **options: Any) -> Any:
    return table.to_pandas(**options).iloc[FIRST : FIRST + COUNT]


def _pandas_arrow(table: pa.Table) -> Any:
    import pandas as pd

    return _pandas(table, types_mapper=pd.ArrowDtype)


def _polars(table: pa.Table) -> Any:
    import polars as pl

    return pl.DataFrame(table).slice(FIRST, COUNT)


def _polars_rows(table: pa.Table) -> Any:
    """Rows from Python values, so that polars infers the types."""
    import polars as pl

    rows = _part(table).to_pylist()
    return pl.DataFrame({name: [row[name] for row in rows] for name in table.column_names}, strict=False)


def _duckdb(table: pa.Table) -> Any:
    import duckdb

    return duckdb.connect().from_arrow(table).limit(COUNT, FIRST)


def _nanoarrow(table: pa.Table) -> Any:
    import nanoarrow

    return nanoarrow.ArrayStream(_part(table))


def _nanoarrow_array(table: pa.Table) -> Any:
    import nanoarrow

    return nanoarrow.c_array(_batch(table).slice(FIRST, COUNT))


def _arro3(table: pa.Table) -> Any:
    from arro3.core import Table

    return Table.from_arrow(table).slice(FIRST, COUNT)


def _arro3_batch(table: pa.Table) -> Any:
    from arro3.core import RecordBatch

    return RecordBatch.from_arrow(_batch(table)).slice(FIRST, COUNT)


def _arro3_reader(table: pa.Table) -> Any:
    # With its own slices: with nested slices of pyarrow, a reader of arro3 0.9 aborts the process, whatever reads it.
    return _arro3(table).to_reader()


#: The sources by name. The elements of a list are passed one by one.
SOURCES: dict[str, Source] = {
    "pyarrow table": _part,
    "pyarrow record batch": lambda table: _batch(table).slice(FIRST, COUNT),
    "pyarrow chunks": _chunks,
    "pyarrow to_batches": lambda table: _part(table).to_batches(max_chunksize=3),
    "pyarrow to_reader": lambda table: _part(table).to_reader(max_chunksize=3),
    "pyarrow generator": _generator,
    "pyarrow scanner": _scanner,
    "pandas numpy": _pandas,
    "pandas ArrowDtype": _pandas_arrow,
    "polars": _polars,
    "polars rows": _polars_rows,
    "polars to_arrow": lambda table: _polars(table).to_arrow(),
    "duckdb relation": _duckdb,
    "duckdb to_arrow_table": lambda table: _duckdb(table).to_arrow_table(),
    "duckdb reader": lambda table: _duckdb(table).to_arrow_reader(3),
    "nanoarrow stream": _nanoarrow,
    "nanoarrow array": _nanoarrow_array,
    "arro3 table": _arro3,
    "arro3 record batch": _arro3_batch,
    "arro3 reader": _arro3_reader,
}

#: The columns with maps: polars 1 has no type for them.
MAPS = {name for name in COLUMNS if "map" in name}

#: The columns that a source itself cannot export.
UNABLE: dict[str, set[str]] = {
    # A list of pairs has no type; integers with nulls are floats to numpy; pyarrow makes no objects of views in lists.
    "pandas numpy": {*MAPS, "int", "list of text view"},
    "polars rows": MAPS,
    # nanoarrow 0.9 damages the process's memory when it exports an array with views; its streams are right.
    "nanoarrow array": {"text view", "bytes view", "list of text view"},
}


def differences(source: str, unix_socket: str, without: Container[str] = ()) -> dict[str, str]:
    """Send each column from a source, as JSON and as Arrow IPC; returns which columns differed or failed, and how."""
    found: dict[str, str] = {}
    client: Any = redis.Redis(unix_socket_path=unix_socket)
    with Dispatcher(Endpoint(unix_socket=unix_socket, stream_key=f"from {source}")) as dispatcher:
        for name, column in COLUMNS.items():
            if name in without or name in UNABLE.get(source, ()):
                continue
            # An additional column that no layout uses must not matter either.
            table = pa.table({"id": range(ROWS), "value": column})
            for layout in ({"json": True}, {"arrow_ipc": True, "rows_per_entry": 4}, {"fields": ["id"]}):
                try:
                    _send(dispatcher, SOURCES[source](table), layout)
                    entries = [fields for _, fields in client.xrange(f"from {source}")]
                    if difference := _difference(entries, _part(table), layout):
                        found[f"{name}, {', '.join(layout)}"] = difference
                except Exception as error:
                    found[f"{name}, {', '.join(layout)}"] = repr(error)
                client.flushall()
    client.close()
    return found


def _send(dispatcher: Dispatcher, data: Any, layout: dict[str, Any]) -> None:
    for one in data if isinstance(data, list) else [data]:
        dispatcher.produce_batch(one, **layout)
    dispatcher.flush().raise_for_failures()


def _difference(entries: list[dict[bytes, bytes]], expected: pa.Table, layout: dict[str, Any]) -> str:
    got: list[Any]
    wanted: list[Any]
    if "json" in layout:
        got, wanted = [read_row(fields[b"payload"]) for fields in entries], wanted_rows(expected)
    elif "fields" in layout:
        got, wanted = [int(fields[b"id"]) for fields in entries], expected["id"].to_pylist()
    else:
        got = [row for fields in entries for row in pa.table(headrace.unpack_arrow(fields)).to_pylist()]
        wanted = expected.to_pylist()
    return "" if got == wanted else f"{got} where {wanted} was to be"


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--unix-socket", required=True)
    parser.add_argument("--sources", required=True, help="what their names begin with")
    parser.add_argument("--without", nargs="*", default=[], help="columns")
    given = parser.parse_args()
    chosen = [source for source in SOURCES if source.startswith(given.sources)]
    module = __import__(given.sources)
    found = {source: differences(source, given.unix_socket, given.without) for source in chosen}
    print(json.dumps([module.__version__, found]))


if __name__ == "__main__":
    _main()
