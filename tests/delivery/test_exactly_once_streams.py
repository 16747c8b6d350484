"""Exactly once with a column of stream keys: each script call holds consecutive rows of one stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from headrace import Dispatcher, RetryPolicy
from support import Program
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
