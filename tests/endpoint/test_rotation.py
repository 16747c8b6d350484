"""Passwords that change under a dispatcher: in a variable, in a file, or from a callable, read at each connect.

tests/endpoint/test_password_callable.py has more on callables, tests/endpoint/test_tls.py the same for TLS files.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import Dispatcher, Endpoint
from headrace.testing import LocalServer
from support.endpoints import build
from support.fake_server import FakeServer, Peer, Script, answer_all
from support.processes import after_ticks, resume, stop
from support.rotation import Connect, Vault, send, set_password, to

WRONGPASS = ("permanent", "WRONGPASS", "no")


def kill_connections(admin: Any) -> None:
    admin.client_kill_filter(_type="normal", skipme=True)


def connections(admin: Any) -> int:
    return int(admin.info("stats")["total_connections_received"])


class Place:
    """A source of a password: `put` changes it, and `options` refer to it."""

    def __init__(self, kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._file = folder / "password"
        self._file.touch(mode=0o600)  # headrace warns of a file that others may read
        self._vault = Vault("")
        self._monkeypatch = monkeypatch
        self._kind = kind
        places: dict[str, dict[str, Any]] = {
            "variable": {"password_env": "TEST_ROTATED_PASSWORD"},
            "file": {"password_file": self._file},
            "callable": {"password": self._vault.read},
        }
        self.options = places[kind]

    def put(self, password: str) -> None:
        if self._kind == "variable":
            self._monkeypatch.setenv("TEST_ROTATED_PASSWORD", password)
        elif self._kind == "file":
            self._file.touch(mode=0o600)
            self._file.write_text(password + "\n")
        else:
            self._vault.answers = [password]


@pytest.fixture(params=["variable", "file", "callable"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(request.param, tmp_path, monkeypatch)


# --- real servers


def test_only_the_next_connection_uses_the_new_password(server: LocalServer, connect: Connect, place: Place) -> None:
    admin = connect(server)
    set_password(admin, "first")
    place.put("first")
    before = connections(admin)
    with Dispatcher(to(server, **place.options)) as dispatcher:
        assert send(dispatcher) == []
        set_password(admin, "second")
        assert send(dispatcher) == []  # on its existing connection
        place.put("second")
        assert send(dispatcher) == []
        assert connections(admin) == before + 1
        kill_connections(admin)
        assert send(dispatcher) == []
        assert connections(admin) == before + 2
    assert admin.xlen("s") == 4


def test_a_password_that_changes_before_auth_is_read_again(server: LocalServer, connect: Connect, place: Place) -> None:
    """The server is suspended while the old password is in flight, and the password changes meanwhile."""
    admin = connect(server)
    set_password(admin, "new")
    place.put("old")
    before = connections(admin)
    with Dispatcher(to(server, **place.options)) as dispatcher:
        dispatcher.produce(b"x")
        stop(server)

        def rotate() -> None:
            place.put("new")
            resume(server)

        with after_ticks(5, rotate):
            assert dispatcher.flush().delivered == 1
    assert connections(admin) == before + 2
    assert admin.info("commandstats")["cmdstat_auth"]["calls"] == 2


def test_an_unchanged_password_is_tried_only_once(server: LocalServer, connect: Connect, place: Place) -> None:
    admin = connect(server)
    set_password(admin, "right")
    place.put("wrong")
    before = connections(admin)
    dispatcher = Dispatcher(to(server, **place.options))
    assert send(dispatcher) == [WRONGPASS]
    assert connections(admin) == before + 1
    place.put("right")
    assert send(dispatcher) == []


def test_a_fixed_password_is_tried_once(server: LocalServer, connect: Connect) -> None:
    admin = connect(server)
    set_password(admin, "right")
    before = connections(admin)
    dispatcher = Dispatcher(to(server, password="wrong"))
    assert send(dispatcher) == [WRONGPASS]
    assert connections(admin) == before + 1


def test_a_password_is_tried_at_most_twice(server: LocalServer, connect: Connect) -> None:
    admin = connect(server)
    set_password(admin, "right")
    before = connections(admin)
    vault = Vault("wrong", "wrong too", "right")
    dispatcher = Dispatcher(to(server, password=vault.read))
    assert send(dispatcher) == [WRONGPASS]
    assert (vault.asked, connections(admin)) == (2, before + 2)
    assert send(dispatcher) == []
    assert vault.asked == 3


def test_the_refusal_is_reported_if_the_second_read_fails(server: LocalServer, connect: Connect) -> None:
    """The refusal is reported, not the missing password."""
    set_password(connect(server), "right")
    for then in (RuntimeError(), "", None):
        dispatcher = Dispatcher(to(server, password=Vault("wrong", then).read))
        assert send(dispatcher) == [WRONGPASS]


def test_a_server_without_a_password_is_tried_once_more(server: LocalServer, connect: Connect) -> None:
    """`ERR AUTH <password> called without any password`: its password may be about to be set."""
    vault = Vault("one", "two")
    dispatcher = Dispatcher(Endpoint(unix_socket=server.unix_socket, stream_key="s", password=vault.read))
    assert send(dispatcher) == [("permanent", "ERR", "no")]
    assert vault.asked == 2
    assert connect(server).info("commandstats")["cmdstat_auth"]["calls"] == 2


def test_passwords_can_contain_any_bytes(any_server: LocalServer, connect: Connect) -> None:
    admin = connect(any_server)
    for password in ("pässwörd\n", b"\xff\x00 \r\n", bytearray(b"\xfe")):
        as_bytes = password.encode() if isinstance(password, str) else bytes(password)
        admin.execute_command("ACL", "SETUSER", "app", "reset", "on", b">" + as_bytes, "~s", "+xadd")
        with Dispatcher(to(any_server, password=Vault(password).read)) as dispatcher:
            assert send(dispatcher) == []


# --- with a fake server


def expect_password(reply: bytes, rotate: Callable[[], object], expected: bytes) -> Script:
    """A script of the fake server: expect a password, change it, and answer."""

    def script(peer: Peer) -> None:
        assert peer.commands(1) == [[b"AUTH", expected]]
        rotate()
        peer.send(reply)
        if reply == b"+OK\r\n":
            peer.commands(3)
            peer.send(b"+OK\r\n" * 3)
            answer_all(peer)

    return script


@pytest.mark.parametrize("reply", [b"WRONGPASS invalid username-password pair", b"NOAUTH of a proxy", b"ERR AUTH no"])
def test_authentication_errors_cause_a_second_read(place: Place, reply: bytes) -> None:
    place.put("old")
    scripts = (
        expect_password(b"-%s\r\n" % reply, lambda: place.put("new"), b"old"),
        expect_password(b"+OK\r\n", lambda: None, b"new"),
    )
    with FakeServer(*scripts, handshake=False) as server:
        with Dispatcher(build(host="127.0.0.1", port=server.port, **place.options)) as dispatcher:
            assert send(dispatcher) == []
        assert server.accepted == 2


@pytest.mark.parametrize("reply", [b"LOADING Redis is loading", b"NOPERM no", b"DENIED protected", b"ERR other"])
def test_other_errors_cause_no_second_read(place: Place, reply: bytes) -> None:
    place.put("old")
    with FakeServer(expect_password(b"-%s\r\n" % reply, lambda: place.put("new"), b"old"), handshake=False) as server:
        dispatcher = Dispatcher(build(host="127.0.0.1", port=server.port, **place.options))
        assert [code for _, code, _ in send(dispatcher)] == [reply.split()[0].decode()]
        assert server.accepted == 1
