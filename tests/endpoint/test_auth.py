"""AUTH and ACLs: the outcomes of messages that the server refuses, and secrets that stay hidden."""

from __future__ import annotations

import gc
import logging
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from headrace import ConfigError, DeliveryError, DeliveryReport, Dispatcher, Endpoint, ForgottenWarning
from headrace.testing import LocalServer
from support import Monitor, Program
from support.endpoints import CANARY
from support.fixture_types import StartServer

#: redis-py types its replies too loosely to be useful here.
Connect = Callable[..., Any]

USERS = [
    "admin on >admin-password ~* &* +@all",
    "app on >app-password ~s -@all +xadd",
    "grouping on >app-password ~s -@all +xadd +select +xgroup|create",
    "without-xadd on >app-password ~* +@all -xadd",
    "elsewhere on >app-password ~other +@all",
    "disabled off >app-password ~* +@all",
    "default off",
]


@pytest.fixture
def guarded(start_server: StartServer, program: Program) -> LocalServer:
    """A server with `USERS`."""
    return start_server(program, config={"user": USERS})


def to(server: LocalServer, **options: Any) -> Endpoint:
    return Endpoint(**{"unix_socket": server.unix_socket, "stream_key": "s", **options})


@dataclass
class Seen:
    """The outcomes of a batch of three messages, and what the server saw."""

    report: DeliveryReport
    connections: int
    tried: dict[str, int]
    """How often each command was tried, including refused calls; without CLIENT."""
    monitor: list[list[bytes]]
    users: set[str]

    @property
    def outcomes(self) -> set[tuple[str, str, str]]:
        return {(one.kind, one.code, one.written) for one in self.report.failed}


def send_three(server: LocalServer, connect: Connect, endpoint: Endpoint) -> Seen:
    admin = connect(server, username="admin", password="admin-password")
    admin.ping()
    with Monitor(server, username="admin", password="admin-password") as monitor:
        admin.config_resetstat()
        dispatcher = Dispatcher(endpoint)
        for message in range(3):
            dispatcher.produce(str(message))
        report = dispatcher.flush()
        assert len(report.failed) + report.delivered == 3
        connections = admin.info("stats")["total_connections_received"]
        tried: dict[str, int] = {}
        for name, counts in admin.info("commandstats").items():
            command = name.removeprefix("cmdstat_").partition("|")[0]
            if command in {"auth", "select", "xgroup", "xadd", "hello", "ping"}:
                tried[command] = tried.get(command, 0) + counts["calls"] + counts["rejected_calls"]
        users = {client["user"] for client in admin.client_list() if client["name"] == "headrace"}
    dispatcher.close()
    own = [words for words in monitor.commands() if words[0] in (b"AUTH", b"SELECT", b"XGROUP", b"XADD")]
    return Seen(report, connections, tried, own, users)


# --- AUTH


def test_auth_with_a_password_alone_is_for_the_default_user(
    program: Program, start_server: StartServer, connect: Connect
) -> None:
    server = start_server(program, config={"user": [USERS[0], "app on >app-password ~* +@all"], "requirepass": CANARY})
    seen = send_three(server, connect, to(server, password=CANARY))
    assert seen.report.ok
    assert seen.monitor[0] == [b"AUTH", b"(redacted)"]
    assert seen.users == {"default"}
    assert seen.tried == {"auth": 1, "xadd": 3}


def test_auth_with_a_username_has_two_arguments(program: Program, start_server: StartServer, connect: Connect) -> None:
    server = start_server(program, config={"user": [USERS[0], "app on >app-password ~* +@all"], "requirepass": CANARY})
    seen = send_three(server, connect, to(server, username="app", password="app-password"))
    assert seen.report.ok
    assert seen.monitor[0] == [b"AUTH", b"(redacted)", b"(redacted)"]
    assert seen.users == {"app"}
    assert seen.tried == {"auth": 1, "xadd": 3}


