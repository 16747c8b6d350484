"""Servers whose state changes in the middle of a pipeline, in every mode: each message has the right outcome."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from faults.scenario import pack
from faults.tracked_dispatcher import (
    BLOCKED,
    ROWS,
    Label,
    TrackedDispatcher,
    make_dispatcher,
    retry_options,
    tracked_dispatcher,
)
from support import Program
from support.fixture_types import Replicate, StartServer
from support.modes import MODES, SOON, Pair, can, pairs
from support.pipelines import DELIVERED, KEY, batch_of, labels, payloads_of, stored
from support.processes import after_ticks, wait_until

pytestmark = pytest.mark.thorough

Connect = Callable[..., Any]
every_pair = pytest.mark.parametrize("pair", pairs(), ids=str)
newer_pairs = pytest.mark.parametrize("pair", [pair for pair in pairs() if pair.program.can("redis-7.0")], ids=str)


def check_refused(reported: Sequence[Label], refused: Label, mode: str) -> None:
    """Check that the first were delivered and the others refused; in script mode one is refused, the others blocked."""
    taken = reported.index(refused)
    assert 0 < taken < ROWS
    behind = [refused] * (ROWS - taken)
    if mode == "script":
        behind = [refused] + [BLOCKED] * (ROWS - taken - 1)
    assert reported == [DELIVERED] * taken + behind


def go_on(tracked: TrackedDispatcher, mode: str) -> None:
    """Check that later messages are delivered."""
    if mode == "script":
        tracked.dispatcher.skip_failed()
    assert tracked.send(ROWS) == [DELIVERED] * ROWS


# --- row 10: a server becomes a replica


@every_pair
def test_messages_are_refused_after_a_server_becomes_a_replica(
    pair: Pair, start_server: StartServer, connect: Connect
) -> None:
    server = start_server(pair.program)
    client = connect(server)
    with tracked_dispatcher(pair, server) as tracked:
        reported = tracked.send_while(server, ("REPLICAOF", "127.0.0.1", 1))
        check_refused(reported, ("permanent", "READONLY", "no"), pair.mode)
        tracked.check(client)
        client.replicaof("NO", "ONE")
        go_on(tracked, pair.mode)
        tracked.check(client)


@every_pair
def test_retries_deliver_to_a_server_that_is_temporarily_a_replica(
    pair: Pair, start_server: StartServer, connect: Connect
) -> None:
    server = start_server(pair.program)
    client = connect(server)
    with tracked_dispatcher(pair, server, classify="failover", retry=SOON) as tracked:
        with tracked.in_flight_while(server, ("REPLICAOF", "127.0.0.1", 1)):
            with after_ticks(3, lambda: client.replicaof("NO", "ONE")):
                reported = tracked.flush()
            assert reported == [DELIVERED] * ROWS
        check_complete(tracked, client, pair.mode)


def check_complete(tracked: TrackedDispatcher, client: Any, mode: str) -> None:
    """Check that every message is stored once; in script mode in order."""
    kept = [payload for _, payload in stored(client)]
    assert sorted(kept) == sorted(tracked.sent)
    assert mode != "script" or kept == tracked.sent
    assert tracked.possible_duplicates == 0


@every_pair
def test_a_failover_keeps_delivered_messages(pair: Pair, replicate: Replicate, connect: Connect) -> None:
    """The new master has the delivered messages and no others."""
    server, replica = replicate(pair.program)
    client = connect(replica)
    with tracked_dispatcher(pair, server) as tracked:
        reported = tracked.send_while(server, ("FAILOVER",))
        check_refused(reported, ("permanent", "READONLY", "no"), pair.mode)
        wait_until(lambda: client.role()[0] == b"master")
        tracked.check(client)


# --- rows 6 and 8: permissions and users


@every_pair
def test_messages_are_refused_after_a_permission_is_revoked(
    pair: Pair, start_server: StartServer, connect: Connect
) -> None:
    server = start_server(pair.program, config={"user": "app on >secret ~* &* +@all"})
    client = connect(server)
    with tracked_dispatcher(pair, server, {"username": "app", "password": "secret"}) as tracked:
        reported = tracked.send_while(server, ("ACL", "SETUSER", "app", "-xadd"))
        check_refused(reported, ("permanent", "NOPERM", "no"), pair.mode)
        tracked.check(client)
        client.execute_command("ACL", "SETUSER", "app", "+xadd")
        go_on(tracked, pair.mode)
        tracked.check(client)


@every_pair
def test_messages_fail_after_a_user_is_deleted(pair: Pair, start_server: StartServer, connect: Connect) -> None:
    """Without the user nothing is retried; with a new user the batch is repeated, and written once."""
    server = start_server(pair.program, config={"user": "app on >secret ~* &* +@all"})
    client = connect(server)
    exactly_once: dict[str, Any] = {"token": "batch", "retry": SOON} if pair.mode != "off" else {}
    with tracked_dispatcher(pair, server, {"username": "app", "password": "secret"}, **exactly_once) as tracked:
        reported = tracked.send_while(server, ("ACL", "DELUSER", "app"))
        taken = reported.count(DELIVERED)
        assert reported[:taken] == [DELIVERED] * taken
        lost = {(kind, code, written) for kind, code, written in reported[taken:]}
        if pair.mode == "off":
            assert lost <= {("retryable", "RESET", "unknown"), ("retryable", "EOF", "unknown")}
        else:
            assert lost == {("permanent", "WRONGPASS", "unknown")}
        tracked.check(client)
        assert tracked.send(1)[0][1] in ("WRONGPASS", "BLOCKED")
        client.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all")
        if pair.mode == "off":
            go_on(tracked, pair.mode)
            tracked.check(client)
            return
        tracked.dispatcher.begin("batch")
        tracked.dispatcher.produce_batch(batch_of(tracked.sent))
        assert tracked.dispatcher.flush().ok
        check_complete(tracked, client, pair.mode)


@every_pair
def test_the_next_connection_uses_changed_credentials(
    pair: Pair, start_server: StartServer, connect: Connect, tmp_path: Path
) -> None:
    """Row 21: the next connection reads the password file again."""
    server = start_server(pair.program, config={"user": "app on >first ~* &* +@all"})
    client = connect(server)
    file = tmp_path / "password"
    file.touch(mode=0o600)
    file.write_text("first")
    with tracked_dispatcher(
        pair, server, {"username": "app", "password_file": file}, retry=SOON if pair.mode != "off" else None
    ) as tracked:
        mine = next(line["id"] for line in client.client_list() if line["user"] == "app")
        client.execute_command("ACL", "SETUSER", "app", "resetpass", ">second")
        file.write_text("second")
        reported = tracked.send_while(server, ("CLIENT", "KILL", "ID", mine))
        if pair.mode == "off":
            assert {code for _, code, _ in reported} <= {None, "RESET", "EOF"}
            go_on(tracked, pair.mode)
            tracked.check(client)
        else:
            assert reported == [DELIVERED] * ROWS
            check_complete(tracked, client, pair.mode)


# --- row 8: memory


@every_pair
@pytest.mark.parametrize("classify", ["default", "failover"])
def test_outcomes_are_correct_while_memory_runs_out_temporarily(
    pair: Pair, start_server: StartServer, connect: Connect, classify: Any
) -> None:
    """Another client trims another stream, but only after a refusal: ours runs out of memory, then has some again."""
    server = start_server(pair.program)
    client, other = connect(server), connect(server)
    client.eval("for i = 1, 400 do redis.call('XADD', 'ballast', '*', 'x', string.rep('x', 20000)) end", 0)
    retry: dict[str, Any] = {"retry": SOON} if classify == "failover" else {}
    with tracked_dispatcher(pair, server, classify=classify, **retry) as tracked:
        client.config_set("maxmemory", client.info("memory")["used_memory"] + 100_000)
        with trimming(other) as answered:
            if classify == "failover":
                assert tracked.send(200) == [DELIVERED] * 200
                assert tracked.dispatcher.stats().retries > 0
            elif pair.mode == "script":
                reported = tracked.send(200)
                taken = reported.count(DELIVERED)
                assert taken < 200
                assert reported == [DELIVERED] * taken + [("permanent", "OOM", "no")] + [BLOCKED] * (199 - taken)
                tracked.dispatcher.skip_failed()
            else:
                for _ in range(3):
                    tracked.produce(300)  # of 1 KB: at most 200 KB are free
                    wait_until(lambda: tracked.poll() == len(tracked.sent))
                    wait_until(lambda: answered() == refusals(client))
                codes = [code for code, _ in itertools.groupby(reported.code for reported in tracked.reported)]
                assert set(codes) == {None, "OOM"}
                assert len(codes) >= 6
                tracked.flush()
        client.config_set("maxmemory", 0)
        go_on(tracked, pair.mode)
        if classify == "failover":
            check_complete(tracked, client, pair.mode)
        else:
            tracked.check(client)


def refusals(client: Any) -> int:
    """How many commands the server has refused for lack of memory; Redis 6.2 does not count those of a script."""
    return int(client.info("errorstats").get("errorstat_OOM", {"count": 0})["count"])


def runs_in_want(client: Any) -> int | None:
    """How often a script was run so far, if no memory is free now."""
    found = client.info("all")
    runs: int = sum(found.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha"))
    return runs if found["used_memory"] > found["maxmemory"] else None


@contextmanager
def trimming(client: Any) -> Iterator[Callable[[], int]]:
    """Free 100 KB each time a check finds new refusals; yields a function that returns how many it has handled.

    A script that was run between two checks that found no free memory was refused as well.
    """
    done = threading.Event()
    answered = refusals(client)

    def trim() -> None:
        nonlocal answered
        length, before = 400, None
        while not done.wait(0.001):
            now, runs = refusals(client), runs_in_want(client)
            if now > answered or (before is not None and runs is not None and runs > before):
                length, runs = length - 5, None
                client.xtrim("ballast", maxlen=length, approximate=False)
                answered = now
            before = runs

    thread = threading.Thread(target=trim)
    thread.start()
    try:
        yield lambda: answered
    finally:
        done.set()
        thread.join()


@newer_pairs
def test_outcomes_are_correct_when_a_server_evicts_its_clients(
    pair: Pair, start_server: StartServer, connect: Connect
) -> None:
    """It closes our connection, and each new one with as many bytes, until the limit is lifted."""
    server = start_server(pair.program)
    client = connect(server)
    client.execute_command("CLIENT", "NO-EVICT", "ON")
    with tracked_dispatcher(pair, server, **retry_options(pair)) as tracked:
        client.config_set("maxmemory-clients", 1 << 17)  # the lowest limit

        def send() -> list[Label]:
            for count, size in ((20, 1_000), (1, 1_000_000), (20, 1_000)):
                tracked.produce(count, size)
            return tracked.flush()

        if pair.mode == "off":
            reported = send()
            assert reported[20] in [("retryable", "RESET", "unknown"), ("retryable", "EOF", "unknown")]
            assert {code for _, code, _ in reported} <= {None, "RESET", "EOF"}
            client.config_set("maxmemory-clients", 0)
            go_on(tracked, pair.mode)
            tracked.check(client)
        else:
            with after_ticks(5, lambda: client.config_set("maxmemory-clients", 0)):
                reported = send()
            assert reported == [DELIVERED] * 41
            go_on(tracked, pair.mode)
            check_complete(tracked, client, pair.mode)


# --- row 17: a message that is too large


@every_pair
def test_a_message_that_is_too_large_is_refused(pair: Pair, start_server: StartServer, connect: Connect) -> None:
    """Only that message is refused; in script mode later ones are blocked until `skip_failed`."""
    server = start_server(pair.program, config={"proto-max-bulk-len": "1mb"})
    client = connect(server)
    runs: dict[str, Any] = {"script_run_rows": 1} if pair.mode == "script" else {}
    with tracked_dispatcher(pair, server, retry=SOON, **runs) as tracked:
        tracked.produce(20)
        tracked.produce(1, 3 << 20)
        tracked.produce(30)
        reported = tracked.flush()
        behind = BLOCKED if pair.mode == "script" else DELIVERED
        assert reported == [DELIVERED] * 20 + [("permanent", "TOO_LARGE", "no")] + [behind] * 30
        tracked.check(client)
        go_on(tracked, pair.mode)
        tracked.check(client)


# --- rows 18 and 19: connections that the server closes


def test_idle_connections_closed_by_the_server_are_replaced(
    program: Program, start_server: StartServer, connect: Connect
) -> None:
    """The dispatcher notices the end before it sends a byte: nothing is unknown, and nothing counts as a retry."""
    server = start_server(program, transport="tcp", config={"timeout": 1})
    client = connect(server)
    client.client_setname("watching")
    modes = [mode for mode in MODES if can(program, mode)]
    senders = [make_dispatcher(Pair(program, mode), server, {"stream_key": mode}) for mode in modes]
    for sending in senders:
        sending.produce(b"first")
        assert labels(sending.flush()) == [DELIVERED]

    def connected() -> list[Any]:
        return [line for line in client.client_list() if line["name"] == "headrace"]

    assert len(connected()) == len(senders)
    wait_until(lambda: not connected())
    for sending in senders:
        with sending:
            sending.produce_batch(batch_of(payloads_of(0, 100)))
            report = sending.flush()
            assert labels(report) == [DELIVERED] * 100
            assert report.retries == 0


#: The limit of a server for unread replies.
LIMIT = "normal 32768 0 0"
#: Twice the number of messages whose replies fit into that limit and a socket buffer.
MANY = 20_000


@every_pair
def test_replies_are_read_while_messages_are_written(pair: Pair, start_server: StartServer, connect: Connect) -> None:
    """A server closes clients that do not read its replies; the window alone would allow a million messages."""
    server = start_server(pair.program, config={"client-output-buffer-limit": LIMIT})
    endless: dict[str, Any] = {"window_max_entries": 1_000_000, "window_max_bytes": 1 << 28}
    runs: dict[str, Any] = {"script_run_rows": 100} if pair.mode == "script" else {}
    with make_dispatcher(pair, server, None, **endless, **runs) as sending:
        sending.produce_batch(batch_of(payloads_of(0, MANY, 100)))
        report = sending.flush()
        assert report.ok, report
        assert sending.stats().connections == 1
    assert connect(server).xlen(KEY) == MANY


def test_a_server_closes_a_client_that_only_writes(program: Program, start_server: StartServer) -> None:
    """The limit used in the test above works."""
    server = start_server(program, config={"client-output-buffer-limit": LIMIT})
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        connection.connect(server.unix_socket)
        with pytest.raises(ConnectionError):
            connection.sendall(pack(("XADD", KEY, "*", "payload", "x" * 100)) * MANY)
