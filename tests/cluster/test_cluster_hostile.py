"""Nodes that send what no real node sends, refuse commands, or are silent.

Each message ends in one outcome, in bounded memory, and no node that the cluster does not list gets credentials. Only
where a node is silent does a timeout end it: otherwise it ends at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from faults.refusing_server import RefusingServer, payload_of
from headrace import DeliveryReport, Dispatcher, Endpoint, RetryPolicy
from support.fake_node import Answer, FakeNode, slot_row, slots_reply
from support.marks import thorough
from support.patience import LATE
from support.processes import PeakMemory

ROWS = 100
SLOT = 3828  # of the stream `s`
#: Redirects in a row, and tries.
MAX_REDIRECTS, MAX_ATTEMPTS = 3, 4
SHORT = RetryPolicy(max_attempts=MAX_ATTEMPTS, initial_backoff=0.01, max_backoff=0.02, deadline=LATE)
MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "policy": {"retry": SHORT},
    "script": {"retry": SHORT, "exactly_once": "script"},
}
BY_MODE = pytest.mark.parametrize("mode", MODES)

_T = TypeVar("_T")


def outcomes(node: FakeNode, mode: dict[str, Any], **options: Any) -> tuple[DeliveryReport, int]:
    """What is reported of some rows, and how many redirects were followed. Each row has one outcome."""
    given = {
        "password": "geheim",
        "connect_timeout": LATE,
        "command_timeout": LATE,
        "max_redirects": MAX_REDIRECTS,
        **options,
    }
    endpoint = Endpoint(nodes=[f"127.0.0.1:{node.port}"], stream_key="s", **given)
    with Dispatcher(endpoint, **mode) as dispatcher:
        rows = pa.table({"payload": [payload_of(row) for row in range(ROWS)]})
        dispatcher.produce_batch(rows, payload="payload")
        report = dispatcher.flush()
        failed = list(report.failed)
        redirects = dispatcher.stats().redirects
    assert [int(failure.message_id) for failure in failed] == list(range(report.delivered, ROWS))
    for failure in failed:
        assert "geheim" not in failure.message
        assert len(failure.message) < 4_096
    return report, redirects


def side_by_side(check: Callable[[_T], None], cases: Iterable[_T]) -> None:
    """Check all cases, each with nodes of its own: they take little processor time, and wait for timeouts."""
    with ThreadPoolExecutor(8) as pool:
        for _ in pool.map(check, cases):
            pass  # raises what the check raised


REDIRECTS = [
    b"MOVED 3828 127.0.0.1:{own}",
    b"MOVED 3828 127.0.0.1:{other}",
    b"MOVED 3828 127.0.0.1:{stranger}",
    b"MOVED 3828 localhost:{stranger}",
    b"MOVED 3828 ?:{stranger}",
    b"MOVED 3828 :{own}",
    b"MOVED 3828 :{stranger}",
    b"MOVED 3828 127.0.0.1:0",
    b"MOVED 3828 127.0.0.1:65536",
    b"MOVED 3828 127.0.0.1:-1",
    b"MOVED 3828 " + b"h" * 10_000 + b":{stranger}",
    b"MOVED 3828 h\0h:{stranger}",
    b"MOVED 3828 \xff:{stranger}",
    b"MOVED 16384 127.0.0.1:{stranger}",
    b"MOVED 99999999999999999999 127.0.0.1:{stranger}",
    b"MOVED 4000 127.0.0.1:{other}",
    b"MOVED 3828 127.0.0.1",
    b"MOVED 3828",
    b"MOVED",
    b"ASK 3828 127.0.0.1:{own}",
    b"ASK 3828 127.0.0.1:{other}",
    b"ASK 3828 127.0.0.1:{stranger}",
    b"ASK 16384 127.0.0.1:{stranger}",
    b"ASK 3828 ?:0",
]


@BY_MODE
def test_messages_fail_when_redirects_lead_nowhere(mode: str) -> None:
    def check(text: bytes) -> None:
        with FakeNode() as first, FakeNode() as second, FakeNode() as stranger:
            pairs = ((first, second), (second, first))
            for node, other in pairs:
                ports = (b"{own}", node.port), (b"{other}", other.port), (b"{stranger}", stranger.port)
                node.answer = sends_elsewhere(first, second, text, ports)
            # A connect is tried again after ASK, for as long as it may take: the slot may be moving. TIMEOUT: none of
            # that time was left for the last one.
            report, redirects = outcomes(first, MODES[mode], connect_timeout=2.0)
            assert report.delivered == 0, text
            codes = {failure.code for failure in report.failed}
            assert codes <= {"MOVED", "ASK", "NO_SLOT", "BLOCKED", "TIMEOUT"}, text
            assert {failure.written for failure in report.failed} == {"no"}, text
            assert stranger.accepted == 0, text
            assert redirects <= MAX_ATTEMPTS * (MAX_REDIRECTS + 1), text
            asked = [command[1] for node in (first, second) for command in node.commands if command[0] == b"CLUSTER"]
            assert asked.count(b"SLOTS") <= MAX_ATTEMPTS * (MAX_REDIRECTS + 3), text
            assert asked.count(b"NODES") <= redirects, text

    side_by_side(check, REDIRECTS)


def sends_elsewhere(first: FakeNode, second: FakeNode, text: bytes, ports: tuple[tuple[bytes, int], ...]) -> Answer:
    for name, port in ports:
        text = text.replace(name, b"%d" % port)
    listed = slots_reply(slot_row(0, SLOT, first.port), slot_row(SLOT + 1, 16_383, second.port))

    def answer(command: list[bytes]) -> bytes:
        if command[0] == b"CLUSTER":
            return listed
        return b"-%s\r\n" % text if command[0] in (b"XADD", b"EVAL", b"EVALSHA") else b"+OK\r\n"

    return answer


@BY_MODE
def test_messages_follow_a_redirect_when_the_first_node_has_a_stale_slot_map(mode: str) -> None:
    """For a second after a move the other nodes of Redis 6.2 list the old owner."""
    with FakeNode() as stale, FakeNode() as old, FakeNode() as new:
        accepts = server_that(b"", None)
        before = slots_reply(slot_row(0, SLOT, old.port), slot_row(SLOT + 1, 16_383, new.port))
        after = slots_reply(slot_row(0, SLOT - 1, old.port), slot_row(SLOT, 16_383, new.port))
        moved = b"-MOVED %d 127.0.0.1:%d\r\n" % (SLOT, new.port)
        stale.answer = lambda command: before if command[0] == b"CLUSTER" else accepts(command)
        new.answer = lambda command: after if command[0] == b"CLUSTER" else accepts(command)

        def redirects(command: list[bytes]) -> bytes | None:
            if command[0] in (b"XADD", b"EVAL", b"EVALSHA"):
                return moved
            return after if command[0] == b"CLUSTER" else accepts(command)

        old.answer = redirects
        report, _ = outcomes(stale, MODES[mode])
        assert report.delivered == ROWS, report


def test_the_last_row_wins_when_slot_ranges_overlap() -> None:
    with FakeNode() as stranger, FakeNode() as node:
        accepting = server_that(b"", None)
        listed = slots_reply(slot_row(0, 16_383, stranger.port), slot_row(SLOT, SLOT, node.port))
        node.answer = lambda command: listed if command[0] == b"CLUSTER" else accepting(command)
        report, _ = outcomes(node, {})
        assert report.delivered == ROWS
        assert stranger.accepted == 0


def test_a_replica_is_not_mistaken_for_its_master() -> None:
    """Where the node does not know the master's host."""
    with FakeNode() as replica, FakeNode() as node:
        listed = slots_reply(slot_row(0, 16_383, 1, b"?", replicas=[replica.port]))
        node.answer = replica.answer = lambda command: listed if command[0] == b"CLUSTER" else b"+OK\r\n"
        report, _ = outcomes(node, {})
        assert {failure.code for failure in report.failed} == {"NO_SLOT"}
        assert replica.count(b"XADD") == 0


