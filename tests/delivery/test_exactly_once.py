"""Exactly once: batches that are begun again, after crashes and lost connections, and what stops one."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from headrace import ConfigError, Dispatcher, Endpoint, RetryPolicy, StateError
from headrace.testing import LocalServer
from support import Monitor, Program
from support.delivery import MARKER, bodies, script
from support.fixture_types import StartServer
from support.patience import NEVER
from support.pipelines import DELIVERED, KEY, batch_of, endpoint_to, labels, outcomes, payloads_of, stored
from support.processes import after_ticks, in_child, kill_and_restart, killed_in_child, stop
from support.servers import DURABLE

Connect = Callable[..., Any]


def test_a_batch_that_is_begun_again_is_written_once(server: LocalServer, connect: Connect) -> None:
    client, payloads = connect(server), payloads_of(0, 1_234, 10)
    with script(server) as dispatcher:
        for round_ in range(3):
            dispatcher.begin("batch")
            dispatcher.produce_batch(batch_of(payloads))
            report = dispatcher.flush()
            assert (report.ok, report.delivered) == (True, 1_234)
            assert report.deduplicated == (1_234 if round_ else 0)
            reported = outcomes(report)
            if round_:
                assert {outcome.entry_id for outcome in reported} == {None}
                assert {outcome.label for outcome in reported} == {DELIVERED}
            else:
                assert [
                    (outcome.entry_id, payload) for outcome, payload in zip(reported, payloads, strict=True)
                ] == stored(client)
    assert bodies(client) == payloads
    assert client.get(MARKER) == b"0 1234"
    assert 0 < client.ttl(MARKER) <= 86_400


def test_another_process_continues_where_the_first_was_killed(
    start_server: StartServer, program: Program, connect: Connect
) -> None:
    """Killed in mid-batch, with rows in flight; rows keep their numbers whichever calls hand them over."""
    server = start_server(program, config=DURABLE)
    payloads = payloads_of(0, 30_000, 50)

    def first_try() -> None:
        dispatcher = script(server)
        dispatcher.begin("batch")
        dispatcher.produce_batch(batch_of(payloads[:20_000]))
        dispatcher.poll()
        os.kill(os.getpid(), signal.SIGKILL)

    killed_in_child(first_try)
    client = connect(server)
    before = client.xlen(KEY)
    assert 0 < before < 30_000
    with script(server, script_run_rows=7) as dispatcher:
        dispatcher.begin("batch")
        for payload in payloads[:5_000]:
            dispatcher.produce(payload)
        first = dispatcher.flush()
        dispatcher.produce_batch(batch_of(payloads[5_000:]))
        report = dispatcher.flush()
    assert first.ok
    assert report.ok
    assert first.deduplicated + report.deduplicated >= before
    assert bodies(client) == payloads


@pytest.mark.parametrize("fault", ["kill", "restart-empty-scripts"])
def test_no_message_is_written_twice_after_a_lost_connection(
    start_server: StartServer, program: Program, connect: Connect, fault: str
) -> None:
    server = start_server(program, config=DURABLE)
    payloads = payloads_of(0, 40_000, 200)
    with script(server, {"command_timeout": NEVER}) as dispatcher:
        dispatcher.produce_batch(batch_of(payloads[:500]))
        first = dispatcher.flush()
        if fault == "kill":
            stop(server)
            record_batch = batch_of(payloads[500:])
            with after_ticks(10, lambda: kill_and_restart(server)):
                dispatcher.produce_batch(record_batch)
        else:
            connect(server).script_flush()
            dispatcher.produce_batch(batch_of(payloads[500:]))
        report = dispatcher.flush()
    assert (first.ok, report.ok, first.delivered + report.delivered) == (True, True, 40_000)
    assert (report.retries > 0) == (fault == "kill"), "rows that only lacked the script were not tried"
    assert report.possible_duplicates == 0
    assert bodies(connect(server)) == payloads


def test_a_forgotten_script_is_sent_again_without_a_retry_policy(server: LocalServer, connect: Connect) -> None:
    """Redis 8.6 forgets a script that EVAL loaded after some hundred others."""
    client, payloads = connect(server), payloads_of(0, 2_000, 20)
    with script(server, retry=None, script_run_rows=10) as dispatcher:
        dispatcher.produce_batch(batch_of(payloads[:500]))
        assert dispatcher.flush().ok
        client.script_flush()
        dispatcher.produce_batch(batch_of(payloads[500:]))
        report = dispatcher.flush()
    assert (report.ok, report.delivered, report.retries) == (True, 1_500, 0)
    assert bodies(client) == payloads


def test_an_out_of_memory_error_blocks_the_rest_of_the_batch(server: LocalServer, connect: Connect) -> None:
    """OOM is permanent by default, so the rest is blocked. A new process then writes it once."""
    client = connect(server)
    payloads = payloads_of(0, 1_000, 20)
    with script(server, script_run_rows=10) as dispatcher:
        dispatcher.begin("batch")
        dispatcher.produce_batch(batch_of(payloads[:305]))
        assert dispatcher.flush().ok
        client.config_set("maxmemory", 1)
        dispatcher.produce_batch(batch_of(payloads[305:]))
        report = dispatcher.flush()
        assert report.delivered == 0
        reported = labels(report)
        assert reported[0] == ("permanent", "OOM", "no")
        assert set(reported[10:]) == {("retryable", "BLOCKED", "no")}
        client.config_set("maxmemory", 0)
        # Later rows stay blocked to keep the order.
        dispatcher.produce(b"behind")
        assert labels(dispatcher.flush()) == [("retryable", "BLOCKED", "no")]
        assert bodies(client) == payloads[:305]

    def second_try() -> tuple[int, int]:
        with script(server) as again:
            again.begin("batch")
            again.produce_batch(batch_of(payloads))
            report = again.flush().raise_for_failures()
            return report.delivered, report.deduplicated

    assert in_child(second_try) == (1_000, 305)
    assert bodies(client) == payloads


def test_an_out_of_memory_error_is_retried_under_failover(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    payloads = payloads_of(0, 2_000, 20)
    with script(server, classify="failover") as dispatcher:
        dispatcher.produce_batch(batch_of(payloads[:500]))
        assert dispatcher.flush().ok
        client.config_set("maxmemory", 1)
        record_batch = batch_of(payloads[500:])
        with after_ticks(10, lambda: client.config_set("maxmemory", 0)):
            dispatcher.produce_batch(record_batch)
            report = dispatcher.flush()
        assert (report.ok, report.delivered, report.deduplicated) == (True, 1_500, 0)
        assert bodies(client) == payloads


@pytest.mark.parametrize("mode", ["script", "idmp"])
def test_rows_that_an_earlier_attempt_may_have_written_are_unknown(any_server: LocalServer, mode: Any) -> None:
    """Only the server knows of earlier attempts, and it is down. A batch without a token has none."""
    nowhere = Endpoint(unix_socket=any_server.unix_socket + ".none", stream_key=KEY)
    with Dispatcher(nowhere, exactly_once=mode, retry=RetryPolicy(max_attempts=1)) as dispatcher:
        for written in ("no", "unknown"):
            dispatcher.produce_batch(batch_of(payloads_of(0, 3)))
            assert labels(dispatcher.flush()) == [("retryable", "CONNECT", written)] * 3
            dispatcher.begin("batch")


def test_an_error_within_a_script_call_blocks_only_its_stream(server: LocalServer, connect: Connect) -> None:
    """An entry ID that is too small in the middle of a script call: its own code, and later rows are blocked."""
    client = connect(server)
    ids = [f"{n + 1}-1" for n in range(20)]
    ids[7] = "1-1"
    batch = pa.record_batch({"payload": [f"{n}" for n in range(20)], "id": ids, "key": ["a"] * 10 + ["b"] * 10})
    with script(server) as dispatcher:
        dispatcher.begin("batch")
        dispatcher.produce_batch(batch, entry_id="id", stream_key="key")
        report = dispatcher.flush()
        assert labels(report) == [
            *[DELIVERED] * 7,
            ("retryable", "ERR", "no"),
            *[("retryable", "BLOCKED", "no")] * 2,
            *[DELIVERED] * 10,
        ]
        assert "equal or smaller" in report.failed[0].message
        assert (bodies(client, "a"), len(bodies(client, "b"))) == ([b"%d" % n for n in range(7)], 10)
        assert client.get("{a}:headrace:batch") == b"0 7"
        # After skip_failed the stream continues.
        dispatcher.skip_failed()
        dispatcher.produce_batch(pa.record_batch({"payload": ["on"], "key": ["a"]}), stream_key="key")
        assert dispatcher.flush().ok
        assert bodies(client, "a")[7:] == [b"on"]


def test_wrongtype_within_a_script_call_keeps_its_code(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    client.set(KEY, "no stream")
    with script(server, script_run_rows=10) as dispatcher:
        dispatcher.produce_batch(batch_of(payloads_of(0, 35)))
        report = dispatcher.flush()
        assert labels(report) == [("permanent", "WRONGTYPE", "no"), *[("retryable", "BLOCKED", "no")] * 34]
        assert report.failed[0].message == "WRONGTYPE Operation against a key holding the wrong kind of value"


def test_rows_that_cannot_be_written_are_skipped(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    column = pa.array([None if n % 10 == 3 else b"%d" % n for n in range(100)], pa.binary())
    with script(server) as dispatcher:
        for round_ in range(2):
            dispatcher.begin("batch")
            dispatcher.produce_batch(pa.record_batch({"payload": column}))
            report = dispatcher.flush()
            assert Counter(labels(report)) == {DELIVERED: 90, ("permanent", "NULL_PAYLOAD", "no"): 10}
            assert report.deduplicated == 90 * round_
    assert len(bodies(client)) == 90


def test_a_newer_version_takes_over_a_token(server: LocalServer, connect: Connect) -> None:
    """Each micro-batch of a stream does so."""
    client = connect(server)
    with script(server) as dispatcher:
        for version, count in ((3, 50), (4, 20)):
            dispatcher.begin("query", version)
            dispatcher.produce_batch(batch_of(payloads_of(version * 100, count)))
            assert dispatcher.flush().deduplicated == 0
        assert client.get("{events}:headrace:query") == b"4 20"
        for version, count, deduplicated in ((3, 50, 50), (4, 30, 20), (2, 5, 5)):
            dispatcher.begin("query", version)
            dispatcher.produce_batch(batch_of(payloads_of(version * 100, count)))
            report = dispatcher.flush()
            assert (report.ok, report.deduplicated) == (True, deduplicated)
    assert bodies(client) == payloads_of(300, 50) + payloads_of(400, 30)


def test_a_lost_marker_is_reported(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    with script(server) as dispatcher:
        dispatcher.begin("batch")
        dispatcher.produce_batch(batch_of(payloads_of(0, 50)))
        assert dispatcher.flush().ok
        client.delete(MARKER)
        dispatcher.produce(b"behind")
        report = dispatcher.flush()
        assert labels(report) == [("permanent", "MARKER_LOST", "unknown")]
        what = "is gone: of its messages in this stream those from 0 to 49 (from 0) were acknowledged, and may be lost"
        assert report.failed[0].message == f'the marker of the batch in "events" {what}'
        client.rpush(MARKER, "something else")
        dispatcher.begin("batch")
        dispatcher.produce(b"again")
        assert labels(dispatcher.flush()) == [("permanent", "WRONGTYPE", "unknown")]
        client.delete(MARKER)
        client.set(MARKER, "something else")
        dispatcher.begin("batch")
        dispatcher.produce(b"again")
        assert labels(dispatcher.flush()) == [("permanent", "BAD_MARKER", "unknown")]
    assert len(bodies(client)) == 50


def test_an_unreachable_server_skips_no_row_number(start_server: StartServer, connect: Connect) -> None:
    """Later rows must not count unsent failed rows as skipped."""
    server = start_server(config=DURABLE)
    payloads = payloads_of(0, 3_000)
    policy = RetryPolicy(initial_backoff=0, max_backoff=0, max_attempts=1)
    with script(server, retry=policy, window_max_entries=200) as dispatcher:
        dispatcher.begin("batch")
        dispatcher.produce_batch(batch_of(payloads[:1_000]))
        assert dispatcher.flush().ok
        server.kill()
        dispatcher.produce_batch(batch_of(payloads[1_000:2_000]))
        assert {failure.written for failure in dispatcher.flush().failed} <= {"no", "unknown"}
        server.restart()
        dispatcher.produce_batch(batch_of(payloads[2_000:]))
        assert {failure.code for failure in dispatcher.flush().failed} == {"BLOCKED"}
        dispatcher.begin("batch")
        dispatcher.produce_batch(batch_of(payloads))
        assert dispatcher.flush().raise_for_failures().deduplicated >= 1_000
    assert bodies(connect(server)) == payloads


RIGHTS = ["+xadd", "+eval", "+evalsha", "+get", "+set"]


@pytest.mark.needs("redis-7.0")
@pytest.mark.parametrize(
    ("without", "message"),
    [
        ("+eval", "exactly_once needs EVAL: NOPERM"),
        ("+evalsha", 'right to EVALSHA on the marker "{events}:headrace:batch"'),
        ("+xadd", 'right to XADD on the stream "events"'),
        ("+get", "exactly_once 'script' needs the right to GET on the marker"),
        ("+set", "exactly_once 'script' needs the right to SET on the marker"),
        ("~{events}:headrace:*", "NOPERM"),
    ],
)
def test_missing_permissions_are_named_before_the_first_message(
    server: LocalServer, connect: Connect, without: str, message: str
) -> None:
    client = connect(server)
    rights = [right for right in [*RIGHTS, "~events", "~{events}:headrace:*"] if right != without]
    client.execute_command("ACL", "SETUSER", "writer", "on", ">secret", *rights)
    with script(server, {"username": "writer", "password": "secret"}) as dispatcher, Monitor(server) as monitor:
        dispatcher.begin("batch")
        dispatcher.produce(b"x")
        (failure,) = dispatcher.flush().failed
        # The marker was not read: an earlier attempt may have written the row.
        assert (failure.kind, failure.code, failure.written) == ("permanent", "NOPERM", "unknown")
        assert message in failure.message
        assert monitor.commands("XADD", "EVALSHA") == []
        client.execute_command("ACL", "SETUSER", "writer", without)
        dispatcher.begin("batch")
        dispatcher.produce(b"x")
        assert dispatcher.flush().ok
    assert bodies(client) == [b"x"]


def test_redis_6_2_reports_missing_permissions_with_the_first_row(server: LocalServer, connect: Connect) -> None:
    """Before Redis 7.0 scripts cannot check permissions: setting the marker fails, and nothing is written."""
    client = connect(server)
    client.execute_command("ACL", "SETUSER", "writer", "on", ">secret", "~*", "+eval", "+evalsha", "+xadd", "+get")
    with script(server, {"username": "writer", "password": "secret"}) as dispatcher:
        dispatcher.produce(b"x")
        (failure,) = dispatcher.flush().failed
    assert (failure.kind, failure.code, failure.written) == ("permanent", "NOPERM", "no")
    assert client.xlen(KEY) == 0


@pytest.mark.parametrize("classify", ["default", "failover", "strict"])
@pytest.mark.parametrize("command", ["EVAL", "EVALSHA", "XADD", "GET", "SET"])
def test_an_unknown_command_is_permanent(
    start_server: StartServer, program: Program, connect: Connect, command: str, classify: Any
) -> None:
    server = start_server(program, config={"rename-command": f'{command} ""'})
    with script(server, classify=classify, retry=RetryPolicy(deadline=600)) as dispatcher:
        dispatcher.produce(b"x")
        report = dispatcher.flush()
        failures = report.failed
    if command == "EVALSHA" and program.is_redis and program.numbers < (7,):
        assert report.ok, "one run is sent by EVAL, and the probe of Redis 6.2 cannot ask for EVALSHA"
        return
    (failure,) = failures
    assert (failure.kind, failure.written, report.retries) == ("permanent", "no", 0)
    if command == "EVAL":
        assert failure.code == "ERR"
        assert failure.message.startswith("EVAL was refused: ERR unknown command")
    elif program.is_redis and program.numbers < (7,):
        assert (failure.code, failure.message) == ("ERR", "ERR Unknown Redis command called from Lua script")
    else:
        needed = f"exactly_once 'script' needs the command {command}, which the server does not have"
        assert (failure.code, failure.message) == ("UNSUPPORTED", needed)
    if command != "XADD":
        assert connect(server).xlen(KEY) == 0


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_server_that_may_evict_the_marker_is_refused(server: LocalServer, connect: Connect, policy: str) -> None:
    client = connect(server)
    client.config_set("maxmemory-policy", policy)
    with script(server) as dispatcher:
        # Without a memory limit nothing is evicted.
        dispatcher.produce(b"first")
        assert dispatcher.flush().ok
    client.config_set("maxmemory", 1_000_000_000)
    with script(server) as dispatcher:
        dispatcher.produce(b"second")
        (failure,) = dispatcher.flush().failed
    assert (failure.kind, failure.code, failure.written) == ("permanent", "UNSUPPORTED", "no")
    assert f"needs maxmemory-policy noeviction: the server's is {policy}" in failure.message
    assert bodies(client) == [b"first"]


def test_a_new_process_writes_the_rows_refused_for_memory(server: LocalServer, connect: Connect) -> None:
    """It begins the token again with all ten rows: the stream holds ten entries, in the order of the batch."""
    client, payloads = connect(server), payloads_of(0, 10, 20)
    with script(server) as dispatcher:
        dispatcher.begin("batch")
        dispatcher.produce_batch(batch_of(payloads[:8]))
        assert dispatcher.flush().ok
        client.config_set("maxmemory", 1)
        dispatcher.produce_batch(batch_of(payloads[8:]))
        assert labels(dispatcher.flush()) == [("permanent", "OOM", "no"), ("retryable", "BLOCKED", "no")]
        client.config_set("maxmemory", 0)

    def again() -> int:
        with script(server) as dispatcher:
            dispatcher.begin("batch")
            dispatcher.produce_batch(batch_of(payloads))
            report = dispatcher.flush()
            assert report.ok
            return report.deduplicated

    assert in_child(again) == 8
    assert bodies(client) == payloads


@pytest.fixture
def off(any_server: LocalServer) -> Iterator[Dispatcher]:
    with Dispatcher(endpoint_to(any_server)) as dispatcher:
        yield dispatcher


def test_incompatible_options_are_refused_before_anything_is_sent(any_server: LocalServer, off: Dispatcher) -> None:
    with pytest.raises(ConfigError, match="begin needs exactly_once 'auto', 'idmp' or 'script', got 'off'"):
        off.begin("batch")
    with pytest.raises(ConfigError, match="token_ttl needs exactly_once 'auto' or 'script'"):
        Dispatcher(endpoint_to(any_server), token_ttl=5)
    with pytest.raises(ConfigError, match="exactly_once must be one of 'off', 'auto', 'idmp', 'script', got 'on'"):
        Dispatcher(endpoint_to(any_server), exactly_once="on")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="script_run_rows must be an integer from 1 to 1000, got 1001"):
        script(any_server, script_run_rows=1_001)
    with script(any_server) as dispatcher:
        with pytest.raises(ConfigError, match="exactly_once excludes rows_per_entry and arrow_ipc"):
            dispatcher.produce_batch(batch_of([b"x"]), rows_per_entry=2)
        with pytest.raises(ConfigError, match="dispatch is not for exactly_once"):
            dispatcher.dispatch(b"x")
        dispatcher.produce(b"x")
        with pytest.raises(StateError, match="flush before"):
            dispatcher.begin("t")
        with pytest.raises(StateError, match="flush before"):
            dispatcher.skip_failed()


def test_a_row_that_is_too_large_does_not_fail_the_rows_before_it(start_server: StartServer, connect: Connect) -> None:
    """The server does not say which row of a script call it was, so a large row is a call of its own."""
    server = start_server(config={"proto-max-bulk-len": "1mb"})
    payloads = payloads_of(0, 10, 20)
    payloads[5] = b"x" * 2_000_000
    too_large, blocked = ("permanent", "TOO_LARGE", "unknown"), ("retryable", "BLOCKED", "no")
    with script(server) as dispatcher:
        dispatcher.begin("batch")
        dispatcher.produce_batch(batch_of(payloads))
        assert labels(dispatcher.flush()) == [DELIVERED] * 5 + [too_large] + [blocked] * 4
        dispatcher.skip_failed()
        dispatcher.produce_batch(batch_of(payloads[6:]))
        assert dispatcher.flush().ok
    assert bodies(connect(server)) == payloads[:5] + payloads[6:]


def test_trimming_and_layouts_work_in_a_script(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    batch = pa.record_batch({"id": range(1_000), "name": [None if n % 2 else f"n{n}" for n in range(1_000)]})
    with script(server, {"maxlen": 100, "maxlen_approximate": False}, ts_field=None) as dispatcher:
        dispatcher.produce_batch(batch, fields=["id", "name"])
        assert dispatcher.flush().ok
    entries = [fields for _, fields in client.xrange(KEY)]
    assert len(entries) == 100
    assert entries[-2:] == [{b"id": b"998", b"name": b"n998"}, {b"id": b"999"}]
    with script(server, {"stream_key": "missing", "nomkstream": True}) as dispatcher:
        dispatcher.produce(b"x")
        assert labels(dispatcher.flush()) == [("retryable", "NO_STREAM", "no")]
