"""TLS and mutual TLS on real servers: what works. What is refused is in test_tls_refusals.py."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace import Dispatcher, Endpoint
from support import KeyPair, Program
from support.tls import REFUSED, Start, to

#: redis-py types its replies too loosely to be useful here.
Connect = Callable[..., Any]

both_versions = pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
with_tls = pytest.mark.needs("tls")


def deliver(endpoint: Endpoint) -> None:
    with Dispatcher(endpoint) as dispatcher:
        dispatcher.produce(b"x")
        assert dispatcher.flush().raise_for_failures().delivered == 1


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
    # A client certificate that the server does not request does no harm.
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
def test_a_rediss_url_enables_tls(start: Start) -> None:
    server = start()
    assert server.url.startswith("rediss://")
    deliver(Endpoint.from_url(server.url, stream_key="s", tls_ca_cert=start.certs.ca))


@with_tls
def test_a_custom_server_name_is_verified(start: Start, program: Program) -> None:
    server = start(start.certs.wrong_name, program)
    deliver(to(server, tls_ca_cert=start.certs.ca, tls_server_name="elsewhere.test"))
    server = start(program=program)
    deliver(to(server, tls_ca_cert=start.certs.ca, tls_server_name="localhost"))
    deliver(to(server, host="localhost", tls_ca_cert=start.certs.ca, tls_server_name="127.0.0.1"))


@pytest.mark.thorough
@with_tls
def test_a_hundred_thousand_rows_are_delivered_over_tls(start: Start, connect: Connect) -> None:
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


# --- files that change


def put(pair: KeyPair, where: KeyPair) -> None:
    shutil.copyfile(pair.cert, where.cert)
    where.key.touch(mode=0o600)
    shutil.copyfile(pair.key, where.key)


@with_tls
def test_files_are_read_at_each_connect(start: Start, connect: Connect, tmp_path: Path) -> None:
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
def test_a_server_with_a_renewed_certificate_is_trusted(start: Start, tmp_path: Path) -> None:
    certs = start.certs
    pair = KeyPair(tmp_path / "server.pem", tmp_path / "server.key")
    put(certs.expired, pair)
    server = start(pair)
    dispatcher = Dispatcher(to(server, tls_ca_cert=certs.ca))
    dispatcher.produce(b"x")
    (failure,) = dispatcher.flush().failed
    assert (failure.kind, failure.code, failure.written) == REFUSED
    assert "expired" in failure.message
    put(certs.server, pair)
    server.restart()
    dispatcher.produce(b"x")
    assert dispatcher.flush().raise_for_failures().delivered == 1
    dispatcher.close()
