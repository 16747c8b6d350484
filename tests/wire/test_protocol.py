"""Bytes that no real server sends: no hang, no growth, no reply given to the wrong message."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import Dispatcher, Endpoint
from headrace.tables import OWN_CODES
from support.endpoints import CANARY
from support.fake_server import FakeServer, Peer, Script, answer_all, entry_id, hang_up
from support.patience import NEVER
from support.pipelines import DELIVERED, Outcome, labels, outcomes
from support.processes import PeakMemory

POISONED = ("retryable", "PROTOCOL", "unknown")


def to(fake: FakeServer, **options: Any) -> Endpoint:
    return Endpoint(**{"host": "127.0.0.1", "port": fake.port, "stream_key": "s", "command_timeout": NEVER, **options})


def says(reply: bytes, count: int = 5) -> Script:
    """A script of the fake server: read the messages, answer the first two, then send this."""

    def script(peer: Peer) -> None:
        peer.commands(count)
        peer.send(entry_id(1) + entry_id(2) + reply)
        peer.wait_for_end()

    return script


def cut(reply: bytes) -> Script:
    """As `says`, but then close the connection."""

    def script(peer: Peer) -> None:
        peer.commands(5)
        peer.send(entry_id(1) + entry_id(2) + reply)

    return script


def run_and_recover(script: Script, **options: Any) -> list[Outcome]:
    """The outcomes of five messages with this script; the next five are delivered on the next connection."""
    with FakeServer(script) as fake, Dispatcher(to(fake, **options)) as dispatcher:
        for number in range(5):
            dispatcher.produce(b"x", number)
        report = dispatcher.flush()
        for number in range(5):
            dispatcher.produce(b"x", number)
        assert labels(dispatcher.flush()) == [DELIVERED] * 5
        assert fake.accepted == 2
        reported = outcomes(report)
    assert [outcome.message_id for outcome in reported] == list("01234")
    assert [outcome.entry_id for outcome in reported[:2]] == ["7-1", "7-2"]
    return reported


@pytest.mark.parametrize(
    "reply",
    [
        b"hello\r\n",
        b"\0\xff\xfe\r\n",
        b"\r\n",
        b"+OK\r\n",
        b":1\r\n",
        b"*1\r\n$3\r\n7-3\r\n",
        b"*0\r\n",
        b"*-1\r\n",
        b"*1\r\n" * 1_000_000,
        b"$3\r\nabc\r\n",
        b"$3\r\n7-3xx",
        b"$4\r\n7-3\r\n\r\n",
        b"$1\r\n7\r\n",
        b"$0\r\n\r\n",
        b"$41\r\n18446744073709551616-18446744073709551615\r\n",
        b"$-2\r\n",
        b"$\r\n",
        b"$x\r\n",
        b"$+3\r\n7-3\r\n",
        b"$03x\r\n7-3\r\n",
        b"$1025\r\n" + b"1" * 1_025,
        b"$536870912\r\n",
        b"$9223372036854775807\r\n",
        b"$9223372036854775808\r\n",
        b"$99999999999999999999999999999\r\n",
        b"$3\r7-3\r\n",
        b"_\r\n",
        b">2\r\n+message\r\n+x\r\n",
        b"%1\r\n+a\r\n+b\r\n",
        b"=7\r\ntxt:7-3\r\n",
        b"!5\r\nERR x\r\n",
        b"-ERR" + b"x" * 70_000 + b"\r\n",
        b"$" + b"1" * 70_000,
        b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
    ],
    ids=lambda reply: repr(reply[:24]),
)
def test_unexpected_replies_fail_the_remaining_messages(reply: bytes) -> None:
    reported = run_and_recover(says(reply))
    assert [outcome.label for outcome in reported[2:]] == [POISONED] * 3
    assert "the connection was replaced" in (reported[2].message or "")


def test_an_endless_line_uses_bounded_memory() -> None:
    """Of an endless line of 64 MiB the dispatcher reads about 64 KiB, then closes the connection."""

    def flood(peer: Peer) -> None:
        peer.commands(5)
        peer.send(entry_id(1) + entry_id(2) + b"-")
        for _ in range(1_024):
            peer.send(b"x" * 65_536)

    memory = PeakMemory()
    reported = run_and_recover(flood)
    assert [outcome.label for outcome in reported[2:]] == [POISONED] * 3
    assert memory.growth < 8 * 2**20


def test_a_surplus_reply_replaces_the_connection() -> None:
    """A sixth reply came with the five expected ones: the outcomes count, the connection is replaced."""

    def script(peer: Peer) -> None:
        peer.commands(5)
        peer.send(b"".join(map(entry_id, range(1, 7))))
        peer.wait_for_end()

    reported = run_and_recover(script)
    assert [outcome.entry_id for outcome in reported] == [f"7-{number}" for number in range(1, 6)]


def test_a_surplus_reply_does_not_answer_the_next_message() -> None:
    """It arrived before the next message was sent, so it belongs to no message."""
    with FakeServer(says(b"$3\r\n9-9\r\n", 2)) as fake, Dispatcher(to(fake)) as dispatcher:
        for _ in range(2):
            dispatcher.produce(b"x")
        assert labels(dispatcher.flush()) == [DELIVERED] * 2
        assert dispatcher.dispatch(b"x") == "7-1"  # the second connection's
        assert fake.accepted == 2


def test_nil_without_nomkstream_is_a_protocol_error() -> None:
    """No real server does it: the connection cannot be trusted."""
    with FakeServer(says(b"$-1\r\n" + entry_id(4) + entry_id(5))) as fake, Dispatcher(to(fake)) as dispatcher:
        for _ in range(5):
            dispatcher.produce(b"x")
        report = dispatcher.flush()
        assert labels(report) == [DELIVERED] * 2 + [("retryable", "PROTOCOL", "unknown")] * 3


@pytest.mark.parametrize(
    "reply", [b"", b"$", b"$3", b"$3\r", b"$3\r\n", b"$3\r\n7-", b"$3\r\n7-3\r", b"-", b"-ERR x\r"]
)
def test_a_truncated_reply_is_reported_as_eof(reply: bytes) -> None:
    reported = run_and_recover(cut(reply))
    assert [outcome.label for outcome in reported[2:]] == [("retryable", "EOF", "unknown")] * 3


@pytest.mark.parametrize("reply", [b"", b"$3\r\n7-"])
def test_a_reply_that_never_ends_times_out(reply: bytes) -> None:
    reported = run_and_recover(says(reply), command_timeout=0.3)
    assert [outcome.label for outcome in reported[2:]] == [("retryable", "TIMEOUT", "unknown")] * 3


def test_a_connection_reset_fails_the_unanswered_messages() -> None:
    def script(peer: Peer) -> None:
        peer.commands(5)
        peer.reset()

    with FakeServer(script) as fake, Dispatcher(to(fake)) as dispatcher:
        for _ in range(5):
            dispatcher.produce(b"x")
        assert labels(dispatcher.flush()) == [("retryable", "RESET", "unknown")] * 5
        dispatcher.produce(b"x")
        assert dispatcher.flush().ok


def test_replies_may_arrive_byte_by_byte() -> None:
    def script(peer: Peer) -> None:
        peer.commands(5)
        for byte in b"".join(map(entry_id, range(1, 6))):
            peer.send(bytes([byte]))
        answer_all(peer)

    with FakeServer(script) as fake, Dispatcher(to(fake)) as dispatcher:
        for _ in range(5):
            dispatcher.produce(b"x")
        assert labels(dispatcher.flush()) == [DELIVERED] * 5
        assert dispatcher.dispatch(b"x") == "7-1"
        assert fake.accepted == 1


def test_a_connection_closed_after_accept_fails_the_batch() -> None:
    with FakeServer(hang_up, hang_up) as fake, Dispatcher(to(fake)) as dispatcher:
        for turn in (1, 2):
            for _ in range(5):
                dispatcher.produce(b"x")
            reported = labels(dispatcher.flush())
            assert set(reported) <= {("retryable", "EOF", "no"), ("retryable", "RESET", "no")}
            assert fake.accepted == turn
        dispatcher.produce(b"x")
        assert dispatcher.flush().ok


@pytest.mark.parametrize(
    "reply", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 100_000, b"$9999999999\r\n", b"*1\r\n" * 9]
)
def test_invalid_replies_in_the_handshake_fail_the_batch(reply: bytes) -> None:
    def script(peer: Peer) -> None:
        peer.send(reply)
        peer.wait_for_end()

    with FakeServer(script, handshake=False) as fake, Dispatcher(to(fake, connect_timeout=5)) as dispatcher:
        for _ in range(5):
            dispatcher.produce(b"x")
        assert labels(dispatcher.flush()) == [("retryable", "PROTOCOL", "no")] * 5


def early(reply: bytes) -> Script:
    """A script of the fake server: answer the first message, then the second before it has arrived, and close."""

    def script(peer: Peer) -> None:
        peer.commands(1)
        peer.send(entry_id(1) + reply)

    return script


@pytest.mark.parametrize(
    ("reply", "label"),
    [
        (b"-ERR Protocol error: invalid bulk length\r\n", ("permanent", "TOO_LARGE", "no")),
        (entry_id(2), POISONED),
        (b"$-1\r\n", POISONED),
        (b"-OOM command not allowed\r\n", POISONED),
    ],
    ids=["too large", "an ID", "nil", "an error"],
)
def test_the_rest_of_a_message_is_dropped_after_an_early_reply(reply: bytes, label: tuple[str, str, str]) -> None:
    """The rest of that message is dropped: on the next connection it would be parsed as commands."""
    seen: list[list[bytes]] = []

    def next_connection(peer: Peer) -> None:
        while command := peer.commands(1):
            seen.extend(command)
            peer.send(entry_id(len(seen)))

    with FakeServer(early(reply), next_connection) as fake, Dispatcher(to(fake)) as dispatcher:
        dispatcher.produce(b"first")
        dispatcher.produce(b"\r\nFLUSHALL\r\n" * (1 << 20))  # 12 MiB: more than sockets hold
        dispatcher.produce(b"third")
        report = dispatcher.flush()
        reported = labels(report)
        assert reported[:2] == [DELIVERED, label]
        assert reported[2] in [DELIVERED, ("retryable", "RESET", "no"), ("retryable", "PROTOCOL", "no")]
        dispatcher.produce(b"fourth")
        assert labels(dispatcher.flush()) == [DELIVERED]
    assert [command[0] for command in seen] == [b"XADD"] * len(seen)
    assert seen[-1][4] == b"fourth"


def test_rows_after_one_that_is_too_large_are_not_written() -> None:
    """They were sent, but the server closed the connection without reading them."""

    def script(peer: Peer) -> None:
        peer.commands(50)
        peer.send(b"".join(map(entry_id, range(1, 11))) + b"-ERR Protocol error: invalid bulk length\r\n")

    with FakeServer(script) as fake, Dispatcher(to(fake)) as dispatcher:
        for _ in range(50):
            dispatcher.produce(b"x")
        reported = labels(dispatcher.flush())
        assert reported == [DELIVERED] * 10 + [("permanent", "TOO_LARGE", "no")] + [("retryable", "RESET", "no")] * 39
        dispatcher.produce(b"x")
        assert dispatcher.flush().ok


def test_headrace_codes_from_a_server_are_ordinary_errors() -> None:
    """headrace's own codes describe local events: in a reply they are errors like any other."""
    assert {"TOO_LARGE", "PROTOCOL", "TLS"} <= set(OWN_CODES)

    def script(peer: Peer) -> None:
        peer.commands(len(OWN_CODES))
        peer.send(b"".join(b"-%s upstream\r\n" % code.encode() for code in OWN_CODES))
        answer_all(peer)

    with FakeServer(script) as fake, Dispatcher(to(fake)) as dispatcher:
        for code in OWN_CODES:
            dispatcher.produce(b"x", code)
        reported = outcomes(dispatcher.flush())
        assert [outcome.message_id for outcome in reported] == OWN_CODES
        assert [outcome.label for outcome in reported] == [("retryable", "ERR", "no")] * len(OWN_CODES)
        assert [outcome.message for outcome in reported] == [f"{code} upstream" for code in OWN_CODES]
        assert dispatcher.dispatch(b"x") == "7-1"
        assert fake.accepted == 1