@pytest.mark.parametrize("password", [b"\xff\x00 \r\n", "pässwörd", "p" * 10_000])
def test_passwords_can_contain_any_bytes(any_server: LocalServer, connect: Connect, password: str | bytes) -> None:
    admin = connect(any_server)
    as_bytes = password.encode() if isinstance(password, str) else password
    admin.execute_command("ACL", "SETUSER", "ü", "on", b">" + as_bytes, "~s", "+xadd")
    with Dispatcher(to(any_server, username="ü", password=password)) as dispatcher:
        dispatcher.dispatch(b"x")
    assert admin.xlen("s") == 1


# --- required permissions


def test_a_user_needs_only_xadd_permission_on_the_key(guarded: LocalServer, connect: Connect) -> None:
    seen = send_three(guarded, connect, to(guarded, username="app", password="app-password"))
    assert seen.report.ok
    assert [words[0] for words in seen.monitor] == [b"AUTH", b"XADD", b"XADD", b"XADD"]
    assert (seen.connections, seen.tried) == (1, {"auth": 1, "xadd": 3})


def test_a_user_with_group_and_database_permissions_can_produce(guarded: LocalServer, connect: Connect) -> None:
    endpoint = to(guarded, username="grouping", password="app-password", db=3, consumer_group="g")
    seen = send_three(guarded, connect, endpoint)
    assert seen.report.ok
    assert (seen.connections, seen.tried) == (1, {"auth": 1, "select": 1, "xgroup": 1, "xadd": 3})
    again = send_three(guarded, connect, endpoint)  # BUSYGROUP
    assert again.report.ok


# --- refusals


@pytest.mark.parametrize(
    ("username", "password"),
    [("app", CANARY), ("nobody", CANARY), ("disabled", "app-password"), (None, CANARY)],
    ids=["wrong password", "no such user", "disabled user", "disabled default user"],
)
def test_wrong_credentials_are_refused(
    guarded: LocalServer, connect: Connect, username: str | None, password: str
) -> None:
    seen = send_three(guarded, connect, to(guarded, username=username, password=password))
    assert seen.outcomes == {("permanent", "WRONGPASS", "no")}
    assert (seen.connections, seen.tried) == (1, {"auth": 1})
    message = seen.report.failed[0].message
    assert message.startswith(f"cannot connect to {guarded.unix_socket}: AUTH was refused: WRONGPASS ")
    assert password not in message


def test_a_password_for_a_server_without_one_is_refused(
    program: Program, start_server: StartServer, connect: Connect
) -> None:
    server = start_server(program, config={"user": USERS[:1]})
    seen = send_three(server, connect, to(server, password=CANARY))
    assert seen.outcomes == {("permanent", "ERR", "no")}
    assert (seen.connections, seen.tried) == (1, {"auth": 1})
    assert "AUTH was refused: ERR AUTH" in seen.report.failed[0].message
    assert CANARY not in seen.report.failed[0].message


def test_missing_credentials_are_refused(guarded: LocalServer, connect: Connect) -> None:
    """The handshake finds out: after it, large messages would get protocol errors."""
    for more in ({}, {"consumer_group": "g"}):
        seen = send_three(guarded, connect, to(guarded, **more))
        assert seen.outcomes == {("permanent", "NOAUTH", "no")}
        assert (seen.connections, seen.tried) == (1, {})


def test_missing_credentials_are_refused_before_a_large_message(guarded: LocalServer) -> None:
    with Dispatcher(to(guarded)) as dispatcher:
        dispatcher.produce(b"x" * 100_000)
        dispatcher.produce(b"y")
        assert [(failure.code, failure.kind, failure.written) for failure in dispatcher.flush().failed] == [
            ("NOAUTH", "permanent", "no")
        ] * 2


@pytest.mark.parametrize("username", ["without-xadd", "elsewhere"])
def test_a_user_without_permission_for_the_command_or_the_key_is_refused(
    guarded: LocalServer, connect: Connect, username: str
) -> None:
    seen = send_three(guarded, connect, to(guarded, username=username, password="app-password"))
    assert seen.outcomes == {("permanent", "NOPERM", "no")}
    assert (seen.connections, seen.tried) == (1, {"auth": 1, "xadd": 3})
    assert [one.message_id for one in seen.report.failed] == [0, 1, 2]
    admin = connect(guarded, username="admin", password="admin-password")
    assert admin.keys() == []


