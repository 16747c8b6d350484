"""`headrace check` and TLS: days to the end of a certificate, and a sentence for each thing that can be wrong."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from command.conftest import Command
from headrace.testing import LocalServer
from headrace_command.check.connect_steps import not_after
from support import Certs
from support.fixture_types import StartServer

pytestmark = pytest.mark.needs("redis-8.6")

Start = Callable[[str], LocalServer]


@pytest.fixture
def start(start_server: StartServer, certs: Certs) -> Start:
    """Start a server with one of the certificates."""

    def start(name: str) -> LocalServer:
        pair = getattr(certs, name)
        return start_server(needs="tls", transport="tls", tls_cert=pair.cert, tls_key=pair.key)

    return start


def to(server: LocalServer, *more: str, host: str = "127.0.0.1") -> tuple[str, ...]:
    return ("check", "s", "--host", host, "--port", str(server.port), *more)


def test_the_remaining_days_of_the_certificate_are_reported(command: Command, start: Start, certs: Certs) -> None:
    ended = command(*to(start("server"), "--tls", "--tls-ca-cert", str(certs.ca), "-o", "json"))
    assert ended.code == 0, ended
    (step,) = [step for step in json.loads(ended.out)["steps"] if step["step"] == "TLS"]
    certificate = x509.load_pem_x509_certificate(certs.server.cert.read_bytes())
    assert step["not_after"] == certificate.not_valid_after_utc.isoformat()
    assert step["days"] > 1_000
    assert step["session"].startswith("TLS 1.3")


@pytest.mark.parametrize(
    ("pair", "options", "words"),
    [
        ("server", ("--tls", "--tls-ca-cert", "OTHER_CA"), "give the CA of the server's certificate as --tls-ca-cert"),
        ("expired", ("--tls", "--tls-ca-cert", "CA"), "expired at"),
        ("not_yet_valid", ("--tls", "--tls-ca-cert", "CA"), "set the clock"),
        (
            "wrong_name",
            ("--tls", "--tls-ca-cert", "CA"),
            "it holds elsewhere.test; connect by a name that the",
        ),
        ("server", (), "give --tls if the server speaks TLS"),
    ],
)
def test_each_tls_problem_is_reported(
    command: Command, start: Start, certs: Certs, pair: str, options: tuple[str, ...], words: str
) -> None:
    paths = {"CA": str(certs.ca), "OTHER_CA": str(certs.other_ca)}
    ended = command(*to(start(pair), *(paths.get(option, option) for option in options), "--wait", "2s"))
    assert ended.code == 3
    assert words in ended.err
    # What concerns trust does not pass by itself, so that waiting would be in vain.
    assert ("waiting" in ended.err) == (not options)


def test_a_missing_client_certificate_is_reported(command: Command, mtls_server: LocalServer, certs: Certs) -> None:
    ended = command(*to(mtls_server, "--tls", "--tls-ca-cert", str(certs.ca)))
    assert (ended.code, "headrace: TLS: " in ended.err, "--tls-cert" in ended.err) == (3, True, True), ended
    pair = ("--tls-cert", str(certs.client.cert), "--tls-key", str(certs.client.key))
    assert command(*to(mtls_server, "--tls", "--tls-ca-cert", str(certs.ca), *pair)).code == 0


def test_a_server_without_tls_is_reported(command: Command, tcp_server: LocalServer) -> None:
    ended = command(*to(tcp_server, "--tls", "--connect-timeout", "1"))
    assert (ended.code, "give the TLS port of the server, or leave --tls out" in ended.err) == (3, True), ended


def test_an_unverified_certificate_is_a_warning(command: Command, start: Start) -> None:
    ended = command(*to(start("expired"), "--tls", "--tls-insecure-skip-verify", "-o", "json"))
    assert ended.code == 0, ended
    (step,) = [step for step in json.loads(ended.out)["steps"] if step["step"] == "TLS"]
    assert (step["state"], step["days"] < 0) == ("warn", True)
    assert "renew it" in step["text"]
    assert "not verified" in step["text"]


def test_the_expiry_date_of_each_certificate_is_read(certs: Certs) -> None:
    paths = [value for value in vars(certs).values() if isinstance(value, Path)]
    paths += [value.cert for value in vars(certs).values() if not isinstance(value, Path)]
    assert len(paths) > 10
    for path in paths:
        certificate = x509.load_pem_x509_certificates(path.read_bytes())[0]
        der = ssl.PEM_cert_to_DER_cert(certificate.public_bytes(Encoding.PEM).decode())
        assert not_after(der) == certificate.not_valid_after_utc


def test_a_truncated_certificate_has_no_expiry_date(certs: Certs) -> None:
    certificate = x509.load_pem_x509_certificate(certs.server.cert.read_bytes())
    der = certificate.public_bytes(Encoding.DER)
    for length in range(len(der)):
        assert not_after(der[:length]) is None, length
    for at in range(200):  # whatever a byte becomes, there is no exception
        not_after(der[:at] + bytes([der[at] ^ 0xFF]) + der[at + 1 :])
