"""Servers that change their mind in mid-pipeline, in every mode: each message is told what became of it."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from conftest import Replicate, StartServer
from faults.bench import BLOCKED, DELIVERED, ROWS, Bench, Label, again, bench, sender
from faults.places import pack
from support import Program
from support.modes import MODES, SOON, Pair, can, pairs, pairs_with
from support.pipelines import KEY, labels, stored
from support.processes import after_ticks, wait_until
from test_faults import batch_of, payloads_of

Connect = Callable[..., Any]
every_pair = pytest.mark.parametrize("pair", pairs(), ids=str)
newer_pairs = pytest.mark.parametrize("pair", pairs_with("redis-7.0", "valkey"), ids=str)


def check_refused(told: Sequence[Label], refused: Label, mode: str) -> None:
    """The first were delivered, the others refused; in script mode one of them, and the others blocked."""
    taken = told.index(refused)
    assert 0 < taken < ROWS
    behind = [refused] * (ROWS - taken)
    if mode == "script":
        behind = [refused] + [BLOCKED] * (ROWS - taken - 1)
    assert told == [DELIVERED] * taken + behind


def go_on(made: Bench, mode: str) -> None:
    """What comes next is delivered."""
    if mode == "script":
        made.sending.skip_failed()
    assert made.send(ROWS) == [DELIVERED] * ROWS


# --- row 10: a server that is a replica now


@every_pair
def test_a_server_becomes_a_replica(pair: Pair, start_server: StartServer, connect: Connect) -> None:
    server = start_server(pair.program)
    client = connect(server)
    with bench(pair, server) as made:
        told = made.send_while(server, ("REPLICAOF", "127.0.0.1", 1))
        check_refused(told, ("permanent", "READONLY", "no"), pair.mode)
        made.check(client)
        client.replicaof("NO", "ONE")
        go_on(made, pair.mode)
        made.check(client)


@every_pair
def test_a_server_is_a_replica_for_a_while(pair: Pair, start_server: StartServer, connect: Connect) -> None:
    server = start_server(pair.program)
    client = connect(server)
    with bench(pair, server, classify="failover", retry=SOON) as made:
        with made.begun_while(server, ("REPLICAOF", "127.0.0.1", 1)):
            with after_ticks(3, lambda: client.replicaof("NO", "ONE")):
                told = made.flush()
            assert told == [DELIVERED] * ROWS
        check_complete(made, client, pair.mode)


def check_complete(made: Bench, client: Any, mode: str) -> None:
    """Everything is there, once; in script mode in its order."""
    kept = [payload for _, payload in stored(client)]
    assert sorted(kept) == sorted(made.sent)
    assert mode != "script" or kept == made.sent
    assert made.possible_duplicates == 0


@every_pair
def test_failover(pair: Pair, replicate: Replicate, connect: Connect) -> None:
    """What was delivered is on the new master, and nothing else is."""
    server, replica = replicate(pair.program)
    client = connect(replica)
    with bench(pair, server) as made:
        told = made.send_while(server, ("FAILOVER",))
        check_refused(told, ("permanent", "READONLY", "no"), pair.mode)
        wait_until(lambda: client.role()[0] == b"master")
        made.check(client)


# --- rows 6 and 8: rights and users


@every_pair
def test_a_right_is_taken_away(pair: Pair, start_server: StartServer, connect: Connect) -> None:
    server = start_server(pair.program, config={"user": "app on >secret ~* &* +@all"})
    client = connect(server)
    with bench(pair, server, {"username": "app", "password": "secret"}) as made:
        told = made.send_while(server, ("ACL", "SETUSER", "app", "-xadd"))
        check_refused(told, ("permanent", "NOPERM", "no"), pair.mode)
        made.check(client)
        client.execute_command("ACL", "SETUSER", "app", "+xadd")
        go_on(made, pair.mode)
        made.check(client)


@every_pair
def test_a_user_is_deleted(pair: Pair, start_server: StartServer, connect: Connect) -> None:
    """Nothing is tried again without a user; with a new one the batch is begun again, and written once."""
    server = start_server(pair.program, config={"user": "app on >secret ~* &* +@all"})
    client = connect(server)
    exactly_once: dict[str, Any] = {"token": "batch", "retry": SOON} if pair.mode != "off" else {}
    with bench(pair, server, {"username": "app", "password": "secret"}, **exactly_once) as made:
        told = made.send_while(server, ("ACL", "DELUSER", "app"))
        taken = told.count(DELIVERED)
        assert told[:taken] == [DELIVERED] * taken
        lost = {(kind, code, written) for kind, code, written in told[taken:]}
        if pair.mode == "off":
            assert lost <= {("retryable", "RESET", "unknown"), ("retryable", "EOF", "unknown")}
        else:
            assert lost == {("permanent", "WRONGPASS", "unknown")}
        made.check(client)
        assert made.send(1)[0][1] in ("WRONGPASS", "BLOCKED")
        client.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all")
        if pair.mode == "off":
            go_on(made, pair.mode)
            made.check(client)
            return
        made.sending.begin("batch")
        made.sending.produce_batch(batch_of(made.sent))
        assert made.sending.flush().ok
        check_complete(made, client, pair.mode)


@every_pair
def test_credentials_that_change_under_way(
    pair: Pair, start_server: StartServer, connect: Connect, tmp_path: Path
) -> None:
    """Row 21: the file of the password is read anew by the connection that takes over."""
    server = start_server(pair.program, config={"user": "app on >first ~* &* +@all"})
    client = connect(server)
    file = tmp_path / "password"
    file.touch(mode=0o600)
    file.write_text("first")
    with bench(
        pair, server, {"username": "app", "password_file": file}, retry=SOON if pair.mode != "off" else None
    ) as made:
        mine = next(line["id"] for line in client.client_list() if line["user"] == "app")
        client.execute_command("ACL", "SETUSER", "app", "resetpass", ">second")
        file.write_text("second")
        told = made.send_while(server, ("CLIENT", "KILL", "ID", mine))
        if pair.mode == "off":
            assert {code for _, code, _ in told} <= {None, "RESET", "EOF"}
            go_on(made, pair.mode)
            made.check(client)
        else:
            assert told == [DELIVERED] * ROWS
            check_complete(made, client, pair.mode)


# --- row 8: memory


@every_pair
@pytest.mark.parametrize("classify", ["default", "failover"])
def test_memory_comes_and_goes(pair: Pair, start_server: StartServer, connect: Connect, classify: Any) -> None:
    """Another client trims another stream, but only after a refusal: ours runs out of memory, and finds some again."""
    server = start_server(pair.program)
    client, other = connect(server), connect(server)
    client.eval("for i = 1, 400 do redis.call('XADD', 'ballast', '*', 'x', string.rep('x', 20000)) end", 0)
    retry: dict[str, Any] = {"retry": SOON} if classify == "failover" else {}
    with bench(pair, server, classify=classify, **retry) as made:
        client.config_set("maxmemory", client.info("memory")["used_memory"] + 100_000)
        with trimming(other) as answered:
            if classify == "failover":
                assert made.send(200) == [DELIVERED] * 200
                assert made.sending.stats().retries > 0
            elif pair.mode == "script":
                told = made.send(200)
                taken = told.count(DELIVERED)
                assert taken < 200
                assert told == [DELIVERED] * taken + [("permanent", "OOM", "no")] + [BLOCKED] * (199 - taken)
                made.sending.skip_failed()
            else:
                for _ in range(3):
                    made.produce(300)  # of 1 KB: at most 200 KB are free
                    wait_until(lambda: made.poll() == len(made.sent))
                    wait_until(lambda: answered() == refusals(client))
                codes = [code for code, _ in itertools.groupby(told.code for told in made.told)]
                assert set(codes) == {None, "OOM"}
                assert len(codes) >= 6
                made.flush()
        client.config_set("maxmemory", 0)
        go_on(made, pair.mode)
        if classify == "failover":
            check_complete(made, client, pair.mode)
        else:
            made.check(client)


def refusals(client: Any) -> int:
    """How many commands the server has refused for want of memory; Redis 6.2 does not count those of a script."""
    return int(client.info("errorstats").get("errorstat_OOM", {"count": 0})["count"])


def runs_in_want(client: Any) -> int | None:
    """How often a script was run so far, if there is no memory now."""
    found = client.info("all")
    runs: int = found.get("cmdstat_evalsha", {"calls": 0})["calls"]
    return runs if found["used_memory"] > found["maxmemory"] else None


@contextmanager
def trimming(client: Any) -> Iterator[Callable[[], int]]:
    """Free 100 KB for each look that finds new refusals; gives the number of those that it has answered so.

    A script that was run between two looks that found no memory was refused as well.
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
def test_a_server_that_has_no_memory_for_its_clients(pair: Pair, start_server: StartServer, connect: Connect) -> None:
    """It ends connections: ours, and each new one that brings as much, until the limit is lifted."""
    server = start_server(pair.program)
    client = connect(server)
    client.execute_command("CLIENT", "NO-EVICT", "ON")
    with bench(pair, server, **again(pair)) as made:
        client.config_set("maxmemory-clients", 1 << 17)  # the least that there is

        def send() -> list[Label]:
            for count, size in ((20, 1_000), (1, 1_000_000), (20, 1_000)):
                made.produce(count, size)
            return made.flush()

        if pair.mode == "off":
            told = send()
            assert told[20] in [("retryable", "RESET", "unknown"), ("retryable", "EOF", "unknown")]
            assert {code for _, code, _ in told} <= {None, "RESET", "EOF"}
            client.config_set("maxmemory-clients", 0)
            go_on(made, pair.mode)
            made.check(client)
        else:
            with after_ticks(5, lambda: client.config_set("maxmemory-clients", 0)):
                told = send()
            assert told == [DELIVERED] * 41
            go_on(made, pair.mode)
            check_complete(made, client, pair.mode)