@pytest.mark.parametrize(
    ("options", "tried", "command"),
    [
        ({"db": 3}, {"auth": 1, "select": 1}, "SELECT"),
        ({"consumer_group": "g"}, {"auth": 1, "xgroup": 1}, "XGROUP CREATE"),
    ],
)
def test_a_user_without_permission_for_group_or_database_is_refused(
    guarded: LocalServer, connect: Connect, options: dict[str, Any], tried: dict[str, int], command: str
) -> None:
    seen = send_three(guarded, connect, to(guarded, username="app", password="app-password", **options))
    assert seen.outcomes == {("permanent", "NOPERM", "no")}
    assert (seen.connections, seen.tried) == (1, tried)
    assert f": {command} was refused: NOPERM " in seen.report.failed[0].message


def test_the_next_batch_connects_again(any_server: LocalServer, connect: Connect) -> None:
    admin = connect(any_server)
    admin.config_set("requirepass", "first")
    admin.config_resetstat()
    dispatcher = Dispatcher(to(any_server, password=CANARY))
    for batch in range(1, 4):
        for _ in range(100):
            dispatcher.produce(b"x")
        assert dispatcher.flush().failed_by_code == {"WRONGPASS": 100}
        assert admin.info("commandstats")["cmdstat_auth"]["calls"] == batch
        assert admin.info("stats")["total_connections_received"] == batch
    admin.config_set("requirepass", CANARY)
    dispatcher.produce(b"x")
    assert dispatcher.flush().delivered == 1
    with pytest.raises(DeliveryError, match=r"^300 messages were not delivered to \S+ .* \(WRONGPASS 300\)"):
        dispatcher.close()


# --- secrets stay hidden


def refused_by(server: LocalServer) -> Endpoint:
    # Created here, so that no frame of a traceback holds the password in a local variable.
    return to(server, username="app", password=CANARY, consumer_group="g")


def reported(error: BaseException) -> str:
    """The full text of an exception, with local variables as debugging tools print them."""
    lines = traceback.TracebackException.from_exception(error, capture_locals=True).format()
    return "".join([*lines, str(error), repr(error), repr(error.__dict__), repr(error.args)])


def caught(action: Callable[[], object]) -> BaseException:
    try:
        action()
    except Exception as error:
        return error
    pytest.fail("nothing was raised")


