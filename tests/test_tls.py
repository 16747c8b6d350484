"""TLS and mutual TLS on real servers: what is trusted, what is refused, and how that shows."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from conftest import StartServer
from headrace import Dispatcher, Endpoint, Failure
from headrace.server import LocalServer
from support import Certs, KeyPair, Monitor, Program

#: The replies of redis-py have types that are of no use here.
Connect = Callable[..., Any]

#: Seconds. Refusals take a few milliseconds; on a busy machine they may take more, but never this.
CONNECT_TIMEOUT = 10.0
REFUSED = ("permanent", "TLS", "no")

both_versions = pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
with_tls = pytest.mark.needs("tls")


class Start:
    """Start a server that speaks TLS with one of the certificates."""

    def __init__(self, start_server: StartServer, certs: Certs) -> None:
        self._start = start_server
        self.certs = certs

    def __call__(
        self, pair: KeyPair | None = None, program: Program | None = None, *, version: str = "", mutual: bool = False
    ) -> LocalServer:
        pair = pair or self.certs.server
        return self._start(
            program,
            needs="tls",
            transport="tls",
            tls_cert=pair.cert,
            tls_key=pair.key,
            tls_ca_cert=self.certs.ca,
            tls_client_auth=mutual,
            config={"tls-protocols": f'"{version}"'} if version else {},
        )


@pytest.fixture
def start(start_server: StartServer, certs: Certs) -> Start:
    return Start(start_server, certs)


def to(server: LocalServer, **options: Any) -> Endpoint:
    defaults = {"host": server.host, "port": server.port, "stream_key": "s", "connect_timeout": CONNECT_TIMEOUT}
    return Endpoint(**{**defaults, "tls": True, **options})


def deliver(endpoint: Endpoint) -> None:
    with Dispatcher(endpoint) as dispatcher:
        dispatcher.produce(b"x")
        assert dispatcher.flush().raise_for_failures().delivered == 1


def refusal(server: LocalServer, endpoint: Endpoint) -> Failure:
    """What three messages fail with: after one try, long before the deadline, and without a command at the server."""
    dispatcher = Dispatcher(endpoint)
    with Monitor(server) as seen:
        for _ in range(3):
            dispatcher.produce(b"x")
        started = time.monotonic()
        failures = dispatcher.flush().failed
        assert time.monotonic() - started < CONNECT_TIMEOUT / 2
        assert seen.commands() == []
    dispatcher.close()
    assert len(failures) == 3
    assert len({one.message for one in failures}) == 1
    return failures[0]


def check(failure: Failure, words: str) -> None:
    assert (failure.kind, failure.code, failure.written) == REFUSED
    assert words in failure.message
    assert failure.message.startswith("cannot connect to ")


# --- what works


@with_tls
@both_versions
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_tls(start: Start, program: Program, version: str, host: str) -> None:
    server = start(program=program, version=version)
    ca = start.certs.ca
    deliver(to(server, host=host, tls_ca_cert=ca))
    deliver(to(server, host=host, tls_ca_cert=str(ca)))
    deliver(to(server, host=host, tls_ca_cert=ca.read_bytes()))
    deliver(to(server, host=host, tls_ca_cert=ca.read_text()))
    deliver(to(server, host=host, tls_ca_cert=start.certs.other_ca.read_bytes() + ca.read_bytes()))
    # A client certificate that nobody asked for does no harm.
    client = start.certs.client
    deliver(to(server, host=host, tls_ca_cert=ca, tls_cert=client.cert, tls_key=client.key))


@with_tls
@both_versions
def test_mutual_tls(start: Start, program: Program, version: str, connect: Connect) -> None:
    server = start(program=program, version=version, mutual=True)
    client = start.certs.client
    deliver(to(server, tls_ca_cert=start.certs.ca, tls_cert=client.cert, tls_key=client.key))
    as_bytes = {"tls_cert": client.cert.read_bytes(), "tls_key": client.key.read_bytes()}
    deliver(to(server, tls_ca_cert=start.certs.ca, **as_bytes))
    assert connect(server).xlen("s") == 2


@with_tls
def test_a_url_with_the_scheme_rediss(start: Start) -> None:
    server = start()
    assert server.url.startswith("rediss://")
    deliver(Endpoint.from_url(server.url, stream_key="s", tls_ca_cert=start.certs.ca))


@with_tls
def test_a_server_name_of_ones_own(start: Start, program: Program) -> None:
    server = start(start.certs.wrong_name, program)
    deliver(to(server, tls_ca_cert=start.certs.ca, tls_server_name="elsewhere.test"))
    server = start(program=program)
    deliver(to(server, tls_ca_cert=start.certs.ca, tls_server_name="localhost"))
    deliver(to(server, host="localhost", tls_ca_cert=start.certs.ca, tls_server_name="127.0.0.1"))


@with_tls
def test_a_hundred_thousand_rows_of_a_kibibyte(start: Start, connect: Connect) -> None:
    server = start()
    count, size = 100_000, 1024
    rows = pa.array([b"%08d" % row + bytes(size - 8) for row in range(count)], pa.binary())
    table = pa.table({"payload": rows}).to_batches(max_chunksize=10_000)
    with Dispatcher(to(server, tls_ca_cert=start.certs.ca), ts_field=None) as dispatcher:
        for batch in table:
            dispatcher.produce_batch(batch)
        assert dispatcher.flush().raise_for_failures().delivered == count
    client = connect(server)
    assert client.xlen("s") == count
    after, expected = "-", iter(rows)
    while entries := client.xrange("s", after, count=5_000):
        assert [fields[b"payload"] for _, fields in entries] == [next(expected).as_py() for _ in entries]
        after = f"({entries[-1][0].decode()}"
    assert next(expected, None) is None


# --- what is refused: permanent, code TLS, long before the deadline, nothing written


@with_tls
@both_versions
def test_a_server_of_an_unknown_ca(start: Start, program: Program, version: str) -> None:
    server = start(program=program, version=version)
    check(refusal(server, to(server, tls_ca_cert=start.certs.other_ca)), "from an unknown CA: see tls_ca_cert")
    check(refusal(server, to(server)), "from an unknown CA: see tls_ca_cert")  # the system's


@with_tls
@both_versions
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_server_of_another_name_or_address(start: Start, program: Program, version: str, host: str) -> None:
    server = start(start.certs.wrong_name, program, version=version)
    failure = refusal(server, to(server, host=host, tls_ca_cert=start.certs.ca))
    check(failure, f'the server\'s certificate is not for "{host}": it holds ')
    assert "elsewhere.test" in failure.message


@with_tls
def test_the_server_name_of_the_option_is_the_one_that_counts(start: Start, program: Program) -> None:
    server = start(program=program)
    for name in ("elsewhere.test", "127.0.0.2", "sub.localhost"):
        check(refusal(server, to(server, tls_ca_cert=start.certs.ca, tls_server_name=name)), f'is not for "{name}"')


@with_tls
@both_versions
def test_a_certificate_that_has_expired(start: Start, program: Program, version: str) -> None:
    server = start(start.certs.expired, program, version=version)
    check(refusal(server, to(server, tls_ca_cert=start.certs.ca)), "the server's certificate expired at 20")


@with_tls
@both_versions
def test_no_client_certificate_where_one_is_required(start: Start, program: Program, version: str) -> None:
    server = start(program=program, version=version, mutual=True)
    for options in ({}, {"password": "p"}, {"consumer_group": "g", "db": 3}):
        check(refusal(server, to(server, tls_ca_cert=start.certs.ca, **options)), "client certificate")


@with_tls
@both_versions
def test_a_client_certificate_of_another_ca(start: Start, program: Program, version: str) -> None:
    server = start(program=program, version=version, mutual=True)
    other = start.certs.other_client
    endpoint = to(server, tls_ca_cert=start.certs.ca, tls_cert=other.cert, tls_key=other.key)
    check(refusal(server, endpoint), "does not know the CA of the client certificate")


@with_tls
def test_a_server_with_old_versions_only(start: Start) -> None:
    server = start(version="TLSv1.1")
    check(refusal(server, to(server, tls_ca_cert=start.certs.ca)), "no common protocol version (TLS 1.2")


# --- TLS on one side only


def test_tls_where_the_server_does_not_speak_it(
    program: Program, start_server: StartServer, certs: Certs, connect: Connect
) -> None:
    server = start_server(program, transport="tcp")
    timeout = 0.4
    dispatcher = Dispatcher(to(server, tls_ca_cert=certs.ca, connect_timeout=timeout))
    dispatcher.produce(b"x")
    started = time.monotonic()
    (failure,) = dispatcher.flush().failed
    taken = time.monotonic() - started
    assert (failure.kind, failure.code, failure.written) == ("retryable", "TIMEOUT", "no")
    assert failure.message.endswith("; a server that does not speak TLS here never answers")
    assert f" within {timeout} s: timed out in the TLS handshake" in failure.message
    assert timeout <= taken < timeout + 1
    dispatcher.close()
    assert connect(server).dbsize() == 0


@with_tls
@pytest.mark.parametrize("options", [{}, {"password": "p"}, {"db": 3}], ids=["CLIENT", "AUTH", "SELECT"])
def test_no_tls_where_the_server_speaks_it(start: Start, program: Program, options: dict[str, Any]) -> None:
    server = start(program=program)
    failure = refusal(server, to(server, tls=False, **options))
    # Servers reset the connection, some after an alert.
    assert failure.code in ("RESET", "EOF", "PROTOCOL")
    assert (failure.kind, failure.written) == ("retryable", "no")
    assert "TLS" in failure.message


# --- files that change


def put(pair: KeyPair, where: KeyPair) -> None:
    shutil.copyfile(pair.cert, where.cert)
    shutil.copyfile(pair.key, where.key)


@with_tls
def test_files_are_read_anew_at_each_connect(start: Start, connect: Connect, tmp_path: Path) -> None:
    server = start(mutual=True)
    certs = start.certs
    ca, own = tmp_path / "ca.pem", KeyPair(tmp_path / "cert.pem", tmp_path / "key.pem")
    shutil.copyfile(certs.ca, ca)
    put(certs.client, own)
    admin = connect(server)
    dispatcher = Dispatcher(to(server, tls_ca_cert=ca, tls_cert=own.cert, tls_key=own.key))

    def codes() -> list[tuple[str, str, str]]:
        admin.client_kill_filter(_type="normal", skipme=True)
        dispatcher.produce(b"x")
        return [(one.kind, one.code, one.written) for one in dispatcher.flush().failed]

    assert codes() == []
    shutil.copyfile(certs.other_ca, ca)
    assert codes() == [REFUSED]
    shutil.copyfile(certs.ca, ca)
    assert codes() == []
    put(certs.other_client, own)
    assert codes() == [REFUSED]
    own.key.write_text("no PEM")
    assert codes() == [("retryable", "CONFIG", "no")]
    own.key.unlink()
    assert codes() == [("retryable", "CONFIG", "no")]
    put(certs.client, own)
    assert codes() == []
    dispatcher.close()
    assert admin.xlen("s") == 3


@with_tls
def test_a_server_whose_certificate_was_renewed(start: Start, tmp_path: Path) -> None:
    certs = start.certs
    pair = KeyPair(tmp_path / "server.pem", tmp_path / "server.key")
    put(certs.expired, pair)
    server = start(pair)
    dispatcher = Dispatcher(to(server, tls_ca_cert=certs.ca))
    dispatcher.produce(b"x")
    (failure,) = dispatcher.flush().failed
    check(failure, "expired")
    put(certs.server, pair)
    server.restart()
    dispatcher.produce(b"x")
    assert dispatcher.flush().raise_for_failures().delivered == 1
    dispatcher.close()