# --- row 17: a message that is too large


@every_pair
def test_a_message_is_too_large(pair: Pair, start_server: StartServer, connect: Connect) -> None:
    """That one alone is refused; in script mode those behind it wait for the caller's word."""
    server = start_server(pair.program, config={"proto-max-bulk-len": "1mb"})
    client = connect(server)
    runs: dict[str, Any] = {"script_run_rows": 1} if pair.mode == "script" else {}
    with bench(pair, server, retry=SOON, **runs) as made:
        made.produce(20)
        made.produce(1, 3 << 20)
        made.produce(30)
        told = made.flush()
        behind = BLOCKED if pair.mode == "script" else DELIVERED
        assert told == [DELIVERED] * 20 + [("permanent", "TOO_LARGE", "no")] + [behind] * 30
        made.check(client)
        go_on(made, pair.mode)
        made.check(client)


# --- rows 18 and 19: connections that servers end


def test_idle_connections_that_are_ended(program: Program, start_server: StartServer, connect: Connect) -> None:
    """It is noticed before the first byte goes out: nothing is unknown, and nothing counts as tried again."""
    server = start_server(program, transport="tcp", config={"timeout": 1})
    client = connect(server)
    client.client_setname("watching")
    modes = [mode for mode in MODES if can(program, mode)]
    senders = [sender(Pair(program, mode), server, {"stream_key": mode}) for mode in modes]
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