GARBAGE = random.Random(7).randbytes(10_000)
SLOTS = {
    "a hole": slots_reply(slot_row(0, SLOT - 1, 1), slot_row(SLOT + 1, 16_383, 1)),
    "no row": slots_reply(),
    "a slot too many": slots_reply(slot_row(0, 16_384, 1)),
    "from the end": slots_reply(slot_row(16_383, 0, 1)),
    "no port": slots_reply(slot_row(0, 16_383, 0)),
    "a large port": slots_reply(slot_row(0, 16_383, 70_000)),
    "an unknown host": slots_reply(slot_row(0, 16_383, 1, b"?")),
    "a long host": slots_reply(slot_row(0, 16_383, 1, b"h" * 10_000)),
    "a host of other bytes": slots_reply(slot_row(0, 16_383, 1, b"h\0\r\n\xff")),
    "a port without a server": slots_reply(slot_row(0, 16_383, 1)),
    "no list": b"+OK\r\n",
    "nil": b"*-1\r\n",
    "garbage": GARBAGE,
    "more than it has": b"*2147483647\r\n",
    "depth": b"*1\r\n" * 100_000,
    "a long bulk string": b"$536870912\r\n" + b"x" * 100_000,
    "the half of it": slots_reply(slot_row(0, 16_383, 1))[:-20],
}


