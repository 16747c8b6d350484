"""Delivery reports: their content, their forms, and unseen failures."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, Literal

import polars
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace import ConnectionFailedError, DeliveryError, DeliveryReport, Dispatcher, Endpoint, Failure
from headrace.testing import LocalServer
from headrace.unread import UnreadReports
from support.pipelines import KEY, endpoint_to, outcomes, stored
from support.processes import wait_until

Connect = Callable[..., Any]

NULLS = pa.record_batch({"payload": pa.array([None] * 3, pa.string())})
COLUMNS = ["message_id", "entry_id", "kind", "code", "message", "written"]


@pytest.fixture
def dispatcher(any_server: LocalServer) -> Iterator[Dispatcher]:
    dispatcher = Dispatcher(endpoint_to(any_server))
    yield dispatcher
    dispatcher.flush().failed_ids  # noqa: B018 (looked at)
    dispatcher.close()


def some_of_each(dispatcher: Dispatcher) -> DeliveryReport:
    """Delivered: 0, "b", 3. Failed: 1, "d", -7."""
    rows = {"payload": ["x", None], "id": pa.array([None, 1], pa.int64())}
    dispatcher.produce_batch(pa.record_batch(rows), message_id="id")
    dispatcher.produce(b"x", "b")
    dispatcher.produce(b"x")
    rows = {"payload": pa.array([None], pa.string()), "id": ["d"]}
    dispatcher.produce_batch(pa.record_batch(rows), message_id="id")
    rows = {"payload": ["x"], "id": pa.array([-7], pa.int8()), "key": [""]}
    dispatcher.produce_batch(pa.record_batch(rows), message_id="id", stream_key="key")
    return dispatcher.flush()


def test_a_report_holds_the_outcomes(dispatcher: Dispatcher, any_server: LocalServer, connect: Connect) -> None:
    report = some_of_each(dispatcher)
    assert isinstance(report, DeliveryReport)
    assert (report.delivered, report.deduplicated, len(report), report.ok) == (3, 0, 6, False)
    assert report.failed == [
        Failure(1, "permanent", "NULL_PAYLOAD", "the payload is null", "no"),
        Failure("d", "permanent", "NULL_PAYLOAD", "the payload is null", "no"),
        Failure(-7, "permanent", "BAD_STREAM_KEY", report.failed[2].message, "no"),
    ]
    assert report.failed_ids == [1, "d", -7]
    assert report.failed_by_code == {"NULL_PAYLOAD": 2, "BAD_STREAM_KEY": 1}
    assert repr(report) == "<DeliveryReport: 3 delivered, 3 failed (BAD_STREAM_KEY 1, NULL_PAYLOAD 2)>"
    reported = outcomes(report)
    assert [outcome.message_id for outcome in reported] == ["0", "1", "b", "3", "d", "-7"]
    entries = [entry for entry, _ in stored(connect(any_server))]
    assert [outcome.entry_id for outcome in reported] == [entries[0], None, entries[1], entries[2], None, None]
    assert report.failed is report.failed  # cached


def test_an_empty_report(dispatcher: Dispatcher) -> None:
    for report in (dispatcher.poll(), dispatcher.flush()):
        assert (report.delivered, len(report), report.ok) == (0, 0, True)
        assert (report.failed, report.failed_ids, report.failed_by_code) == ([], [], {})
        assert report.raise_for_failures() is report
        assert report  # though its length is 0
        assert pa.table(report.to_arrow()).num_rows == 0
        assert pa.table(report.to_arrow()).column_names == COLUMNS


def test_to_arrow_schema(dispatcher: Dispatcher) -> None:
    table = pa.table(some_of_each(dispatcher).to_arrow())
    table.validate(full=True)
    assert table.column_names == COLUMNS
    assert {field.type for field in table.schema} == {pa.utf8()}
    assert [field.nullable for field in table.schema] == [False, True, True, True, True, True]
    for name in COLUMNS[2:]:
        assert [value is None for value in table[name].to_pylist()] == [True, False, True, True, False, False]


def test_to_arrow_over_several_record_batches(
    dispatcher: Dispatcher, any_server: LocalServer, connect: Connect
) -> None:
    rows = 150_000
    payloads = [None if row % 1_000 == 999 else "x" for row in range(rows)]
    batch = pa.record_batch({"payload": payloads, "id": [f"id-{row}" for row in range(rows)]})
    dispatcher.produce_batch(batch, message_id="id")
    report = dispatcher.flush()
    assert report.delivered == rows - 150
    arrow = report.to_arrow()
    assert len(arrow) == rows
    batches = list(pa.RecordBatchReader.from_stream(arrow))
    assert [part.num_rows for part in batches] == [65_536, 65_536, rows - 2 * 65_536]
    table = pa.Table.from_batches(batches)
    assert table["message_id"].to_pylist() == batch["id"].to_pylist()
    assert [entry is None for entry in table["entry_id"].to_pylist()] == [payload is None for payload in payloads]
    kept = [entry for entry in table["entry_id"].to_pylist() if entry is not None]
    assert kept == [entry for entry, _ in stored(connect(any_server))]
    # Again, and by another library.
    frame = polars.DataFrame(report.to_arrow())
    assert frame.columns == COLUMNS
    assert frame["code"].drop_nulls().unique().to_list() == ["NULL_PAYLOAD"]
    assert frame.to_arrow().cast(table.schema).equals(table)


def test_messages_and_reports_work_without_pyarrow(any_server: LocalServer) -> None:
    """Messages, reports and polars work without pyarrow."""
    code = """
        import sys
        sys.modules["pyarrow"] = None  # makes its import fail
        import polars
        from headrace import Dispatcher, Endpoint
        with Dispatcher(Endpoint(unix_socket=sys.argv[1], stream_key="s")) as dispatcher:
            dispatcher.produce_batch(polars.DataFrame({"payload": ["a", None, "c"], "id": [7, 8, 9]}), message_id="id")
            dispatcher.produce(b"d", "last")
            report = dispatcher.flush()
            assert report.failed_ids == [8] and report.failed[0].code == "NULL_PAYLOAD"
            frame = polars.DataFrame(report.to_arrow())
            assert frame["message_id"].to_list() == ["7", "8", "9", "last"], frame
            assert frame["written"].to_list() == [None, "no", None, None], frame
            assert len(report.to_arrow()) == 4
        """
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code), any_server.unix_socket]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_poll_returns_each_outcome_once(dispatcher: Dispatcher) -> None:
    """Ordinals continue over polls and restart at flush."""
    for turn in range(2):
        reported: list[str] = []
        for number in range(20):
            dispatcher.produce(b"x")
            if number % 3 == 1:
                dispatcher.produce(b"x", f"text-{number}")
            if number % 3 == 2:
                dispatcher.produce(b"x", number * 1_000)
            reported += [outcome.message_id for outcome in outcomes(dispatcher.poll())]
        polled = len(reported)
        reported += [outcome.message_id for outcome in outcomes(dispatcher.flush())]
        expected: list[str] = []
        for number in range(20):
            expected.append(str(len(expected)))
            if number % 3 == 1:
                expected.append(f"text-{number}")
            if number % 3 == 2:
                expected.append(str(number * 1_000))
        assert reported == expected, turn
        assert dispatcher.unreported == 0
        assert polled <= len(reported)


def test_poll_returns_answered_messages(dispatcher: Dispatcher) -> None:
    """Polling alone returns all outcomes in the end."""
    assert dispatcher.dispatch(b"connected")
    for _ in range(100):
        dispatcher.produce(b"x")
    reports: list[DeliveryReport] = []

    def all_there() -> bool:
        reports.append(dispatcher.poll())
        return sum(map(len, reports)) == 100

    wait_until(all_there)
    assert [outcome.message_id for outcome in outcomes(*reports)] == [str(number) for number in range(100)]
    assert len(dispatcher.flush()) == 0


def test_poll_opens_no_connection(any_server: LocalServer, dispatcher: Dispatcher, connect: Connect) -> None:
    dispatcher.produce(b"x")
    for _ in range(10):
        assert len(dispatcher.poll()) == 0
    assert not [line for line in connect(any_server).client_list() if line["name"] == "headrace"]


def test_raise_for_failures(dispatcher: Dispatcher) -> None:
    for _ in range(5):
        dispatcher.produce(b"x")
    for _ in range(4):
        dispatcher.produce_batch(NULLS)
    report = dispatcher.flush()
    with pytest.raises(DeliveryError) as caught:
        report.raise_for_failures()
    error = caught.value
    assert str(error) == (
        f"12 of 17 messages were not delivered to {dispatcher.endpoint} (NULL_PAYLOAD 12); "
        "the first, message ID 5: NULL_PAYLOAD (permanent, written: no): the payload is null; filter these rows out; "
        "with Spark, on_failure='report' or 'dead_letter' passes them (docs/troubleshooting.md#null_payload)"
    )
    assert (error.delivered, error.failed, error.failed_by_code) == (5, 12, {"NULL_PAYLOAD": 12})
    assert [failure.message_id for failure in error.failures] == list(range(5, 15))  # the first ten
    assert len(report.failed) == 12


# --- unseen failures


def failing(any_server: LocalServer) -> Dispatcher:
    dispatcher = Dispatcher(endpoint_to(any_server))
    dispatcher.produce(b"x")
    dispatcher.produce_batch(NULLS)
    return dispatcher


LOOKS: dict[str, Callable[[DeliveryReport], object]] = {
    "ok": lambda report: report.ok,
    "failed": lambda report: report.failed,
    "failed_ids": lambda report: report.failed_ids,
    "to_arrow": lambda report: report.to_arrow(),
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("how", ["with", "close"])
def test_seen_failures_do_not_raise(any_server: LocalServer, look: str, how: str) -> None:
    dispatcher = failing(any_server)
    if how == "with":
        with dispatcher:
            LOOKS[look](dispatcher.flush())
    else:
        LOOKS[look](dispatcher.flush())
        dispatcher.close()
    assert dispatcher.closed


@pytest.mark.parametrize(
    "glance",
    [lambda report: report.delivered, len, repr, lambda report: report.failed_by_code, bool, lambda _: None],
    ids=["delivered", "len", "repr", "failed_by_code", "bool", "nothing"],
)
@pytest.mark.parametrize("held", [True, False])
def test_unseen_failures_raise(any_server: LocalServer, glance: Callable[[DeliveryReport], object], held: bool) -> None:
    dispatcher = failing(any_server)
    reports = [dispatcher.flush()]
    glance(reports[0])
    if not held:
        reports.clear()
    with pytest.raises(DeliveryError) as caught:
        dispatcher.close()
    assert (caught.value.failed, caught.value.failed_by_code) == (3, {"NULL_PAYLOAD": 3})
    assert [failure.message_id for failure in caught.value.failures] == [1, 2, 3]
    assert dispatcher.closed
    dispatcher.close()  # raised once


@pytest.mark.parametrize("how", ["with", "close"])
def test_unreported_failures_raise(any_server: LocalServer, how: str) -> None:
    """Leaving `with` and `close` flush."""
    dispatcher = failing(any_server)
    leave = dispatcher.close if how == "close" else lambda: dispatcher.__exit__(None, None, None)
    text = r"^3 messages were not delivered to \S+ stream key \S+ \(NULL_PAYLOAD 3\); the first, message ID 1: "
    with pytest.raises(DeliveryError, match=text):
        leave()
    assert dispatcher.closed
    assert dispatcher.unreported == 0


def test_dropped_reports_are_kept_as_counts(any_server: LocalServer) -> None:
    """Of 1,000 unseen reports the counts and the first ten failures are kept."""
    dispatcher = Dispatcher(endpoint_to(any_server))
    for number in range(1_000):
        dispatcher.produce_batch(NULLS)
        if number % 2:
            dispatcher.produce_batch(pa.record_batch({"payload": ["x"], "key": [""]}), stream_key="key")
        report = dispatcher.flush()
        if number % 10 == 9:
            assert not report.ok  # seen failures do not count
        del report
    gc.collect()
    assert len(dispatcher._unread._reports) <= 16
    with pytest.raises(DeliveryError) as caught:
        dispatcher.close()
    assert caught.value.failed_by_code == {"NULL_PAYLOAD": 2_700, "BAD_STREAM_KEY": 400}
    assert caught.value.failed == 3_100
    codes = [failure.code for failure in caught.value.failures]
    assert codes == [*["NULL_PAYLOAD"] * 6, "BAD_STREAM_KEY", *["NULL_PAYLOAD"] * 3]


def test_unread_reports_do_not_slow_flush(any_server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """3,000 unread reports that are still referenced are scanned a few times, not at each flush."""
    gone_through = 0

    def sweep(unread: UnreadReports) -> None:
        nonlocal gone_through
        gone_through += len(unread._reports)
        original(unread)

    original = UnreadReports._sweep
    monkeypatch.setattr(UnreadReports, "_sweep", sweep)
    dispatcher = Dispatcher(endpoint_to(any_server))
    held = []
    for _ in range(3_000):
        dispatcher.produce_batch(NULLS)
        held.append(dispatcher.flush())
    assert 0 < gone_through < 4 * 3_000
    with pytest.raises(DeliveryError, match=r"^9,000 messages were not delivered to "):
        dispatcher.close()
    assert not any(report.ok for report in held)


@pytest.mark.parametrize("look", [True, False])
def test_an_exception_in_the_block_gets_a_note(any_server: LocalServer, connect: Connect, look: bool) -> None:
    """It is raised, not the failures; a note reports the last flush."""

    def work() -> None:
        with Dispatcher(endpoint_to(any_server)) as dispatcher:
            seen.append(dispatcher)
            dispatcher.produce(b"x")
            dispatcher.produce_batch(NULLS)
            if look:
                _ = dispatcher.flush().failed
            dispatcher.produce(b"y")
            raise LookupError("of the block")

    seen: list[Dispatcher] = []
    with pytest.raises(LookupError, match="of the block") as caught:
        work()
    delivered, failed = ("1 delivered", "0 failed") if look else ("2 delivered", "3 failed (NULL_PAYLOAD 3)")
    notes = [f"headrace: flushed after this exception: <DeliveryReport: {delivered}, {failed}>"]
    if not look:
        notes.append(
            f"headrace: unhandled delivery failures: 3 messages were not delivered to {seen[0].endpoint} "
            "(NULL_PAYLOAD 3); the first, message ID 1: NULL_PAYLOAD (permanent, written: no): the payload is null; "
            "filter these rows out; with Spark, on_failure='report' or 'dead_letter' passes them "
            "(docs/troubleshooting.md#null_payload)"
        )
    assert caught.value.__notes__ == notes
    assert seen[0].closed
    assert [payload for _, payload in stored(connect(any_server))] == [b"x", b"y"]


# --- dispatch


def test_dispatch_returns_the_entry_id(any_server: LocalServer, dispatcher: Dispatcher, connect: Connect) -> None:
    entry = dispatcher.dispatch(b"now")
    assert stored(connect(any_server)) == [(entry, b"now")]
    assert len(dispatcher.flush()) == 0


def test_dispatch_keeps_its_place_between_messages(
    any_server: LocalServer, dispatcher: Dispatcher, connect: Connect
) -> None:
    """It is sent after them, is in no report, and takes no ordinal."""
    dispatcher.produce(b"a")
    dispatcher.produce_batch(NULLS)
    entry = dispatcher.dispatch("between")
    dispatcher.produce(b"b")
    report = dispatcher.flush()
    assert report.delivered == 2
    reported = outcomes(report)
    assert [outcome.message_id for outcome in reported] == list("01234")
    assert stored(connect(any_server)) == [
        (reported[0].entry_id, b"a"),
        (entry, b"between"),
        (reported[4].entry_id, b"b"),
    ]


@pytest.mark.parametrize(
    ("kind", "written", "is_advised"),
    [("retryable", "unknown", True), ("retryable", "no", False), ("permanent", "unknown", False)],
)
def test_only_a_message_to_send_again_is_explained_with_exactly_once(
    kind: Literal["permanent", "retryable"], written: Literal["no", "unknown"], is_advised: bool
) -> None:
    text = Failure(0, kind, "TRIMMED", "it was trimmed", written).explained()
    assert text.startswith(f"TRIMMED ({kind}, written: {written}): it was trimmed; check minid")
    assert ("exactly_once lets you send it again" in text) == is_advised


def test_dispatch_raises_delivery_error_for_a_refused_message(
    any_server: LocalServer, dispatcher: Dispatcher, connect: Connect
) -> None:
    client = connect(any_server)
    client.set(KEY, "no stream")
    with pytest.raises(DeliveryError) as caught:
        dispatcher.dispatch(b"canary")
    assert not isinstance(caught.value, ConnectionFailedError)
    assert str(caught.value) == (
        f"the message was not delivered to {dispatcher.endpoint}: WRONGTYPE (permanent, written: no): WRONGTYPE "
        "Operation against a key holding the wrong kind of value; the key holds something other than a stream: choose "
        "another stream_key (docs/troubleshooting.md#wrongtype)"
    )
    (failure,) = caught.value.failures
    assert (failure.kind, failure.code, failure.written) == ("permanent", "WRONGTYPE", "no")
    client.delete(KEY)
    assert dispatcher.dispatch(b"x")


def test_dispatch_without_a_server_raises(closed_port: int) -> None:
    """Each call is a separate attempt, and its error is not raised again at the end."""
    with Dispatcher(Endpoint(host="127.0.0.1", port=closed_port, stream_key=KEY)) as dispatcher:
        for _ in range(2):
            with pytest.raises(ConnectionFailedError, match=f"cannot connect to 127.0.0.1:{closed_port}: ") as caught:
                dispatcher.dispatch(b"x")
            assert isinstance(caught.value, ConnectionError)
            assert caught.value.failures[0].written == "no"
            assert caught.value.failed_by_code == {"CONNECT": 1}


def test_dispatch_works_once_the_server_is_back(any_server: LocalServer) -> None:
    any_server.kill()
    with Dispatcher(endpoint_to(any_server)) as dispatcher:
        with pytest.raises(ConnectionFailedError):
            dispatcher.dispatch(b"x")
        any_server.restart()
        assert dispatcher.dispatch(b"x")


def test_to_arrow_can_return_only_failures(dispatcher: Dispatcher) -> None:
    report = some_of_each(dispatcher)
    everything = pa.table(report.to_arrow())
    failed = report.to_arrow(only_failed=True)
    assert len(failed) == len(report.failed) > 0
    assert pa.table(failed).equals(everything.filter(pc.is_valid(everything["code"])))
