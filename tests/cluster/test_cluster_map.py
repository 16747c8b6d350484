"""What is learnt from redirects: whom to ask again, how often to follow, also for commands about groups and shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from faults.refusing_server import RefusingServer, payload_of
from headrace import CommandError, Dispatcher, Endpoint, Group, _headrace, inspect
from support.fake_node import Answer, FakeNode, slot_row, slots_reply
from support.patience import LATE

SLOT = 3828  # of the stream `s`
MISSING = b"-ERR no such key\r\n"
REDIRECTS = ("MOVED", "ASK")


def endpoint_of(node: FakeNode, **options: Any) -> Endpoint:
    nodes = [f"127.0.0.1:{node.port}"]
    return Endpoint(nodes=nodes, stream_key="s", connect_timeout=LATE, command_timeout=LATE, **options)


def to(node: FakeNode, code: str = "MOVED") -> bytes:
    return b"-%s %d 127.0.0.1:%d\r\n" % (code.encode(), SLOT, node.port)


def node_with(slots: Callable[[], bytes], replies: dict[bytes, bytes]) -> Answer:
    """Answers CLUSTER SLOTS, some other commands, and all else with OK."""
    return lambda command: slots() if command[0] == b"CLUSTER" else replies.get(command[0], b"+OK\r\n")


def halves(first: FakeNode, second: FakeNode) -> bytes:
    """The first node has the slots up to 99, the second one all others."""
    return slots_reply(slot_row(0, 99, first.port), slot_row(100, 16_383, second.port))


@pytest.mark.parametrize("code", REDIRECTS)
def test_the_node_that_redirects_to_an_unlisted_node_is_asked_first(code: str) -> None:
    """The others may not have heard of that node yet."""
    with FakeNode() as stale, FakeNode() as old, FakeNode() as new:

        def listed() -> bytes:
            is_known = old.count(b"XINFO") > 0
            return slots_reply(slot_row(0, 99, stale.port), slot_row(100, 16_383, new.port if is_known else old.port))

        stale.answer = node_with(lambda: halves(stale, old), {})
        old.answer = node_with(listed, {b"XINFO": to(new, code)})
        new.answer = node_with(listed, {b"XINFO": MISSING})
        survey = _headrace.Survey(endpoint_of(old))
        try:
            (found,) = survey.streams([b"s"])
        finally:
            survey.close()
        assert found.is_missing
        assert (old.count(b"XINFO"), new.count(b"XINFO"), stale.count(b"CLUSTER")) == (1, 1, 0)


@pytest.fixture
def pair() -> Iterator[tuple[FakeNode, FakeNode]]:
    """The node that is listed as the owner of the slot, and another listed one."""
    with FakeNode() as other, FakeNode() as owner:
        yield owner, other


@pytest.mark.parametrize("code", REDIRECTS)
def test_commands_of_a_group_follow_a_redirect(pair: tuple[FakeNode, FakeNode], code: str) -> None:
    owner, other = pair
    owner.answer = node_with(lambda: halves(other, owner), {b"XGROUP": to(other, code)})
    other.answer = node_with(lambda: halves(other, owner), {})
    assert Group(endpoint_of(owner), "g").create()
    assert (owner.count(b"XGROUP"), other.count(b"XGROUP")) == (1, 1)
    assert other.count(b"ASKING") == (code == "ASK")


@pytest.mark.parametrize("code", REDIRECTS)
def test_an_inspection_follows_a_redirect(pair: tuple[FakeNode, FakeNode], code: str) -> None:
    owner, other = pair
    owner.answer = node_with(lambda: halves(other, owner), {name: to(other, code) for name in (b"XINFO", b"MEMORY")})
    other.answer = node_with(lambda: halves(other, owner), {b"XINFO": MISSING, b"MEMORY": b"$-1\r\n"})
    found = inspect(endpoint_of(owner))
    assert pa.table(found.streams)["exists"].to_pylist() == [False]
    assert other.count(b"XINFO") == 2


def test_a_group_command_ends_after_max_redirects(pair: tuple[FakeNode, FakeNode]) -> None:
    owner, other = pair
    owner.answer = node_with(lambda: halves(other, owner), {b"XGROUP": to(other)})
    other.answer = node_with(lambda: halves(other, owner), {b"XGROUP": to(owner)})
    with pytest.raises(CommandError, match=f"MOVED {SLOT}"):
        Group(endpoint_of(owner, max_redirects=3), "g").create()
    assert owner.count(b"XGROUP") + other.count(b"XGROUP") == 4


REGISTRY = [b"n", b"2", b"hash", b"murmur2", b"names", b"plain"]


def array(*parts: bytes) -> bytes:
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


@pytest.mark.parametrize(("max_redirects", "redirects"), [(9, 8), (2, 5)])
def test_the_shard_registry_is_followed_for_up_to_max_redirects(max_redirects: int, redirects: int) -> None:
    """The first of these redirects is the reply to the new connection itself, and not followed."""
    accepting = RefusingServer({})
    with FakeNode() as node:

        def answer(command: list[bytes]) -> bytes:
            match command[0]:
                case b"CLUSTER":
                    return slots_reply(slot_row(0, 16_383, node.port))
                case b"HGETALL":
                    return to(node) if node.count(b"HGETALL") <= redirects else array(*REGISTRY)
                case b"XADD":
                    return accepting.reply(command)
                case _:
                    return b"+OK\r\n"

        node.answer = answer
        with Dispatcher(endpoint_of(node, shards=2, max_redirects=max_redirects)) as dispatcher:
            dispatcher.produce(payload_of(0), key=b"k")
            report = dispatcher.flush()
            assert report.delivered == (redirects <= max_redirects)
            assert {failure.code for failure in report.failed} <= {"NO_SLOT"}