#: What a server keeps of replies that nobody reads.
LIMIT = "normal 32768 0 0"
#: Twice as many messages as have room for their replies there and in a socket.
MANY = 20_000


@every_pair
def test_replies_are_read_while_messages_are_written(pair: Pair, start_server: StartServer, connect: Connect) -> None:
    """A server ends whoever leaves its replies there. The window here would let a million messages out before."""
    server = start_server(pair.program, config={"client-output-buffer-limit": LIMIT})
    endless: dict[str, Any] = {"window_max_entries": 1_000_000, "window_max_bytes": 1 << 28}
    runs: dict[str, Any] = {"script_run_rows": 100} if pair.mode == "script" else {}
    with sender(pair, server, None, **endless, **runs) as sending:
        sending.produce_batch(batch_of(payloads_of(0, MANY, 100)))
        report = sending.flush()
        assert report.ok, report
        assert sending.stats().connections == 1
    assert connect(server).xlen(KEY) == MANY


def test_replies_that_nobody_reads(program: Program, start_server: StartServer) -> None:
    """That the limit is one: a client that only writes is ended."""
    server = start_server(program, config={"client-output-buffer-limit": LIMIT})
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        connection.connect(server.unix_socket)
        with pytest.raises(ConnectionError):
            connection.sendall(pack(("XADD", KEY, "*", "payload", "x" * 100)) * MANY)