def test_no_password_in_reports_exceptions_logs_and_warnings(
    guarded: LocalServer, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    endpoint = refused_by(guarded)
    dispatcher = Dispatcher(endpoint)
    by_dispatch = caught(lambda: dispatcher.dispatch(b"x"))
    dispatcher.produce(b"x")
    report = dispatcher.flush()
    by_report = caught(report.raise_for_failures)
    dispatcher.produce(b"y")
    by_close = caught(dispatcher.close)

    def leave_with_an_exception() -> None:
        with Dispatcher(endpoint) as failing:
            failing.produce(b"x")
            raise RuntimeError("ours")

    by_body = caught(leave_with_an_exception)
    assert isinstance(by_dispatch, DeliveryError)
    assert isinstance(by_report, DeliveryError)
    assert isinstance(by_close, DeliveryError)
    dropped = Dispatcher(endpoint)
    dropped.produce(b"x")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        del dropped
        gc.collect()
    assert [one.category for one in warned] == [ForgottenWarning]
    texts = [
        *(reported(error) for error in (by_dispatch, by_report, by_close, by_body)),
        *map(repr, (endpoint, dispatcher, report, report.failed, report.failed_by_code, vars(dispatcher))),
        *map(str, (endpoint, dispatcher, report, *(one.message for one in warned))),
        caplog.text,
        *capfd.readouterr(),
    ]
    assert "self = <Dispatcher: " in texts[0]  # includes local variables
    assert "WRONGPASS" in texts[0]
    assert "password='***'" in repr(endpoint)
    for text in texts:
        assert CANARY not in text


@pytest.mark.parametrize(
    "build",
    [
        lambda: Endpoint(host="h", stream_key="s", username="u", password=CANARY, port=0),
        lambda: Endpoint(host="h", stream_key="s", pasword=CANARY),  # type: ignore[call-arg]
        lambda: Endpoint.from_mapping({"host": "h", "stream_key": "s", "password": CANARY, "port": 0}),
        lambda: Endpoint.from_url(f"redis://u:{CANARY}@h:0/?stream_key=s"),
        lambda: Endpoint.from_url("redis://u@h/?stream_key=s", password=CANARY, maxlen=-1),
    ],
    ids=["port", "unknown option", "mapping", "url", "url and option"],
)
def test_no_password_in_the_frames_of_a_refused_endpoint(build: Callable[[], Endpoint]) -> None:
    error = caught(build)
    assert isinstance(error, ConfigError)
    assert CANARY not in str(error)
    # The traceback shows the source line, which holds the name of the constant.
    assert CANARY not in reported(error)


# --- passwords that change


def send_one(dispatcher: Dispatcher) -> list[tuple[str, str, str]]:
    dispatcher.produce(b"x")
    return [(one.kind, one.code, one.written) for one in dispatcher.flush().failed]


def change_password(admin: Any, password: str) -> None:
    """Change the password, and end the connections that used the old one."""
    admin.config_set("requirepass", password)
    admin.client_kill_filter(_type="normal", skipme=True)


REFUSED = [("permanent", "WRONGPASS", "no")]


@pytest.mark.parametrize("line_end", ["", "\n", "\r\n"])
def test_password_file_is_read_at_each_connect(
    any_server: LocalServer, connect: Connect, tmp_path_factory: pytest.TempPathFactory, line_end: str
) -> None:
    file = tmp_path_factory.mktemp("auth") / "password"  # a short name: messages cut long values
    file.touch(mode=0o600)  # headrace warns of a file that others may read
    file.write_bytes(f"first{line_end}".encode())
    admin = connect(any_server)
    admin.config_set("requirepass", "first")
    dispatcher = Dispatcher(to(any_server, password_file=file))
    assert send_one(dispatcher) == []
    change_password(admin, CANARY)
    assert send_one(dispatcher) == REFUSED
    file.write_bytes(f"{CANARY}{line_end}".encode())
    assert send_one(dispatcher) == []
    file.unlink()
    assert send_one(dispatcher) == []  # still connected
    admin.client_kill_filter(_type="normal", skipme=True)
    dispatcher.produce(b"x")
    (failure,) = dispatcher.flush().failed
    assert (failure.kind, failure.code, failure.written) == ("retryable", "CONFIG", "no")
    assert failure.message.startswith(f"password_file: '{file}' cannot be read: No such file")
    dispatcher.close()


def test_password_env_is_read_at_each_connect(
    any_server: LocalServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_REDIS_PASSWORD", "first")
    admin = connect(any_server)
    admin.config_set("requirepass", "first")
    dispatcher = Dispatcher(to(any_server, password_env="TEST_REDIS_PASSWORD"))
    assert send_one(dispatcher) == []
    change_password(admin, CANARY)
    assert send_one(dispatcher) == REFUSED
    monkeypatch.setenv("TEST_REDIS_PASSWORD", CANARY)
    assert send_one(dispatcher) == []
    monkeypatch.delenv("TEST_REDIS_PASSWORD")
    admin.client_kill_filter(_type="normal", skipme=True)
    dispatcher.produce(b"x")
    (failure,) = dispatcher.flush().failed
    assert (failure.kind, failure.code, failure.written) == ("retryable", "CONFIG", "no")
    assert failure.message == "password_env: the environment variable TEST_REDIS_PASSWORD is not set"
    dispatcher.close()
