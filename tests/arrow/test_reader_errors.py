"""Readers that run Python and fail: the exception of `produce_batch`, and the outcomes of earlier rows."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from polars.io.plugins import register_io_source

from headrace import Dispatcher, ReaderError
from headrace.testing import LocalServer
from support.failing_stream import FailingStream
from support.pipelines import DELIVERED, KEY, endpoint_to, labels, stored

Connect = Callable[..., Any]
Source = Callable[[Callable[[], Any]], Any]

SCHEMA = pa.schema({"payload": pa.string()})
ROWS = 1_000
BATCH = pa.record_batch({"payload": [f"{row}" for row in range(ROWS)]}, schema=SCHEMA)
BODIES = [b"%d" % row for row in range(ROWS)]


@pytest.fixture
def dispatcher(any_server: LocalServer) -> Iterator[Dispatcher]:
    with Dispatcher(endpoint_to(any_server)) as dispatcher:
        yield dispatcher


def raising(error: BaseException) -> Callable[[], Any]:
    def fail() -> Any:
        raise error

    return fail


def batches(fail: Callable[[], Any]) -> Iterator[pa.RecordBatch]:
    yield BATCH
    fail()


def generator(fail: Callable[[], Any]) -> Any:
    return pa.RecordBatchReader.from_batches(SCHEMA, batches(fail))


class Again:
    """A pyarrow reader wrapped by another library."""

    def __init__(self, reader: Any) -> None:
        self.reader = reader

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.reader.__arrow_c_stream__(requested_schema)


def collected_batches(fail: Callable[[], Any]) -> Any:
    def frames(*_: object) -> Iterator[pl.DataFrame]:
        for batch in batches(fail):
            yield pl.DataFrame({"payload": batch["payload"].to_pylist()})

    lazy: Any = register_io_source(frames, schema={"payload": pl.String})
    return lazy.collect_batches()


SOURCES: dict[str, Source] = {
    "generator": generator,
    "cast": lambda fail: generator(fail).cast(pa.schema({"payload": pa.large_string()})),
    "imported": lambda fail: pa.RecordBatchReader.from_stream(Again(generator(fail))),
    "polars": collected_batches,
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt(),
        KeyboardInterrupt("why:\nso"),
        SystemExit(),
        SystemExit(3),
        SystemExit(-1),
        SystemExit("bye: now"),
    ],
    ids=repr,
)
def test_exceptions_that_end_the_program_are_raised(
    any_server: LocalServer, dispatcher: Dispatcher, connect: Connect, source: str, error: BaseException
) -> None:
    """With class and arguments; earlier rows are accepted, and the dispatcher stays usable."""
    with pytest.raises(BaseException) as caught:
        dispatcher.produce_batch(SOURCES[source](raising(error)))
    assert (type(caught.value), caught.value.args) == (type(error), error.args)
    assert labels(dispatcher.flush()) == [DELIVERED] * ROWS
    assert [payload for _, payload in stored(connect(any_server))] == BODIES
    dispatcher.produce(b"next")
    assert dispatcher.flush().ok


def test_an_interrupt_in_a_scanner_is_raised(dispatcher: Dispatcher) -> None:
    """It reads ahead: the number of rows before the interrupt is up to the scanner."""
    scanner = ds.Scanner.from_batches(batches(raising(KeyboardInterrupt())), schema=SCHEMA)
    with pytest.raises(KeyboardInterrupt):
        dispatcher.produce_batch(scanner.to_reader())


def test_a_signal_in_a_generator_leaves_the_with_block(any_server: LocalServer, connect: Connect) -> None:
    """As Ctrl-C anywhere else: accepted rows are flushed, and a note says so."""

    with pytest.raises(KeyboardInterrupt) as caught, Dispatcher(endpoint_to(any_server)) as dispatcher:
        dispatcher.produce_batch(generator(lambda: signal.raise_signal(signal.SIGINT)))
    assert caught.value.__notes__ == [
        f"headrace: flushed after this exception: <DeliveryReport: {ROWS:,} delivered, 0 failed>"
    ]
    assert connect(any_server).xlen(KEY) == ROWS


@pytest.mark.parametrize("error", [KeyboardInterrupt("why"), SystemExit(4)], ids=repr)
@pytest.mark.parametrize("where", ["__arrow_c_stream__", "__arrow_c_array__"])
def test_exceptions_from_opening_a_reader_are_raised(dispatcher: Dispatcher, where: str, error: BaseException) -> None:
    source = type("Source", (), {where: lambda *_: raising(error)()})()
    with pytest.raises(type(error)) as caught:
        dispatcher.produce_batch(source)
    assert caught.value is error


class ManyLinesError(Exception):
    pass


def test_other_exceptions_become_one_line_reader_errors(dispatcher: Dispatcher) -> None:
    """A note holds its origin."""
    name = f"{__name__}.ManyLinesError"
    for error, line in [
        (ValueError("the disk: gone"), "ValueError: the disk: gone"),
        (KeyError("column"), "KeyError: 'column'"),
        (RuntimeError(), "RuntimeError"),
        (ManyLinesError("one\n\n  two"), f"{name}: one two"),
        (StopIteration(), "RuntimeError: generator raised StopIteration"),
    ]:
        with pytest.raises(ReaderError) as caught:
            dispatcher.produce_batch(generator(raising(error)))
        assert str(caught.value) == f"cannot read the next record batch: {line}"
        (note,) = caught.value.__notes__
        assert note.startswith("in the reader: Traceback (most recent call last):\n")
        assert "in batches\n    fail()" in note
    assert dispatcher.flush().delivered == 5 * ROWS


def test_a_reader_may_use_its_own_dispatcher(dispatcher: Dispatcher) -> None:
    dispatcher.produce_batch(generator(lambda: dispatcher.produce(b"x")))
    assert dispatcher.flush().delivered == ROWS + 1


TRACEBACK = 'Traceback (most recent call last):\n  File "job.py", line 7, in rows\n    yield from read()\n'
HANDLING = "\nDuring handling of the above exception, another exception occurred:\n\n"
AFTER = "\nThe above exception was the direct cause of the following exception:\n\n"
DETAIL = ". Detail: Python exception: "
ENDS = f"{DETAIL}{TRACEBACK}"

INTERRUPTIONS: list[tuple[str, BaseException]] = [
    # pyarrow 15
    (f"Unknown error: {DETAIL}KeyboardInterrupt", KeyboardInterrupt()),
    (f"Unknown error: why: so{DETAIL}KeyboardInterrupt", KeyboardInterrupt("why: so")),
    (f"Unknown error: 2{DETAIL}SystemExit", SystemExit(2)),
    # pyarrow 16 and later
    (f"Unknown error: {ENDS}KeyboardInterrupt\n", KeyboardInterrupt()),
    (f"Unknown error: {ENDS}SystemExit\n", SystemExit()),
    (f"Unknown error: None{ENDS}SystemExit: None\n", SystemExit()),
    (f"Unknown error: {ENDS}KeyboardInterrupt\na note of somebody\n", KeyboardInterrupt()),
    (f"Unknown error: {ENDS}ValueError: x\n{HANDLING}{TRACEBACK}KeyboardInterrupt\n", KeyboardInterrupt()),
    (f"Unknown error: a\nb{ENDS}KeyboardInterrupt: a\nb\n", KeyboardInterrupt("a\nb")),
    # over another importer, over DuckDB
    (f"Invalid: Unknown error: {ENDS}KeyboardInterrupt\n", KeyboardInterrupt()),
    (
        f"Invalid Input Error: reading the stream of the Python object 'x' failed: Unknown error: 5{ENDS}"
        "SystemExit: 5\n",
        SystemExit(5),
    ),
    # DuckDB's own functions, polars'
    (
        "Invalid Input Error: Python exception occurred while executing the UDF: KeyboardInterrupt: in udf",
        KeyboardInterrupt("in udf"),
    ),
    ("python: KeyboardInterrupt: ", KeyboardInterrupt()),
    (
        'python: SystemExit: 4\n\nThis error occurred in the following expression:\n\tcol("a").python_udf()\n',
        SystemExit(4),
    ),
]


@pytest.mark.parametrize(("text", "error"), INTERRUPTIONS)
def test_interrupts_are_recognised_in_library_error_texts(
    dispatcher: Dispatcher, text: str, error: BaseException
) -> None:
    stream = FailingStream(BATCH, text)
    with pytest.raises(type(error)) as caught:
        dispatcher.produce_batch(stream)
    assert caught.value.args == error.args
    assert dispatcher.flush().delivered == ROWS


@pytest.mark.parametrize(
    "text",
    [
        "",
        "KeyboardInterrupt",
        "Unknown error: KeyboardInterrupt",
        f"Unknown error: {DETAIL}",
        f"Unknown error: {DETAIL}KeyboardInterruptError",
        f"Invalid: KeyboardInterrupt{ENDS}ValueError: KeyboardInterrupt\n",
        f"Invalid: x\nKeyboardInterrupt{ENDS}ValueError: x\nKeyboardInterrupt\n",
        # An error whose message contains the traceback of a worker.
        f"Unknown error: it\n{TRACEBACK}KeyboardInterrupt{ENDS}RuntimeError: it\n{TRACEBACK}KeyboardInterrupt\n",
        f"Unknown error: a{HANDLING}{TRACEBACK}KeyboardInterrupt{ENDS}RuntimeError: a{HANDLING}{TRACEBACK}"
        "KeyboardInterrupt\n",
        f"Unknown error: {ENDS}KeyboardInterrupt\n{AFTER}{TRACEBACK}RuntimeError\n",
        f"Unknown error: {ENDS}KeyboardInterrupt\n{AFTER}RuntimeError\n",
        f"Unknown error: {ENDS}",
        "python: ValueError: KeyboardInterrupt: x",
        "Error while executing the UDF: ValueError: SystemExit: 3",
    ],
)
def test_other_error_texts_raise_reader_errors(dispatcher: Dispatcher, text: str) -> None:
    stream = FailingStream(BATCH, text)
    with pytest.raises(ReaderError) as caught:
        dispatcher.produce_batch(stream)
    assert str(caught.value).startswith("cannot read the next record batch: ")
    assert "\n" not in str(caught.value)
    assert dispatcher.flush().delivered == ROWS
