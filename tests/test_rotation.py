"""Passwords that change under a dispatcher: in a variable, in a file, or with a callable that is asked at each connect.

tests/test_tls.py has the same for TLS files.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import ConcurrentUseError, ConfigError, Dispatcher, Endpoint, RetryPolicy
from headrace.server import LocalServer
from support.endpoints import CANARY, build
from support.fake_server import FakeServer, Peer, Script, answer_all
from support.processes import after_ticks, in_child, resume, stop

#: The replies of redis-py have types that are of no use here.
Connect = Callable[..., Any]

WRONGPASS = ("permanent", "WRONGPASS", "no")
CONFIG = ("retryable", "CONFIG", "no")


class Vault:
    """Hands out a password, or raises; counts how often it was asked."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        """The last one stays."""
        self.asked = 0

    def read(self) -> Any:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer


def to(server: LocalServer, **options: Any) -> Endpoint:
    return Endpoint(unix_socket=server.unix_socket, stream_key="s", username="app", **options)


def set_password(admin: Any, password: str) -> None:
    """Rotate as servers have it: live connections are not touched."""
    admin.execute_command("ACL", "SETUSER", "app", "reset", "on", f">{password}", "~s", "+xadd", "+client")


def kill_connections(admin: Any) -> None:
    admin.client_kill_filter(_type="normal", skipme=True)


def connections(admin: Any) -> int:
    return int(admin.info("stats")["total_connections_received"])


def send(dispatcher: Dispatcher) -> list[tuple[str, str, str]]:
    """What a message fails with; nothing if it does not."""
    dispatcher.produce(b"x")
    return [(one.kind, one.code, one.written) for one in dispatcher.flush().failed]


def message(dispatcher: Dispatcher) -> str:
    dispatcher.produce(b"x")
    (failure,) = dispatcher.flush().failed
    assert (failure.kind, failure.code, failure.written) == CONFIG
    return failure.message


class Place:
    """Somewhere a password is: `put` changes it, and `options` lead there."""

    def __init__(self, kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._file = folder / "password"
        self._file.touch(mode=0o600)  # a file that others may read is warned of
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


def test_a_live_connection_goes_on_and_the_next_one_has_the_new_password(
    server: LocalServer, connect: Connect, place: Place
) -> None:
    admin = connect(server)
    set_password(admin, "first")
    place.put("first")
    before = connections(admin)
    with Dispatcher(to(server, **place.options)) as dispatcher:
        assert send(dispatcher) == []
        set_password(admin, "second")
        assert send(dispatcher) == []  # on the connection that it has
        place.put("second")
        assert send(dispatcher) == []
        assert connections(admin) == before + 1
        kill_connections(admin)
        assert send(dispatcher) == []
        assert connections(admin) == before + 2
    assert admin.xlen("s") == 4


def test_a_password_that_changes_between_reading_and_auth(server: LocalServer, connect: Connect, place: Place) -> None:
    """The server stands still while the old password is on its way, and the new one comes meanwhile."""
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


def test_what_did_not_change_is_refused_after_one_connection(
    server: LocalServer, connect: Connect, place: Place
) -> None:
    admin = connect(server)
    set_password(admin, "right")
    place.put("wrong")
    before = connections(admin)
    dispatcher = Dispatcher(to(server, **place.options))
    assert send(dispatcher) == [WRONGPASS]
    assert connections(admin) == before + 1
    place.put("right")
    assert send(dispatcher) == []


def test_a_fixed_password_has_no_second_try(server: LocalServer, connect: Connect) -> None:
    admin = connect(server)
    set_password(admin, "right")
    before = connections(admin)
    dispatcher = Dispatcher(to(server, password="wrong"))
    assert send(dispatcher) == [WRONGPASS]
    assert connections(admin) == before + 1


def test_there_is_no_third_try(server: LocalServer, connect: Connect) -> None:
    admin = connect(server)
    set_password(admin, "right")
    before = connections(admin)
    vault = Vault("wrong", "wrong too", "right")
    dispatcher = Dispatcher(to(server, password=vault.read))
    assert send(dispatcher) == [WRONGPASS]
    assert (vault.asked, connections(admin)) == (2, before + 2)
    assert send(dispatcher) == []
    assert vault.asked == 3


def test_a_password_that_is_none_when_it_is_asked_for_again(server: LocalServer, connect: Connect) -> None:
    """The refusal says more than why there is none."""
    set_password(connect(server), "right")
    for then in (RuntimeError(), "", None):
        dispatcher = Dispatcher(to(server, password=Vault("wrong", then).read))
        assert send(dispatcher) == [WRONGPASS]


def test_a_server_without_a_password_is_asked_once_more(server: LocalServer, connect: Connect) -> None:
    """`ERR AUTH <password> called without any password`: its password may be about to be set."""
    vault = Vault("one", "two")
    dispatcher = Dispatcher(Endpoint(unix_socket=server.unix_socket, stream_key="s", password=vault.read))
    assert send(dispatcher) == [("permanent", "ERR", "no")]
    assert vault.asked == 2
    assert connect(server).info("commandstats")["cmdstat_auth"]["calls"] == 2


def test_a_password_of_any_bytes(any_server: LocalServer, connect: Connect) -> None:
    admin = connect(any_server)
    for password in ("pässwörd\n", b"\xff\x00 \r\n", bytearray(b"\xfe")):
        as_bytes = password.encode() if isinstance(password, str) else bytes(password)
        admin.execute_command("ACL", "SETUSER", "app", "reset", "on", b">" + as_bytes, "~s", "+xadd")
        with Dispatcher(to(any_server, password=Vault(password).read)) as dispatcher:
            assert send(dispatcher) == []


# --- what only a fake server does


def told(reply: bytes, rotate: Callable[[], object], expected: bytes) -> Script:
    """A script: expect a password, change it, and answer."""

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
def test_the_refusals_after_which_it_is_asked_again(place: Place, reply: bytes) -> None:
    place.put("old")
    scripts = told(b"-%s\r\n" % reply, lambda: place.put("new"), b"old"), told(b"+OK\r\n", lambda: None, b"new")
    with FakeServer(*scripts, handshake=False) as server:
        with Dispatcher(build(host="127.0.0.1", port=server.port, **place.options)) as dispatcher:
            assert send(dispatcher) == []
        assert server.accepted == 2


@pytest.mark.parametrize("reply", [b"LOADING Redis is loading", b"NOPERM no", b"DENIED protected", b"ERR other"])
def test_other_refusals_are_not_of_the_password(place: Place, reply: bytes) -> None:
    place.put("old")
    with FakeServer(told(b"-%s\r\n" % reply, lambda: place.put("new"), b"old"), handshake=False) as server:
        dispatcher = Dispatcher(build(host="127.0.0.1", port=server.port, **place.options))
        assert [code for _, code, _ in send(dispatcher)] == [reply.split()[0].decode()]
        assert server.accepted == 1


# --- callables that fail


class SecretError(Exception):
    """An exception whose name may be told, and whose text may not."""


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (TimeoutError(CANARY), "raised TimeoutError"),
        (SecretError(CANARY), f"raised {__name__}.SecretError"),
        (ExceptionGroup(CANARY, [ValueError(CANARY)]), "raised ExceptionGroup"),
        ("", "returned an empty password"),
        (b"", "returned an empty password"),
        (None, "returned NoneType, not str or bytes"),
        (5, "returned int, not str or bytes"),
        ([CANARY], "returned list, not str or bytes"),
        (CANARY + "\ud800", "returned a str with a lone surrogate"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else None,
)
def test_a_callable_that_fails_is_named_without_its_words(any_server: LocalServer, answer: object, why: str) -> None:
    vault = Vault(answer)
    dispatcher = Dispatcher(to(any_server, password=vault.read), retry=RetryPolicy(deadline=5))
    assert message(dispatcher) == f"password: the callable {__name__}.Vault.read {why}"
    assert vault.asked == 1


def test_a_coroutine_function_is_no_callable_that_returns_a_password(any_server: LocalServer) -> None:
    async def read() -> str:
        return await asyncio.sleep(0, "x")

    dispatcher = Dispatcher(to(any_server, password=read))
    with pytest.warns(RuntimeWarning, match="never awaited"):
        assert message(dispatcher).endswith("read returned coroutine, not str or bytes")


def test_a_failure_is_of_one_batch(any_server: LocalServer, connect: Connect) -> None:
    set_password(connect(any_server), "right")
    vault = Vault(TimeoutError(), "right")
    dispatcher = Dispatcher(to(any_server, password=vault.read))
    assert send(dispatcher) == [CONFIG]
    assert send(dispatcher) == []
    dispatcher.close()


@pytest.mark.parametrize("raised", [KeyboardInterrupt("of the callable"), SystemExit(3)])
@pytest.mark.parametrize("way", ["flush", "produce", "produce_batch", "dispatch", "second time"])
def test_what_is_to_end_the_program_is_raised(
    any_server: LocalServer, connect: Connect, raised: BaseException, way: str
) -> None:
    admin = connect(any_server)
    set_password(admin, "right")
    vault = Vault(*(["wrong"] if way == "second time" else []), raised, "right")
    dispatcher = Dispatcher(to(any_server, password=vault.read), window_max_entries=1)

    def call() -> None:
        if way == "dispatch":
            dispatcher.dispatch(b"x")
        elif way == "produce_batch":
            dispatcher.produce_batch(rows(3), payload="payload")
        else:
            dispatcher.produce(b"x")
            if way == "produce":
                dispatcher.produce(b"y")
            dispatcher.flush()

    with pytest.raises(type(raised)) as caught:
        call()
    assert caught.value is raised
    report = dispatcher.flush()
    # Nothing that was taken is lost; rows that were not have their outcome.
    assert {(one.code, one.written) for one in report.failed} <= {("INTERRUPTED", "no")}
    taken = {"dispatch": 0, "produce_batch": 3}.get(way, 1)
    assert report.delivered + len(report.failed) == taken
    if way != "dispatch":  # whose message stays the dispatcher's, as after Ctrl-C
        assert admin.xlen("s") == report.delivered
    assert send(dispatcher) == []
    dispatcher.poll()


def rows(count: int) -> Any:
    import pyarrow as pa

    return pa.record_batch({"payload": [str(number) for number in range(count)]})


def test_a_callable_that_takes_too_long(any_server: LocalServer) -> None:
    def read() -> str:
        time.sleep(0.2)  # what is tested
        return "x"

    dispatcher = Dispatcher(to(any_server, password=read, connect_timeout=0.1))
    dispatcher.produce(b"x")
    (failure,) = dispatcher.flush().failed
    assert (failure.kind, failure.code, failure.written) == ("retryable", "TIMEOUT", "no")
    assert failure.message.endswith("within 0.1 s: timed out while the password was asked for")


def test_a_callable_that_uses_its_dispatcher(any_server: LocalServer) -> None:
    raised: list[ConcurrentUseError] = []

    def read() -> str:
        try:
            dispatcher.flush()
        except ConcurrentUseError as error:
            raised.append(error)
        return "x"

    dispatcher = Dispatcher(to(any_server, password=read))
    assert send(dispatcher) == [WRONGPASS]
    assert len(raised) == 2


def test_a_callable_that_uses_another_dispatcher(server: LocalServer, connect: Connect) -> None:
    set_password(connect(server), "right")
    inner = Dispatcher(to(server, password=Vault("right").read))

    def read() -> str:
        assert send(inner) == []
        return "right"

    with Dispatcher(to(server, password=read)) as dispatcher:
        assert send(dispatcher) == []
    inner.close()


def test_a_forked_child_asks_anew(any_server: LocalServer, connect: Connect) -> None:
    set_password(connect(any_server), "right")
    vault = Vault("right")
    with Dispatcher(to(any_server, password=vault.read)) as dispatcher:
        assert send(dispatcher) == []
        assert in_child(lambda: (send(dispatcher), vault.asked)) == ([], 2)
        assert send(dispatcher) == []
    assert vault.asked == 1


# --- values


def a_password() -> str:
    return "right"


class Instance:
    def __call__(self) -> str:
        return CANARY

    def __repr__(self) -> str:
        return CANARY


def test_endpoints_with_callables_are_values() -> None:
    vault = Vault("x")
    one = build(password=vault.read)
    assert one == build(password=vault.read)
    assert hash(one) == hash(build(password=vault.read))
    assert one != build(password=Vault("x").read)
    assert one != build(password="x")
    assert one != build(password_env="X")
    assert build(password=a_password) == build(password=a_password) != build(password=Instance())
    assert build(password=functools.partial(a_password)) != build(password=functools.partial(a_password))
    assert copy.copy(one) is copy.deepcopy(one) is one
    assert vault.asked == 0


def test_an_endpoint_with_a_callable_shows_its_name_alone() -> None:
    for callable_, name in (
        (a_password, f"{__name__}.a_password"),
        (Vault("x").read, f"{__name__}.Vault.read"),
        (Instance(), f"{__name__}.Instance"),
        (functools.partial(os.getenv, CANARY), "functools.partial"),
        (len, "len"),
    ):
        endpoint = build(password=callable_, username="u")
        shown = f"Endpoint(host='h', stream_key='s', username='u', password=<callable {name}>)"
        assert repr(endpoint) == shown
        assert str(endpoint) == "redis://u@h:6379 stream key s"
        assert not hasattr(endpoint, "password")


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_callable_is_pickled_as_pickle_does_it(any_server: LocalServer, connect: Connect, protocol: int) -> None:
    set_password(connect(any_server), "right")
    endpoint = to(any_server, password=a_password)
    pickled = pickle.dumps(endpoint, protocol)
    assert b"a_password" in pickled
    assert b"right" not in pickled
    again = pickle.loads(pickled)
    assert again == endpoint
    with Dispatcher(again) as dispatcher:
        assert send(dispatcher) == []
    for callable_ in (lambda: CANARY, functools.partial(lambda: CANARY)):
        with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
            pickle.dumps(build(password=callable_), protocol)


def test_where_a_callable_is_refused() -> None:
    here = {"host": "h", "stream_key": "s"}
    refusals: list[tuple[Callable[[], object], str]] = [
        (
            lambda: Endpoint._from_text({**here, "password": a_password}),  # type: ignore[dict-item]
            f"password must be text where all options are, got the callable {__name__}.a_password; "
            "give password_env or password_file",
        ),
        (
            lambda: build(password=a_password, password_file="f"),
            "password, password_env and password_file exclude each other; give one of them",
        ),
        (lambda: Endpoint.from_url("redis://:x@h", stream_key="s", password=a_password), "password is given twice"),
        (lambda: build(username=a_password), "username must be text that is not empty, got a value of type function"),
        (
            lambda: build(password=object()),
            "password must be text or bytes that are not empty, or a callable that returns them, got object",
        ),
    ]
    for build_it, why in refusals:
        with pytest.raises(ConfigError) as caught:
            build_it()
        assert str(caught.value).startswith(why)
    assert Endpoint.from_mapping({**here, "password": a_password}) == build(password=a_password)
    assert Endpoint.from_url("redis://h", stream_key="s", password=a_password) == build(password=a_password)
