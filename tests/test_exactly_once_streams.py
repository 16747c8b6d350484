"""Exactly once, with a column of stream keys: the rows of one stream are a run, and another stream begins another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from conftest import StartServer
from headrace import Dispatcher, RetryPolicy
from support import Program
from support.pipelines import check_accounting, endpoint_to, outcomes, stored
from support.processes import after_ticks
from test_faults import StuckError
from test_retry import SOON

Connect = Callable[..., Any]

KEYS = ["a", "b", "c"]
ROWS = 10


def rows(size: int = 1, first: int = 0) -> pa.RecordBatch:
    """Runs of so many rows; their payloads count from `first` on."""
    return pa.record_batch(
        {
            "payload": pa.array([b"%d" % row for row in range(first, first + ROWS)], pa.binary()),
            "key": [KEYS[row // size % 3] for row in range(ROWS)],
        }
    )


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("window", [1, 2, 3, 8192])
def test_rows_that_were_gathered_when_connecting_failed(
    start_server: StartServer, program: Program, connect: Connect, window: int, size: int
) -> None:
    """A run that was not complete, and so in no window yet, fails like those before it: in its place, by this flush."""
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
def test_rows_that_were_gathered_when_the_retries_ended(
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
def test_rows_that_were_gathered_when_the_user_went(
    start_server: StartServer, program: Program, connect: Connect, window: int
) -> None:
    """The connection is lost, what it held is to be sent again, and the next connect fails for good."""
    server = start_server(program, config={"user": "writer on >secret ~* &* +@all"})
    client = connect(server)
    endpoint = endpoint_to(server, username="writer", password="secret")
    retry = RetryPolicy(initial_backoff=0.001, max_backoff=0.001)
    options: dict[str, Any] = {"exactly_once": "script", "window_max_entries": window, "retry": retry}
    with Dispatcher(endpoint, **options) as dispatcher:
        dispatcher.produce_batch(rows(), stream_key="key")
        dispatcher.flush().raise_for_failures()
        client.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")  # what is sent now is owed its replies
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


def test_rows_that_were_gathered_when_somebody_left(
    start_server: StartServer, program: Program, connect: Connect
) -> None:
    """Ctrl-C while others wait to be sent again: the run goes out with them, behind them, by the next flush."""
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
        # The first one was in flight, the second one was gathered, the others had not been taken.
        assert [outcome.code for outcome in reported] == [None, None, *["INTERRUPTED"] * (ROWS - 2)]
    sent = [(KEYS[row % ROWS % 3], b"%d" % row) for row in range(2 * ROWS)]
    check_accounting(connect(server), sent, [*outcomes(before), *reported])
