"""`Group` and `inspect` while a server does not answer: timeouts, Ctrl-C, lost connections; and their memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import headrace
from headrace import ConnectionFailedError, Endpoint, Group
from headrace.admin import Commands
from headrace.testing import LocalServer
from support.fake_server import FakeServer, Peer, hang_up
from support.groups import GROUP, add, group_of, read
from support.interrupts import interrupted
from support.patience import NEVER, lasting
from support.pipelines import KEY, endpoint_to
from support.processes import PeakMemory, stopped

#: redis-py types its replies too loosely to be useful here.
Connect = Callable[..., Any]

CALLS: dict[str, Callable[[Endpoint], object]] = {
    "create": lambda endpoint: Group(endpoint, GROUP).create(),
    "pending": lambda endpoint: Group(endpoint, GROUP).pending(),
    "delete_consumer": lambda endpoint: Group(endpoint, GROUP).delete_consumer("c"),
    "inspect": lambda endpoint: headrace.inspect(endpoint),
}


@pytest.mark.parametrize("name", CALLS)
def test_ctrl_c_while_a_server_is_stopped(any_server: LocalServer, name: str) -> None:
    endpoint = endpoint_to(any_server, connect_timeout=NEVER, command_timeout=NEVER)
    with stopped(any_server), interrupted():
        CALLS[name](endpoint)
    CALLS["create"](endpoint)  # the next call is not affected
    CALLS[name](endpoint)


def silent(peer: Peer) -> None:
    """Accepts the connection, and never answers a command."""
    peer.wait_for_end()


@pytest.mark.parametrize("name", CALLS)
def test_ctrl_c_while_a_reply_is_awaited(name: str) -> None:
    with FakeServer(silent) as server:
        endpoint = Endpoint(host="127.0.0.1", port=server.port, stream_key=KEY, command_timeout=NEVER)
        with interrupted():
            CALLS[name](endpoint)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_times_out_when_the_server_does_not_answer(name: str) -> None:
    with FakeServer(silent) as server:
        endpoint = Endpoint(host="127.0.0.1", port=server.port, stream_key=KEY, command_timeout=0.2)
        with lasting(0.2), pytest.raises(ConnectionFailedError) as failed:
            CALLS[name](endpoint)
        text = f"no reply from redis://127.0.0.1:{server.port} stream key events for 0.2 s"
    command = {"create": "XGROUP CREATE", "delete_consumer": "EVAL"}.get(name)
    text += f"; it is unknown whether {command} took effect" if command else ""
    assert str(failed.value).startswith(f"{text}; look at the server's load and SLOWLOG")


def test_a_call_on_a_kept_connection_is_repeated_after_its_loss_and_not_after_a_timeout() -> None:
    def answers_once(peer: Peer) -> None:
        peer.commands(1)
        peer.send(b"+PONG\r\n")

    def then_silent(peer: Peer) -> None:
        answers_once(peer)
        peer.wait_for_end()

    for first, text in ((answers_once, None), (then_silent, "no reply from")):
        with FakeServer(first, answers_once) as server:
            endpoint = Endpoint(
                host="127.0.0.1", port=server.port, stream_key=KEY, command_timeout=0.2, topology="single"
            )
            commands = Commands(endpoint)
            assert commands.call([(None, [b"PING"])], writes=False) == [b"PONG"]
            if text is None:
                assert commands.call([(None, [b"PING"])], writes=False) == [b"PONG"]
            else:
                with pytest.raises(ConnectionFailedError, match=text):
                    commands.call([(None, [b"PING"])], writes=False)
            commands.close()


@pytest.mark.parametrize("name", CALLS)
def test_lost_connections_and_invalid_replies_raise_connection_failed_error(name: str) -> None:
    def cut(peer: Peer) -> None:
        peer.commands(1)
        peer.send(b"*2\r\n:1\r\n")

    def garbage(peer: Peer) -> None:
        peer.commands(1)
        peer.send(b"HTTP/1.1 400\r\n")

    for script, text in (
        (cut, "was lost: the server closed the connection"),
        (garbage, "the server's reply begins with byte 0x48"),
    ):
        with FakeServer(script) as server:
            endpoint = Endpoint(host="127.0.0.1", port=server.port, stream_key=KEY)
            with pytest.raises(ConnectionFailedError, match=text):
                CALLS[name](endpoint)


def test_replies_of_an_unexpected_shape_are_refused() -> None:
    """As no server sends them."""
    for shape in (
        b":1\r\n",
        b"$-1\r\n",
        b"*-1\r\n",
        b"*1\r\n:1\r\n",
        b"*1\r\n*4\r\n$1\r\n1\r\n$1\r\nc\r\n:1\r\n:1\r\n",
    ):

        def odd(peer: Peer, shape: bytes = shape) -> None:
            while commands := peer.commands(1):
                peer.send(shape if commands[0][0] in (b"XPENDING", b"XINFO") else b":1\r\n")

        for name in ("pending", "inspect"):
            with FakeServer(odd) as server:
                endpoint = Endpoint(host="127.0.0.1", port=server.port, stream_key=KEY)
                with pytest.raises(ConnectionFailedError, match="cannot be read"):
                    CALLS[name](endpoint)


def test_an_unreachable_server_raises_connection_failed_error(closed_port: int) -> None:
    endpoint = Endpoint(host="127.0.0.1", port=closed_port, stream_key=KEY)
    for call in CALLS.values():
        with pytest.raises(ConnectionError, match=f"cannot connect to 127.0.0.1:{closed_port}: .*refused") as failed:
            call(endpoint)
        assert isinstance(failed.value, ConnectionFailedError)
        assert failed.value.failures == ()
    with FakeServer(hang_up, handshake=False) as server:
        endpoint = Endpoint(host="127.0.0.1", port=server.port, stream_key=KEY)
        with pytest.raises(ConnectionFailedError, match=r"the server closed|was reset by the server"):
            CALLS["pending"](endpoint)


@pytest.mark.thorough
def test_a_hundred_thousand_pending_entries_take_little_memory(any_server: LocalServer, connect: Connect) -> None:
    """They come in pages; the reply of `inspect`, which is one, is kept as a whole."""
    client, group = connect(any_server), group_of(any_server)
    stored = add(client, 100_000)
    group.create("earliest")
    for _ in range(10):
        read(client, "consumer", 10_000)
    assert len(group.pending(limit=10_000)) == 10_000
    growth = []
    memory = PeakMemory()
    rows = group.pending(limit=None)
    growth.append(memory.growth)
    memory = PeakMemory()
    few = headrace.inspect(endpoint_to(any_server))
    growth.append(memory.growth)
    memory = PeakMemory()
    all_of_them = headrace.inspect(endpoint_to(any_server), pending_limit=100_000)
    growth.append(memory.growth)
    assert pa.table(rows)["entry_id"].to_pylist() == stored
    assert pa.table(few.pending)["entry_id"].to_pylist() == stored[:1_000]
    assert pa.table(all_of_them.pending)["entry_id"].to_pylist() == stored
    assert all(grown < limit * 2**20 for grown, limit in zip(growth, (24, 8, 96), strict=True)), growth
