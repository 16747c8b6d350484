"""Exactly once by the server's idempotency IDs (IDMP, Redis 8.6.2 and later)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from headrace import ConfigError, Dispatcher, RetryPolicy
from headrace.testing import LocalServer
from support import Monitor, Program
from support.delivery import bodies
from support.fixture_types import StartServer
from support.modes import SOON
from support.patience import NEVER
from support.pipelines import DELIVERED, KEY, batch_of, endpoint_to, labels, outcomes, payloads_of, stored
from support.processes import after_ticks, in_child, kill_and_restart, killed_in_child, stop, stopped, ticking
from support.servers import DURABLE

Connect = Callable[..., Any]

#: Seconds that the policy's retries need: its deadline of 120 s, a command timeout of 30 s, and 10 s.
NEEDED = 160

idmp_only = pytest.mark.needs("idmp")


def idmp(server: LocalServer, endpoint: dict[str, Any] | None = None, **options: Any) -> Dispatcher:
    return Dispatcher(endpoint_to(server, **endpoint or {}), **{"exactly_once": "idmp", "retry": SOON, **options})


def by_message_id(server: LocalServer, **options: Any) -> Dispatcher:
    return idmp(server, exactly_once_key="message_id", **options)


def duplicates(client: Any) -> int:
    """How many messages the server deduplicated."""
    return int(client.xinfo_stream(KEY)["iids-duplicates"])


@idmp_only
def test_a_batch_that_is_begun_again_is_written_once_and_keeps_its_entry_ids(
    server: LocalServer, connect: Connect
) -> None:
    client, payloads = connect(server), payloads_of(0, 1_234, 10)
    with idmp(server) as dispatcher:
        for round_ in range(3):
            dispatcher.begin("batch")
            dispatcher.produce_batch(batch_of(payloads[:1_000]))
            for payload in payloads[1_000:]:
                dispatcher.produce(payload)
            report = dispatcher.flush()
            assert report.ok
            reported = [
                (outcome.entry_id, payload) for outcome, payload in zip(outcomes(report), payloads, strict=True)
            ]
            assert reported == stored(client)
            assert duplicates(client) == 1_234 * round_
        dispatcher.begin("batch", version=1)
        dispatcher.produce(b"another")
        assert dispatcher.flush().ok
    assert bodies(client) == [*payloads, b"another"]


@idmp_only
@pytest.mark.parametrize(
    ("trim", "left"), [({"maxlen": 10}, 10), ({"minid": "5-0"}, 95), ({"maxlen": 10, "trim_every": 7}, 15)], ids=str
)
@pytest.mark.parametrize("named", [False, True], ids=["row", "message_id"])
def test_trimming_works_with_idmp(
    server: LocalServer, connect: Connect, trim: dict[str, Any], left: int, named: bool
) -> None:
    client = connect(server)
    for number in range(1, 10):
        client.xadd(KEY, {"old": number}, id=f"{number}-0")
    make = by_message_id if named else idmp
    with make(server, endpoint={**trim, "maxlen_approximate": False}) as dispatcher:
        dispatcher.begin("batch")
        dispatcher.produce_batch(pa.table({"id": range(90), "payload": payloads_of(0, 90)}), message_id="id")
        assert dispatcher.flush().delivered == 90
    assert client.xlen(KEY) == left


@idmp_only
def test_a_new_process_writes_the_rows_refused_for_memory(server: LocalServer, connect: Connect) -> None:
    """Of ten rows two are refused; beginning the token again with all ten writes just these two."""
    client, payloads = connect(server), payloads_of(0, 10, 20)
    with idmp(server) as dispatcher:
        dispatcher.begin("batch")
        dispatcher.produce_batch(batch_of(payloads[:4]))
        assert dispatcher.flush().ok
        client.config_set("maxmemory", 1)
        dispatcher.produce_batch(batch_of(payloads[4:6]))
        assert labels(dispatcher.flush()) == [("permanent", "OOM", "unknown")] * 2
        client.config_set("maxmemory", 0)
        dispatcher.produce_batch(batch_of(payloads[6:]))
        assert dispatcher.flush().ok
    assert client.xlen(KEY) == 8

    def again() -> None:
        with idmp(server) as dispatcher:
            dispatcher.begin("batch")
            dispatcher.produce_batch(batch_of(payloads))
            assert dispatcher.flush().ok

    in_child(again)
    # The two follow those written before: a stream is append-only.
    assert bodies(client) == [*payloads[:4], *payloads[6:], *payloads[4:6]]
    assert duplicates(client) == 8


@idmp_only
def test_no_message_is_written_twice_after_a_lost_connection(
    start_server: StartServer, program: Program, connect: Connect
) -> None:
    server = start_server(program, config=DURABLE)
    payloads = payloads_of(0, 40_000, 200)
    with idmp(server, {"command_timeout": NEVER}) as dispatcher:
        dispatcher.produce_batch(batch_of(payloads[:500]))
        assert dispatcher.flush().ok
        stop(server)
        record_batch = batch_of(payloads[500:])
        with after_ticks(10, lambda: kill_and_restart(server)):
            dispatcher.produce_batch(record_batch)
        report = dispatcher.flush()
    assert (report.ok, report.delivered) == (True, 39_500)
    assert report.retries > 0
    assert report.possible_duplicates == 0
    assert bodies(connect(server)) == payloads


@idmp_only
def test_a_message_id_identifies_its_message_in_any_batch(
    start_server: StartServer, program: Program, connect: Connect
) -> None:
    """An outbox worker is killed in mid-batch; the next one finds other rows between those that were sent."""
    server = start_server(program, config=DURABLE)
    client = connect(server)

    def rows(ids: list[int]) -> pa.Table:
        return pa.table({"id": ids, "payload": [b"message %d" % number for number in ids]})

    def first_try() -> None:
        dispatcher = by_message_id(server)
        dispatcher.begin("outbox")
        dispatcher.produce_batch(rows(list(range(20_000))), message_id="id")
        os.kill(os.getpid(), signal.SIGKILL)

    killed_in_child(first_try)
    before = client.xlen(KEY)
    assert 0 < before <= 20_000
    ids = [*range(30_000, 30_100), *range(19_999, -1, -1), *range(30_100, 30_200)]
    with by_message_id(server) as dispatcher:
        dispatcher.begin("outbox")
        dispatcher.produce_batch(rows(ids[:10_000]), message_id="id")
        for number in ids[10_000:]:
            dispatcher.produce(b"message %d" % number, message_id=str(number) if number % 2 else number)
        assert dispatcher.flush().ok
    found = bodies(client)
    assert len(found) == 20_200
    assert {*found} == {b"message %d" % number for number in ids}
    assert duplicates(client) == before


@idmp_only
def test_duplicate_and_missing_message_ids_are_reported(server: LocalServer, connect: Connect) -> None:
    table = pa.table({"id": ["a", "b", None, "a"], "payload": [b"1", b"2", b"3", b"4"]})
    with by_message_id(server) as dispatcher:
        dispatcher.begin("outbox")
        dispatcher.produce_batch(table, message_id="id")
        dispatcher.produce(b"5", message_id="b")
        dispatcher.produce(b"6")
        dispatcher.produce(b"7", message_id="c")
        assert labels(dispatcher.flush()) == [
            *[DELIVERED] * 2,
            ("permanent", "NULL_MESSAGE_ID", "no"),
            *[("permanent", "DUPLICATE_ID", "no")] * 2,
            ("permanent", "NULL_MESSAGE_ID", "no"),
            DELIVERED,
        ]
        # In another batch the same messages are written again.
        dispatcher.begin("outbox")
        dispatcher.produce(b"1", message_id="a")
        assert dispatcher.flush().ok
        with pytest.raises(ConfigError, match="exactly_once_key 'message_id' needs message_id"):
            dispatcher.produce_batch(table)
    assert bodies(connect(server)) == [b"1", b"2", b"7"]


@idmp_only
def test_rows_that_cannot_be_written_keep_their_numbers(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    table = pa.table({"payload": [b"a", None, b"c"]})
    for _ in range(2):
        with idmp(server) as dispatcher:
            dispatcher.begin("batch")
            dispatcher.produce_batch(table)
            assert labels(dispatcher.flush()) == [DELIVERED, ("permanent", "NULL_PAYLOAD", "no"), DELIVERED]
    with idmp(server) as dispatcher:
        dispatcher.begin("batch")
        dispatcher.produce_batch(pa.table({"payload": [b"a", b"now", b"c"]}))
        assert dispatcher.flush().ok
    assert bodies(client) == [b"a", b"c", b"now"]


@idmp_only
def test_the_stream_is_configured_before_the_first_message(server: LocalServer, connect: Connect) -> None:
    """Only on a stream without stored IDs: a changed setting drops the IDs of all producers."""
    client = connect(server)
    with idmp(server) as dispatcher, Monitor(server) as monitor:
        dispatcher.produce(b"1")
        assert dispatcher.flush().ok
        names = [command[0] for command in monitor.commands()]
    assert names.index(b"XCFGSET") < names.index(b"XADD")
    info = client.xinfo_stream(KEY)
    assert (info["idmp-duration"], info["idmp-maxsize"], info["groups"]) == (NEEDED, 100, 0)

    with idmp(server, idmp_duration=300) as dispatcher:
        dispatcher.produce(b"2")
        (failure,) = dispatcher.flush().failed
    assert (failure.kind, failure.code, failure.written) == ("permanent", "UNSUPPORTED", "no")
    assert f"remembers names for {NEEDED} s" in failure.message
    assert f"XCFGSET {KEY} IDMP-DURATION 330 IDMP-MAXSIZE 100" in failure.message
    client.execute_command("XCFGSET", KEY, "IDMP-DURATION", 330)
    with idmp(server, idmp_duration=300) as dispatcher:
        dispatcher.produce(b"2")
        assert dispatcher.flush().ok
    assert bodies(client) == [b"1", b"2"]


@idmp_only
def test_a_stream_that_remembers_too_few_ids_is_reconfigured(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    client.xadd(KEY, {"payload": "0"})
    client.execute_command("XCFGSET", KEY, "IDMP-MAXSIZE", 10, "IDMP-DURATION", 1_000)
    with idmp(server) as dispatcher:
        dispatcher.produce(b"1")
        assert dispatcher.flush().ok
    info = client.xinfo_stream(KEY)
    assert (info["idmp-duration"], info["idmp-maxsize"]) == (1_000, 100)


@idmp_only
def test_nomkstream_creates_no_stream(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    with idmp(server, {"nomkstream": True}) as dispatcher:
        dispatcher.produce(b"1")
        assert labels(dispatcher.flush()) == [("retryable", "NO_STREAM", "no")]
        assert client.exists(KEY) == 0
        client.xadd(KEY, {"payload": "0"})
        dispatcher.produce(b"1")
        assert dispatcher.flush().ok
    assert bodies(client) == [b"0", b"1"]


def test_a_server_without_idmp_is_reported_before_the_first_message(
    start_server: StartServer, program: Program, connect: Connect
) -> None:
    server = start_server(program)
    with idmp(server) as dispatcher:
        dispatcher.produce(b"1")
        failed = dispatcher.flush().failed
    assert len(failed) == 1 - program.can("idmp")
    assert connect(server).exists(KEY) == program.can("idmp")
    for failure in failed:
        assert (failure.kind, failure.code, failure.written) == ("permanent", "UNSUPPORTED", "no")
        assert f"needs Redis 8.6.2 or later, and this is {program.name} {program.version}" in failure.message


@idmp_only
@pytest.mark.parametrize(
    ("rights", "missing"),
    [
        ("+xadd", "needs XINFO STREAM: NOPERM"),
        ("+xadd +xinfo|stream", "needs XGROUP CREATE: NOPERM"),
        ("+xadd +xinfo|stream +xgroup|create +xgroup|destroy", "needs XCFGSET: NOPERM"),
    ],
)
def test_missing_permissions_are_named_before_the_first_message(
    server: LocalServer, connect: Connect, rights: str, missing: str
) -> None:
    client = connect(server)
    client.execute_command("ACL", "SETUSER", "app", "on", ">pw", "~*", *rights.split())
    with idmp(server, {"username": "app", "password": "pw"}) as dispatcher:
        dispatcher.produce(b"1")
        (failure,) = dispatcher.flush().failed
        assert (failure.kind, failure.code, failure.written) == ("permanent", "NOPERM", "no")
        assert missing in failure.message
        assert client.exists(KEY) == 0 or client.xlen(KEY) == 0
        # A stream with sufficient settings needs fewer permissions.
        client.xadd(KEY, {"payload": "0"})
        client.execute_command("XCFGSET", KEY, "IDMP-DURATION", 1_000)
        client.execute_command("ACL", "SETUSER", "app", "+xinfo|stream")
        dispatcher.produce(b"1")
        assert dispatcher.flush().ok


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exactly_once_key": "message_id"}, "exactly_once_key needs exactly_once 'idmp', got 'off'"),
        ({"exactly_once": "script", "idmp_duration": 5}, "idmp_duration needs exactly_once 'idmp', got 'script'"),
        ({"exactly_once": "idmp", "token_ttl": 5}, "token_ttl needs exactly_once 'auto' or 'script', got 'idmp'"),
        ({"exactly_once": "idmp", "idmp_duration": 0}, "idmp_duration must be a number of seconds from 1 to 86400"),
        ({"exactly_once": "idmp", "exactly_once_key": "id"}, "exactly_once_key must be one of 'row', 'message_id'"),
        (
            {"exactly_once": "idmp", "retry": RetryPolicy(deadline=86_000)},
            "retry_deadline must be at most 80000 with exactly_once 'idmp', got 86000",
        ),
        ({"ordered": True, "window_max_entries": 5}, "ordered and window_max_entries are mutually exclusive"),
    ],
)
def test_contradictory_options_are_refused(any_server: LocalServer, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Dispatcher(endpoint_to(any_server), **options)


def test_layouts_without_idmp_are_refused(any_server: LocalServer) -> None:
    table = pa.table({"payload": [b"a"], "key": ["k"], "id": ["1-1"]})
    with idmp(any_server) as dispatcher:
        for layout in ({"rows_per_entry": 2}, {"arrow_ipc": True}, {"stream_key": "key"}, {"entry_id": "id"}):
            with pytest.raises(ConfigError, match="exactly_once"):
                dispatcher.produce_batch(table, **layout)
        with pytest.raises(ConfigError, match="dispatch is not for exactly_once"):
            dispatcher.dispatch(b"1")


def test_ordered_messages_are_not_overtaken(server: LocalServer, connect: Connect) -> None:
    """A message is retried until it is accepted, before the next one goes out."""
    client = connect(server)
    payloads = payloads_of(0, 200, 20)
    client.config_set("maxmemory", 1)
    retry = RetryPolicy(initial_backoff=0.01, max_backoff=0.02)
    with Dispatcher(endpoint_to(server), ordered=True, retry=retry, error_overrides={"OOM": "retryable"}) as dispatcher:

        def give_memory() -> bool:
            refused = "errorstat_OOM" in client.info("errorstats")
            return refused and client.config_set("maxmemory", 0)

        with ticking(give_memory):
            dispatcher.produce_batch(batch_of(payloads))
            report = dispatcher.flush()
        assert (report.ok, report.retries > 0) == (True, True)
    assert bodies(client) == payloads


@idmp_only
def test_deduplicated_messages_wait_for_the_replica(
    any_replicated: tuple[LocalServer, LocalServer], connect: Connect
) -> None:
    """Each attempt uses a new connection, whose WAIT covers the deduplicated messages as well."""
    master, replica = any_replicated
    payloads = payloads_of(0, 300, 20)

    def attempt(timeout: float) -> set[Any]:
        with idmp(master, wait_replicas=1, wait_timeout=timeout) as dispatcher:
            dispatcher.begin("batch")
            dispatcher.produce_batch(batch_of(payloads))
            return set(labels(dispatcher.flush()))

    with stopped(replica):
        assert attempt(0.1) == {("retryable", "NOT_REPLICATED", "unknown")}
        assert attempt(0.1) == {("retryable", "NOT_REPLICATED", "unknown")}
    assert attempt(10) == {DELIVERED}
    assert bodies(connect(replica)) == payloads
