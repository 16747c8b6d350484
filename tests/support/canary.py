"""A secret passed in every possible way, and every use of it, for tests/endpoint/test_canary.py.

The results are recorded here but not examined; test_canary.py searches them.
"""

from __future__ import annotations

import base64
import gc
import io
import logging
import os
import secrets
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis

from headrace import DeliveryReport, Dispatcher, Endpoint, RetryPolicy
from headrace.testing import LocalServer
from support.certs import Certs
from support.fake_server import FakeServer, Peer
from support.monitor import Monitor

#: The variable for `password_env`, and for what a child process inherits.
VARIABLE = "HEADRACE_TEST_CANARY"

logger = logging.getLogger("headrace.test_canary")


@dataclass(repr=False)
class Secret:
    """A password or the lines of a key, which must not be found anywhere, not even in tracebacks."""

    lines: list[bytes] = field(default_factory=lambda: [b"canary-" + secrets.token_hex(16).encode()])

    @property
    def text(self) -> str:
        return self.lines[0].decode()

    def shapes(self) -> Iterator[bytes]:
        """The encodings in which it may appear."""
        for line in self.lines:
            yield from (line, line.hex().encode(), line.hex().upper().encode(), line.decode().encode("utf-16-le"))
            yield ", ".join(map(str, line)).encode()
            yield ",\n".join(f"        {byte}" for byte in line[:8]).encode()
            # Base64 at every alignment, without the digits that depend on the surrounding bytes.
            for before in range(3):
                encoded = base64.b64encode(b"\0" * before + line + b"\0\0\0")
                yield encoded[4 : len(encoded) - 8]

    def is_in(self, text: str | bytes) -> bool:
        data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
        return any(shape in data for shape in self.shapes())


@dataclass(frozen=True)
class Way:
    """One way to pass a secret to an endpoint."""

    name: str
    build: Callable[[Stage], Endpoint]
    in_endpoint: bool
    """Whether the endpoint contains the secret: its pickle then contains it too."""
    in_environment: bool = False
    of_tls: bool = False


@dataclass(repr=False)
class Stage:
    """The objects from which a way may build an endpoint."""

    server: LocalServer
    folder: Path
    certs: Certs
    secret: Secret
    username: str = "app"

    def tcp(self, **options: Any) -> Endpoint:
        return Endpoint(host="127.0.0.1", port=self.server.port, stream_key="s", username=self.username, **options)

    def url(self, user_info: str, query: str = "") -> Endpoint:
        return Endpoint.from_url(f"redis://{user_info}127.0.0.1:{self.server.port}/?stream_key=s{query}")

    def mapping(self) -> dict[str, Any]:
        return {"host": "127.0.0.1", "stream_key": "s", "username": self.username, "password": self.secret.text}

    def tls(self, key: Any) -> Endpoint:
        pair = {"tls": True, "tls_ca_cert": self.certs.ca, "tls_cert": self.certs.client.cert, "tls_key": key}
        name = None if self.username == "app" else "elsewhere.test"
        return Endpoint(host="127.0.0.1", port=self.server.port, stream_key="s", tls_server_name=name, **pair)

    def file(self) -> Path:
        path = self.folder / "password"
        path.write_text(self.secret.text + "\n")
        path.chmod(0o644)  # which causes a warning: one more text to search
        return path


#: The secrets that `read_password` returns: a callable is pickled only by its name.
_asked: list[Secret] = []


def read_password() -> str:
    return _asked[-1].text


WAYS = [
    Way("password", lambda on: on.tcp(password=on.secret.text), True),
    Way("password of bytes", lambda on: on.tcp(password=on.secret.lines[0]), True),
    Way("mapping", lambda on: Endpoint.from_mapping({**on.mapping(), "port": on.server.port}), True),
    Way("options of text", lambda on: Endpoint._from_text({**on.mapping(), "port": str(on.server.port)}), True),
    Way("user info of a URL", lambda on: on.url(f"{on.username}:{on.secret.text}@"), True),
    Way("query of a URL", lambda on: on.url(f"{on.username}@", f"&password={on.secret.text}"), True),
    Way("callable", lambda on: on.tcp(password=read_password), False),
    Way("password_file", lambda on: on.tcp(password_file=on.file()), False),
    Way("password_env", lambda on: on.tcp(password_env=VARIABLE), False, in_environment=True),
    Way("tls_key, a path", lambda on: on.tls(on.certs.client.key), False, of_tls=True),
    Way("tls_key, text", lambda on: on.tls(on.certs.client.key.read_text()), True, of_tls=True),
    Way("tls_key, bytes", lambda on: on.tls(on.certs.client.key.read_bytes()), True, of_tls=True),
]


