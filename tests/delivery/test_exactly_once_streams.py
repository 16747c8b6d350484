"""Exactly once with a column of stream keys: each stream has row numbers and script calls of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from redis.exceptions import ResponseError

from headrace import Dispatcher, RetryPolicy
from headrace.testing import LocalServer
from support import Monitor, Program
from support.delivery import script
from support.fixture_types import StartServer
from support.modes import SOON
from support.pipelines import check_accounting, endpoint_to, outcomes, stored
from support.processes import StuckError, after_ticks

Connect = Callable[..., Any]

KEYS = ["a", "b", "c"]
ROWS = 10


def rows(size: int = 1, first: int = 0) -> pa.RecordBatch:
    """Rows of three streams in turn, `size` at a time, with payloads that count from `first`."""
    return pa.record_batch(
        {
            "payload": pa.array([b"%d" % row for row in range(first, first + ROWS)], pa.binary()),
            "key": [KEYS[row // size % 3] for row in range(ROWS)],
        }
    )


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("window", [1, 2, 3, 8192])
def test_gathered_rows_fail_with_a_failed_connect(
    start_server: StartServer, program: Program, connect: Connect, window: int, size: int
) -> None:
    """An incomplete script call, not yet in the window, fails in its place, in the same flush as those before it."""
    server = start_server(program, config={"user": "default on >right ~* &* +@all"})
    client = connect(server, password="right")
    endpoint = endpoint_to(server, password="wrong")
    with Dispatcher(endpoint, exactly_once="script", window_max_entries=window) as dispatcher:
        for _ in range(2):
            dispatcher.produce_batch(rows(size), stream_key="key")
            report = dispatcher.flush()
            assert dispatcher.unreported == 0
            assert [(reported.message_id, reported.code) for reported in outcomes(report)] == [
                (str(row), "WRONGPASS") for row in range(ROWS)
            ]
        client.execute_command("ACL", "SETUSER", "default", "resetpass", ">wrong")
        dispatcher.skip_failed()
        dispatcher.produce_batch(rows(size), stream_key="key")
        assert dispatcher.flush().ok
    payloads = [payload for key in KEYS for _, payload in stored(client, key)]
    assert sorted(payloads) == sorted(b"%d" % row for row in range(ROWS)), "nothing that had failed was sent later"


@pytest.mark.parametrize("window", [1, 2, 8192])
def test_gathered_rows_fail_when_the_retries_end(
    start_server: StartServer, program: Program, connect: Connect, window: int
) -> None:
    server = start_server(program, config={"min-replicas-to-write": 1})
    client = connect(server)
    retry = RetryPolicy(initial_backoff=0.001, max_backoff=0.001, deadline=0.02)
    with Dispatcher(endpoint_to(server), exactly_once="script", window_max_entries=window, retry=retry) as dispatcher:
        dispatcher.produce_batch(rows(), stream_key="key")
        report = dispatcher.flush()
        assert dispatcher.unreported == 0
        reported = outcomes(report)
        assert [outcome.message_id for outcome in reported] == [str(row) for row in range(ROWS)]
        assert {outcome.code for outcome in reported} <= {"NOREPLICAS", "BLOCKED"}
        assert reported[0].code == "NOREPLICAS"
        client.config_set("min-replicas-to-write", 0)
        dispatcher.skip_failed()
        dispatcher.produce_batch(rows(), stream_key="key")
        assert dispatcher.flush().ok
    assert sum(len(stored(client, key)) for key in KEYS) == ROWS


@pytest.mark.parametrize("window", [1, 2, 5, 8192])
def test_gathered_rows_fail_when_the_user_is_deleted(
    start_server: StartServer, program: Program, connect: Connect, window: int
) -> None:
    """The connection is lost, its messages are to be sent again, and the next connect fails for good."""
    server = start_server(program, config={"user": "writer on >secret ~* &* +@all"})
    client = connect(server)
    endpoint = endpoint_to(server, username="writer", password="secret")
    retry = RetryPolicy(initial_backoff=0.001, max_backoff=0.001)
    options: dict[str, Any] = {"exactly_once": "script", "window_max_entries": window, "retry": retry}
    with Dispatcher(endpoint, **options) as dispatcher:
        dispatcher.produce_batch(rows(), stream_key="key")
        dispatcher.flush().raise_for_failures()
        client.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")  # messages sent from now on get no reply
        record_batch = rows()

        def delete_user() -> None:
            client.execute_command("ACL", "DELUSER", "writer")
            client.execute_command("CLIENT", "UNPAUSE")

        with after_ticks(3, delete_user):
            dispatcher.produce_batch(record_batch, stream_key="key")
            report = dispatcher.flush()
        assert dispatcher.unreported == 0
        reported = outcomes(report)
        assert [outcome.message_id for outcome in reported] == [str(row) for row in range(ROWS)]
        assert {outcome.code for outcome in reported} == {"WRONGPASS"}
        client.execute_command("ACL", "SETUSER", "writer", "on", ">secret", "~*", "&*", "+@all")
        dispatcher.skip_failed()
        dispatcher.produce_batch(rows(), stream_key="key")
        assert dispatcher.flush().ok
    assert sum(len(stored(client, key)) for key in KEYS) == 2 * ROWS


def test_gathered_rows_are_sent_after_an_interrupt(
    start_server: StartServer, program: Program, connect: Connect
) -> None:
    """Ctrl-C while earlier rows wait for a retry: the next flush sends these first, then the gathered rows."""
    server = start_server(program, config={"appendonly": "yes", "appendfsync": "always"})

    def leave() -> None:
        raise StuckError

    with Dispatcher(endpoint_to(server), exactly_once="script", window_max_entries=1, retry=SOON) as dispatcher:
        dispatcher.produce_batch(rows(), stream_key="key")
        before = dispatcher.flush().raise_for_failures()
        server.kill()
        record_batch = rows(first=ROWS)
        with pytest.raises(StuckError), after_ticks(10, leave):
            dispatcher.produce_batch(record_batch, stream_key="key")
        server.restart()
        reported = outcomes(dispatcher.flush())
        assert dispatcher.unreported == 0
        assert [outcome.message_id for outcome in reported] == [str(row) for row in range(ROWS)]
        # The first was in flight, the second was gathered, the others were not accepted.
        assert [outcome.code for outcome in reported] == [None, None, *["INTERRUPTED"] * (ROWS - 2)]
    sent = [(KEYS[row % ROWS % 3], b"%d" % row) for row in range(2 * ROWS)]
    check_accounting(connect(server), sent, [*outcomes(before), *reported])


def numbers(client: Any, key: str) -> list[int]:
    """The payloads of a stream."""
    return [int(payload) for _, payload in stored(client, key)]


def test_interleaved_rows_of_a_stream_share_a_call(server: LocalServer, connect: Connect) -> None:
    """Each stream has a call of its own until that is full, in whatever order their rows come."""
    client, count = connect(server), 3_000
    keys = [f"s{(row * 7919) % 30}" for row in range(count)]
    batch = pa.record_batch({"payload": [str(row) for row in range(count)], "key": keys})
    with script(server, script_run_rows=100) as dispatcher:
        dispatcher.begin("batch")
        dispatcher.produce_batch(batch, stream_key="key")
        report = dispatcher.flush()
    assert (report.ok, report.delivered) == (True, count)
    by_id = {
        (key, outcome.entry_id): row for row, (key, outcome) in enumerate(zip(keys, outcomes(report), strict=True))
    }
    for key in set(keys):
        entries = stored(client, key)
        assert [int(payload) for _, payload in entries] == [row for row in range(count) if keys[row] == key]
        assert [by_id[key, entry_id] for entry_id, _ in entries] == numbers(client, key)
    calls = sum(int(client.info("commandstats")[f"cmdstat_{name}"]["calls"]) for name in ("eval", "evalsha"))
    # One for each stream, another one for the row before there were several, and the preflight. Rows with another
    # second in `ts` go into further calls.
    assert calls in {30 + 2, 2 * 30 + 2}


@pytest.mark.parametrize("run_rows", [1, 3, 100])
def test_a_batch_of_several_streams_is_written_once(server: LocalServer, connect: Connect, run_rows: int) -> None:
    """Whatever was written by the try before, and whichever calls hand the rows over."""
    client, count = connect(server), 400
    keys = [None if row < 20 else f"s{row % 7}" for row in range(count)]
    payloads = [None if row % 50 == 7 else str(row) for row in range(count)]
    batch = pa.record_batch({"payload": payloads, "key": keys})
    for size in (90, 250, count):
        with script(server, script_run_rows=run_rows) as dispatcher:
            dispatcher.begin("batch")
            for start in range(0, size, 33):
                dispatcher.produce_batch(batch.slice(start, min(33, size - start)), stream_key="key")
            codes = [outcome.code for outcome in outcomes(dispatcher.flush())]
        assert codes == ["NULL_PAYLOAD" if payload is None else None for payload in payloads[:size]]
    for key in set(keys):
        expected = [row for row in range(count) if keys[row] == key and payloads[row] is not None]
        assert numbers(client, key or "events") == expected


def test_a_failed_stream_does_not_block_the_other_streams(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    client.set("b", "no stream")
    with script(server, retry=None) as dispatcher:
        dispatcher.produce_batch(rows(), stream_key="key")
        codes = [outcome.code for outcome in outcomes(dispatcher.flush())]
        assert codes == [
            {"a": None, "b": "WRONGTYPE" if row == 1 else "BLOCKED", "c": None}[KEYS[row % 3]] for row in range(ROWS)
        ]
    assert [numbers(client, key) for key in "ac"] == [[0, 3, 6, 9], [2, 5, 8]]


class Earlier:
    """An earlier version: it numbers the rows of a batch whatever their stream."""

    def __init__(self, client: Any) -> None:
        self._append = client.register_script(Path(__file__).with_name("whole_batch.lua").read_text())
        self._next, self._from = 0, dict.fromkeys([*KEYS, "events"], 0)

    def write(self, key: str, payloads: list[str]) -> list[Any]:
        arguments: list[Any] = [0, self._from[key], self._next, len(payloads), 60, 0]
        for payload in payloads:
            arguments += [3, "*", "payload", payload]
        self._next += len(payloads)
        self._from[key] = self._next
        return cast("list[Any]", self._append(keys=[key, f"{{{key}}}:headrace:batch"], args=arguments))


@pytest.mark.parametrize("first", ["earlier", "this"])
def test_another_version_finishes_a_batch_of_one_stream(server: LocalServer, connect: Connect, first: str) -> None:
    client, payloads = connect(server), [str(row) for row in range(100)]

    def earlier(count: int) -> None:
        version = Earlier(client)
        for start in range(0, count, 30):
            version.write("events", payloads[start : min(start + 30, count)])

    def this(count: int) -> None:
        with script(server, script_run_rows=7) as dispatcher:
            dispatcher.begin("batch")
            dispatcher.produce_batch(pa.record_batch({"payload": payloads[:count]}))
            assert dispatcher.flush().ok

    tries = (earlier, this) if first == "earlier" else (this, earlier)
    tries[0](45)
    tries[1](100)
    assert numbers(client, "events") == list(range(100))


def test_another_version_refuses_a_batch_of_several_streams(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    before = Earlier(client)
    for row in range(6):
        before.write(KEYS[row % 3], [str(row)])
    with script(server, retry=None) as dispatcher:
        dispatcher.begin("batch")
        dispatcher.produce_batch(rows(), stream_key="key")
        report = dispatcher.flush()
        codes = [outcome.code for outcome in outcomes(report)]
        assert codes == [None, *["BAD_MARKER"] * (ROWS - 1)], "the first row has the same number in both versions"
    assert [numbers(client, key) for key in KEYS] == [[0, 3], [1, 4], [2, 5]], "nothing is written twice or left out"

    client.flushall()
    with script(server) as dispatcher:
        dispatcher.begin("batch")
        dispatcher.produce_batch(rows().slice(0, 6), stream_key="key")
        assert dispatcher.flush().ok
    after = Earlier(client)
    for row in range(6):
        if row % 3 == 0 and row == 0:
            continue  # of the first stream before there was another one: both count it alike
        with pytest.raises(ResponseError, match="BAD_MARKER"):
            after.write(KEYS[row % 3], [str(row)])
    assert [numbers(client, key) for key in KEYS] == [[0, 3], [1, 4], [2, 5]]


def test_a_batch_takes_a_limited_number_of_streams(any_server: LocalServer, connect: Connect) -> None:
    """Rows of other streams wait for the next batch; those of its own go on. A row that is never written counts."""
    client, most = connect(any_server), 262_144
    without_payload = pa.record_batch(
        {"payload": pa.nulls(most - 1, pa.binary()), "key": [f"s{row}" for row in range(most - 1)]}
    )
    keys = ["last", "s0", "more", "last", "s0", "other", "more"]
    batch = pa.record_batch({"payload": [str(row) for row in range(len(keys))], "key": keys})
    late = {"more": [2, 6], "other": [5]}
    with script(any_server) as dispatcher:
        dispatcher.begin("batch")
        dispatcher.produce_batch(without_payload, stream_key="key")
        codes = pa.table(dispatcher.flush().to_arrow())["code"].value_counts().to_pylist()
        assert codes == [{"values": "NULL_PAYLOAD", "counts": most - 1}]
        dispatcher.produce_batch(batch, stream_key="key")
        report = dispatcher.flush()
        for row, outcome in enumerate(outcomes(report)):
            label = ("retryable", "TOO_MANY", "unknown") if keys[row] in late else (None, None, None)
            assert outcome.label == label, "an earlier try of a smaller batch may have written it"
        assert [numbers(client, key) for key in ["last", "s0", *late]] == [[0, 3], [1, 4], [], []]

        dispatcher.begin("the next one")
        left = [row for row, key in enumerate(keys) if key in late]
        dispatcher.produce_batch(batch.take(pa.array(left)), stream_key="key")
        assert dispatcher.flush().ok
    assert {key: numbers(client, key) for key in late} == late


def test_the_largest_group_is_sent_when_the_window_bytes_are_exceeded(
    any_server: LocalServer, connect: Connect
) -> None:
    """Whichever was opened first; the flush sends the others."""
    small = [f"small{row}" for row in range(8)]
    keys = [*small, *["large"] * 30, *small]
    payloads = [b"%d-" % row + b"x" * (2_000 if key == "large" else 3_000) for row, key in enumerate(keys)]
    batch = pa.record_batch({"payload": pa.array(payloads, pa.binary()), "key": keys})
    with Monitor(any_server) as monitor, script(any_server, window_max_bytes=65_536) as dispatcher:
        dispatcher.produce_batch(batch, stream_key="key")
        report = dispatcher.flush().raise_for_failures()
        calls = [(call[3].decode(), int(call[8])) for call in monitor.commands("EVAL", "EVALSHA")[1:]]
    check_accounting(connect(any_server), list(zip(keys, payloads, strict=True)), outcomes(report))
    first = calls[1][1]
    assert 15 < first < 25, "the eight others have 24,000 bytes, and something around them"
    # The rest of it is the largest again. The first stream had a row before there were several streams.
    assert calls[:3] == [("small0", 1), ("large", first), ("large", 30 - first)]
    assert calls[3:] == [*[(key, 2) for key in small[1:]], ("small0", 1)]
