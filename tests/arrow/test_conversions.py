"""Data that cannot be read as Arrow: the error says why, and which call converts it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from headrace import Dispatcher, Endpoint, SchemaError

BATCH = pa.record_batch({"payload": ["a", "b"]})
TABLE = pa.Table.from_batches([BATCH])
WANTED = "data must be an Arrow record batch, table or reader"
INTERFACE = f"{WANTED} (an object with __arrow_c_array__ or __arrow_c_stream__)"
READER = "pass pyarrow.RecordBatchReader.from_batches(schema, batches)"


@pytest.fixture
def dispatcher() -> Iterator[Dispatcher]:
    with Dispatcher(Endpoint(host="127.0.0.1", stream_key="s")) as dispatcher:
        yield dispatcher
        assert dispatcher.stats().messages == 0


def stand_in(module: str, name: str, *methods: str) -> Any:
    """A stand-in for an object of a library, or a version, that is not installed."""
    return type(name, (), {"__module__": module, **dict.fromkeys(methods, lambda _: pytest.fail("called"))})()


def parquet_file() -> Any:
    sink = pa.BufferOutputStream()
    pq.write_table(TABLE, sink)
    return pq.ParquetFile(pa.BufferReader(sink.getvalue()))


@pytest.mark.parametrize(
    ("make", "hint"),
    [
        (lambda: [BATCH], "got list; pass pyarrow.Table.from_batches(...), or call produce_batch for each"),
        (lambda: (BATCH, BATCH), "got tuple; pass pyarrow.Table.from_batches(...), or call produce_batch for each"),
        (lambda: [TABLE], "got list; call produce_batch for each"),
        (lambda: [pl.DataFrame({"payload": ["a"]})], "got list; call produce_batch for each"),
        (lambda: (batch for batch in [BATCH]), f"got generator; {READER}"),
        (lambda: iter([BATCH]), f"got list_iterator; {READER}"),
        (lambda: map(pa.record_batch, []), f"got map; {READER}"),
        (lambda: ds.dataset(TABLE), "got InMemoryDataset; pass the result of its .scanner().to_reader()"),
        (lambda: ds.dataset(TABLE).scanner(), "got Scanner; pass the result of its .to_reader()"),
        (parquet_file, "got ParquetFile; call produce_batch for each of its .iter_batches()"),
        (lambda: pl.LazyFrame({"payload": ["a"]}), "got LazyFrame; pass the result of its .collect()"),
        (
            lambda: stand_in("duckdb.duckdb", "DuckDBPyConnection", "to_arrow_reader", "fetch_record_batch"),
            "got DuckDBPyConnection; pass the result of its .to_arrow_reader()",
        ),
        (
            lambda: stand_in("duckdb.duckdb", "DuckDBPyRelation", "fetch_record_batch"),
            "got DuckDBPyRelation; pass the result of its .fetch_record_batch()",
        ),
        (
            lambda: stand_in("pandas.core.frame", "DataFrame"),
            "got DataFrame; pass pyarrow.Table.from_pandas(df), or use pandas 2.2 or later",
        ),
        (
            lambda: stand_in("pyspark.sql.classic.dataframe", "DataFrame", "toArrow", "collect"),
            "got DataFrame; write it with headrace.spark.write(df, endpoint)",
        ),
        (list, "got list"),
        (lambda: [1], "got list"),
        (lambda: {"payload": ["a"]}, "got dict; pass pyarrow.table(columns)"),
        (lambda: [{"payload": "a"}], "got list; pass pyarrow.Table.from_pylist(rows)"),
        (lambda: np.arange(3), 'got ndarray; a single column is not a table: pass pyarrow.table({"payload": column})'),
        (lambda: sys.stdin, f"got {type(sys.stdin).__name__}"),
    ],
)
def test_the_error_suggests_a_conversion_for_data_without_the_interface(
    dispatcher: Dispatcher, make: Callable[[], Any], hint: str
) -> None:
    with pytest.raises(SchemaError) as caught:
        dispatcher.produce_batch(make())
    assert str(caught.value) == f"{INTERFACE}: {hint}"


COLUMN = "a single column is not a table: pass"


@pytest.mark.parametrize(
    ("make", "pattern"),
    [
        (lambda: BATCH["payload"], rf"got StringArray, .*; {COLUMN} pyarrow\.table\(\{{\"payload\": column\}}\)"),
        (lambda: TABLE["payload"], rf"got ChunkedArray, .*; {COLUMN} pyarrow\.table\(\{{\"payload\": column\}}\)"),
        (lambda: pl.Series(["a"]), rf"got Series, .*; {COLUMN} the result of its \.to_frame\(\)"),
        (
            lambda: pl.DataFrame({"payload": ["a"], "n": pl.Series([1], dtype=pl.Int128)}),
            r"got DataFrame, .*; cast the columns without an Arrow type: \"n\" \(Int128\)",
        ),
        (
            lambda: pd.DataFrame({"payload": ["a", "b"], "mixed": [1, "x"]}),
            r"got DataFrame, .*: Could not convert 'x' .*; Conversion failed for column mixed with type object; "
            "give the column values of one type",
        ),
    ],
)
def test_the_error_says_why_data_cannot_be_read(dispatcher: Dispatcher, make: Callable[[], Any], pattern: str) -> None:
    """The text says it, because a log may hold nothing else; the library's exception is the cause."""
    with pytest.raises(SchemaError, match=f"^{WANTED}: {pattern}$") as caught:
        dispatcher.produce_batch(make())
    assert isinstance(caught.value.__cause__, Exception)


def test_the_reason_is_one_line_and_bounded(dispatcher: Dispatcher) -> None:
    def fail(*_: object) -> None:
        raise ValueError("first\n  second " + "x" * 10_000)

    source = type("Source", (), {"__arrow_c_stream__": fail})()
    with pytest.raises(SchemaError) as caught:
        dispatcher.produce_batch(source)
    said = str(caught.value).removeprefix(f"{WANTED}: got Source, which cannot be read as one: ")
    assert said.startswith("first second xxx")
    assert len(said) == 256


def test_hints_import_no_library() -> None:
    program = """
import sys
from headrace import Dispatcher, Endpoint, SchemaError
frame = type("DataFrame", (), {"__module__": "pandas.core.frame"})()
for data in ([1], iter([]), frame):
    try:
        Dispatcher(Endpoint(host="127.0.0.1", stream_key="s")).produce_batch(data)
    except SchemaError as error:
        print(error)
print(sorted({"pyarrow", "pandas", "polars", "duckdb", "pyspark", "numpy"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    assert lines[-1] == "[]"