def test_the_number_of_distinct_codes_is_bounded() -> None:
    """Each message has its outcome; only a bounded number of different ones is kept."""
    count = 5_000

    def script(peer: Peer) -> None:
        peer.commands(count)
        peer.send(b"".join(b"-MADEUP%d as number %d\r\n" % (number, number) for number in range(count)))
        peer.wait_for_end()

    with FakeServer(script) as fake, Dispatcher(to(fake)) as dispatcher:
        for number in range(count):
            dispatcher.produce(b"x", number)
        report = dispatcher.flush()
        reported = outcomes(report)
    assert [outcome.message_id for outcome in reported] == [str(number) for number in range(count)]
    assert {(outcome.kind, outcome.written) for outcome in reported} == {("retryable", "no")}
    assert [outcome.code for outcome in reported[:1_000]] == [f"MADEUP{number}" for number in range(1_000)]
    assert reported[999].message == "MADEUP999 as number 999"
    assert reported[-1].code == "ERR"
    codes = report.failed_by_code
    assert sum(codes.values()) == len(report.failed) == count
    assert len(codes) < 2_100
    assert len({outcome.message for outcome in reported}) < 1_100


@pytest.mark.parametrize(
    ("password", "reply"),
    [
        (CANARY, f"ERR no such user bob with password {CANARY}"),
        (CANARY, f"ERR {CANARY} is wrong, {CANARY}!"),
        (CANARY * 5, f"ERR {'x' * 170} {CANARY * 5}"),
        (CANARY.replace("-", "\x01"), f"ERR no such user bob with password {CANARY}".replace("-", "\x01")),
    ],
    ids=["in the text", "twice", "where the text is cut", "with a control character"],
)
def test_a_password_echoed_by_the_server_is_redacted(password: str, reply: str) -> None:
    def script(peer: Peer) -> None:
        (command,) = peer.commands(1)
        assert command == [b"AUTH", b"bob", password.encode()]
        peer.send(f"-{reply}\r\n".encode())
        peer.wait_for_end()

    with FakeServer(script, handshake=False) as fake:
        with Dispatcher(to(fake, username="bob", password=password)) as dispatcher:
            dispatcher.produce(b"x")
            (failure,) = dispatcher.flush().failed
        assert failure.code == reply.split()[0]
        assert "AUTH was refused: " in failure.message
        assert not [word for word in ("canary", "hunter2") if word in failure.message], failure.message