@dataclass(repr=False)
class Trace:
    """The objects and texts to search afterwards."""

    way: Way
    secret: Secret
    endpoints: list[Endpoint] = field(default_factory=list)
    dispatchers: list[Dispatcher] = field(default_factory=list)
    reports: list[DeliveryReport] = field(default_factory=list)
    refusals: list[BaseException] = field(default_factory=list)
    """Exceptions raised when endpoints were built."""
    errors: list[BaseException] = field(default_factory=list)
    """Exceptions raised by dispatchers."""
    echoes: list[str] = field(default_factory=list)
    """Texts that resulted from a server that repeats the password."""
    warned: list[warnings.WarningMessage] = field(default_factory=list)
    unraisable: list[str] = field(default_factory=list)
    logged: list[logging.LogRecord] = field(default_factory=list)
    stdout: str = ""
    stderr: str = ""
    server: dict[str, str] = field(default_factory=dict)
    """The server's information about its clients, by command."""


def caught(action: Callable[[], object]) -> BaseException:
    # No local variable of this frame or its caller's lambda is the secret: tracebacks are searched including locals.
    try:
        action()
    except BaseException as error:
        return error
    pytest.fail("nothing was raised")


def record(
    way: Way, server: LocalServer, folder: Path, certs: Certs, caplog: Any, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> Trace:
    """Deliver with the secret, and be refused with it, in every way."""
    lines = [line for line in certs.client.key.read_bytes().splitlines() if b"-----" not in line]
    secret = Secret(lines) if way.of_tls else Secret()
    trace = Trace(way, secret)
    if way.in_environment:
        monkeypatch.setenv(VARIABLE, secret.text)
    _asked[:] = [secret]
    admin = redis.Redis(unix_socket_path=server.unix_socket, protocol=2)
    admin.config_set("slowlog-log-slower-than", 0)
    if not way.of_tls:
        admin.execute_command("ACL", "SETUSER", "app", "on", f">{secret.text}", "~*", "+@all")  # type: ignore[no-untyped-call]
        admin.slowlog_reset()
    monkeypatch.setattr(sys, "unraisablehook", lambda seen: trace.unraisable.append(repr(seen)))
    caplog.set_level(logging.DEBUG)
    good, bad = Stage(server, folder, certs, secret), Stage(server, folder, certs, secret, "nobody")
    with warnings.catch_warnings(record=True, action="always") as trace.warned, Monitor(server) as monitor:
        trace.endpoints += [way.build(good), way.build(bad)]
        for endpoint in trace.endpoints:
            _use(trace, endpoint)
        _tell(trace)
        trace.server = {
            "CLIENT LIST": repr(admin.client_list()),
            "MONITOR": repr(monitor.commands()),
            "SLOWLOG": repr(admin.slowlog_get(1000)),
            "ACL LOG": repr(admin.acl_log()),
            "INFO": repr(admin.info("everything")),
            "keys and entries": repr([(key, admin.xrange(key)) for key in admin.scan_iter()]),
            "log": server.log_text(),
        }
        for dispatcher in trace.dispatchers:
            dispatcher.close()
        _drop(trace.endpoints[0])
        trace.refusals += _refused(good, way)
        if not way.of_tls:
            trace.echoes += list(_echoed(trace, way, folder, certs))
    admin.close()
    trace.logged += caplog.records
    trace.stdout, trace.stderr = capfd.readouterr()
    return trace


def _use(trace: Trace, endpoint: Endpoint) -> None:
    dispatcher = Dispatcher(endpoint, retry=RetryPolicy(max_attempts=2, initial_backoff=0.001))
    trace.dispatchers.append(dispatcher)
    for number in range(3):
        dispatcher.produce(str(number))
    report = dispatcher.flush()
    trace.reports.append(report)
    expected = 3 if endpoint is trace.endpoints[0] else 0
    assert report.delivered == expected, report.failed
    if report.failed:
        trace.errors.append(caught(report.raise_for_failures))
        trace.errors.append(caught(lambda: dispatcher.dispatch(b"x")))
        dispatcher.produce(b"x")
        trace.errors.append(caught(dispatcher.close))

        def leave_with_an_exception() -> None:
            with Dispatcher(endpoint) as failing:
                failing.produce(b"x")
                raise RuntimeError("ours")

        trace.errors.append(caught(leave_with_an_exception))


def _refused(on: Stage, way: Way) -> Iterator[BaseException]:
    """Invalid endpoints, each with the secret in it."""
    here: dict[str, Any] = {"host": "h", "stream_key": "s"}
    yield caught(lambda: Endpoint(**here, password=on.secret.text, port=0))
    yield caught(lambda: Endpoint(**here, password=on.secret.text, password_env=on.secret.text))
    yield caught(lambda: Endpoint(**here, pasword=on.secret.text))  # type: ignore[call-arg]
    yield caught(lambda: Endpoint(**here, password_env=on.secret.text + " "))
    yield caught(lambda: Endpoint(**{**here, "host": f"redis://:{on.secret.text}@h"}))
    yield caught(lambda: Endpoint(**here, tls=True, tls_cert=on.certs.client.cert, tls_key=on.secret.text + "\n"))
    yield caught(lambda: Endpoint(**here, tls=True, tls_ca_cert=on.certs.client.key.read_bytes()))
    yield caught(lambda: Endpoint(**here, tls=True, tls_cert=on.certs.server.cert, tls_key=on.certs.client.key))
    yield caught(lambda: Endpoint.from_mapping({**here, "password": on.secret.text, "maxlen": "1"}))
    yield caught(lambda: Endpoint.from_mapping([on.secret.text]))  # type: ignore[arg-type]
    yield caught(lambda: Endpoint._from_text({**here, "password": on.secret.text, "port": "x"}))
    for url in ("redis://u:{}@h:0/?stream_key=s", "redis://:{}/@h", "redis://h/?stream_key=s&pasword={}", "{}"):
        yield caught(_with(url, on.secret))
    yield caught(lambda: Endpoint.from_url("redis://u:x@h", stream_key="s", password=on.secret.text))
    yield caught(lambda: Endpoint(**here, username="u", password=lambda: on.secret.text, db=-1))
    # The files and variables of process-wide defaults accept no secret; one in them must not leak.
    file = on.folder / "defaults.json"
    for content in (f'{{"password": "{on.secret.text}"}}', f'["{on.secret.text}"]', f"{{{on.secret.text}"):
        file.write_text(content)
        os.environ["HEADRACE_DEFAULTS"] = str(file)
        try:
            yield caught(lambda: Endpoint(**here))
        finally:
            del os.environ["HEADRACE_DEFAULTS"]


def _with(url: str, secret: Secret) -> Callable[[], object]:
    return lambda: Endpoint.from_url(url.format(secret.text))


def _echoed(trace: Trace, way: Way, folder: Path, certs: Certs) -> Iterator[str]:
    """The results of a server that repeats its input."""

    def echo(shape: bytes) -> Callable[[Peer], None]:
        def script(peer: Peer) -> None:
            for command in peer.commands(1):
                peer.send(shape.replace(b"%", command[-1]).replace(b"#", b" ".join(command)))

        return script

    shapes = [
        *(
            b"-WRONGPASS %\r\n",
            b"-ERR unknown command '#', with args beginning with: '%'\r\n",
            b"-%\r\n",
            b"-ERR #\r\n",
        ),
        *(
            b"+%\r\n",
            b"$5\r\n%\r\n",
            b"%\r\n",
            b"*2\r\n#\r\n",
            b":%\r\n",
            b"-ERR Protocol error: %\r\n",
            b"-NOAUTH % %\r\n",
        ),
    ]
    # After a refusal the password is read again, but without another connect, because it has not changed.
    with FakeServer(*map(echo, shapes), handshake=False) as server:
        stage = Stage(server, folder, certs, trace.secret)  # type: ignore[arg-type]
        for _ in shapes:
            dispatcher = Dispatcher(way.build(stage))
            dispatcher.produce(b"x")
            report = dispatcher.flush()
            (failure,) = report.failed
            trace.reports.append(report)
            trace.errors.append(caught(report.raise_for_failures))
            yield failure.message
        assert server.accepted == len(shapes)


def _tell(trace: Trace) -> None:
    """Output that a user's program might print by itself."""
    for thing in (*trace.endpoints, *trace.dispatchers, *trace.reports, *trace.errors):
        logger.debug("%s %r", thing, thing, extra={"thing": thing})
        print(thing, [thing], f"{thing!r:>200}")
        print(thing, file=sys.stderr)
    for error in trace.errors:
        logger.error("failed", exc_info=error)

    def fail() -> None:
        raise trace.errors[0]

    # Python's own text about an exception in a thread goes to stderr; pytest's hook would turn it into a warning.
    hook, threading.excepthook = threading.excepthook, threading.__excepthook__
    try:
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
    finally:
        threading.excepthook = hook


def _drop(endpoint: Endpoint) -> None:
    """A dispatcher that is never closed, which causes a warning."""
    dispatcher = Dispatcher(endpoint)
    dispatcher.produce(b"x")
    del dispatcher
    gc.collect()


def dumped_stacks() -> str:
    """The output of faulthandler."""
    import faulthandler

    with io.FileIO(os.memfd_create("stacks"), "r+") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        return file.read().decode()