@BY_MODE
def test_messages_fail_when_the_slot_map_is_unusable(mode: str) -> None:
    def check(name: str) -> None:
        with FakeNode(lambda command: SLOTS[name] if command[0] == b"CLUSTER" else b"+OK\r\n") as node:
            report, _ = outcomes(node, MODES[mode], connect_timeout=1.0)
            assert report.delivered == 0, name
            codes = {failure.code for failure in report.failed}
            assert codes <= {"NO_SLOT", "PROTOCOL", "CONNECT", "RESOLVE", "DNS", "BLOCKED"}, name
            assert {failure.written for failure in report.failed} == {"no"}, name

    side_by_side(check, SLOTS)


@pytest.mark.parametrize("count", [16_384, 100_000, *thorough(1_000_000)])
def test_an_oversized_slot_map_is_refused_in_bounded_memory(count: int) -> None:
    rows = (slot_row(number % 16_384, number % 16_384, 1, b"h%d" % number) for number in range(count))
    reply = slots_reply(*rows)
    with FakeNode(lambda command: reply if command[0] == b"CLUSTER" else b"+OK\r\n") as node:
        memory = PeakMemory()
        report, _ = outcomes(node, {})
        assert {failure.code for failure in report.failed} == {"PROTOCOL"}
        assert memory.growth < 200 << 20


REFUSALS: dict[str, bytes | None] = {
    "no right": b"-NOPERM User default has no permissions to run the command\r\n",
    "unknown": b"-ERR unknown command\r\n",
    "silence": None,
}


def server_that(name: bytes, refusal: bytes | None) -> Answer:
    """Answers as a server does, but for the commands of this name."""
    accepts = RefusingServer({})
    known = {
        b"CLIENT": b"+OK\r\n",
        b"AUTH": b"+OK\r\n",
        b"PING": b"+PONG\r\n",
        b"WAIT": b":1\r\n",
        b"INFO": b"$33\r\nrole:master\r\nconnected_slaves:1\r\n\r\n",
        b"CONFIG": b"*2\r\n$16\r\nmaxmemory-policy\r\n$10\r\nnoeviction\r\n",
        b"SCRIPT": b"$40\r\n" + b"0" * 40 + b"\r\n",
    }

    def answer(command: list[bytes]) -> bytes | None:
        if command[0] == name:
            return refusal
        return known[command[0]] if command[0] in known else accepts.reply(command)

    return answer


COMMANDS = (b"HELLO", b"CLUSTER", b"CONFIG", b"CLIENT", b"INFO", b"SCRIPT", b"EVAL", b"WAIT", b"XINFO")
#: The commands that each mode needs beside AUTH and XADD, and those that it sends and can do without.
NEEDS: dict[str, tuple[dict[str, Any], set[bytes], set[bytes]]] = {
    "plain": ({}, {b"CLUSTER"}, {b"CLIENT"}),
    "script": ({"retry": SHORT, "exactly_once": "script"}, {b"CLUSTER", b"EVAL"}, {b"CLIENT"}),
    "idmp": ({"retry": SHORT, "exactly_once": "idmp"}, {b"CLUSTER", b"HELLO", b"XINFO"}, {b"CLIENT"}),
    "wait": ({"wait_replicas": 1, "wait_timeout": 0.2}, {b"CLUSTER", b"WAIT"}, {b"CLIENT", b"INFO"}),
    "all": ({"wait_replicas": "all", "wait_timeout": 0.2}, {b"CLUSTER", b"WAIT"}, {b"CLIENT", b"INFO"}),
}


@pytest.mark.parametrize("kind", REFUSALS)
@pytest.mark.parametrize("mode", NEEDS)
def test_messages_fail_only_when_a_required_command_is_refused(mode: str, kind: str) -> None:
    """What a mode does not need, it does not miss; otherwise the message says which right or command that is."""
    options, needed, sent = NEEDS[mode]
    is_silent = kind == "silence"

    def check(name: bytes) -> None:
        timeout = 0.5 if is_silent else LATE
        with FakeNode() as node:
            node.answer = listed_server_that(node, name, REFUSALS[kind])
            report, _ = outcomes(node, options, connect_timeout=timeout, command_timeout=timeout)
            failures = {(failure.code, failure.message) for failure in report.failed}
            if name in needed or (is_silent and name in sent):
                assert report.delivered == 0, name
            else:
                assert (report.delivered, node.count(name) > 0) == (ROWS, name in sent), (name, failures)
            if not is_silent:
                for code, message in failures:
                    assert code == "BLOCKED" or name.decode() in message, message

    # What is silent about a command that is not sent is no case of its own.
    side_by_side(check, [name for name in COMMANDS if not is_silent or name in needed | sent])


def listed_server_that(node: FakeNode, name: bytes, refusal: bytes | None) -> Answer:
    """The same for a node that has all slots."""
    accepting = server_that(name, refusal)

    def answer(command: list[bytes]) -> bytes | None:
        if command[0] == b"CLUSTER" != name:
            return slots_reply(slot_row(0, 16_383, node.port, replicas=[1]))
        return accepting(command)

    return answer
