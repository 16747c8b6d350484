"""TLS connections that are refused: untrusted servers, untrusted clients, tampering. On real servers.

Each case ends in one way: permanent, with the code TLS and not TIMEOUT, nothing written, no command seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from headrace import Dispatcher, Endpoint, Failure
from headrace.testing import LocalServer
from support import Certs, Monitor, Program
from support.fixture_types import StartServer
from support.patience import lasting
from support.tls import REFUSED, Change, Start, Tampering, to, without_mark, without_tls_13

#: redis-py types its replies too loosely to be useful here.
Connect = Callable[..., Any]

VERSIONS = ("TLSv1.2", "TLSv1.3")


@dataclass(frozen=True)
class Case:
    """A server and an endpoint that do not match; certificates are named as in `Certs`."""

    words: str
    """The text of the failure."""
    server: str = "server"
    ca: str | None = "ca"
    """None: the system's."""
    host: str = "127.0.0.1"
    client: str | None = None
    mutual: bool = False
    options: dict[str, Any] = field(default_factory=dict)


UNKNOWN_CA = "the server's certificate is from an unknown CA"
CASES = {
    # servers that the endpoint does not trust
    "unknown CA": Case(UNKNOWN_CA, ca="other_ca"),
    "unknown CA of the system": Case(UNKNOWN_CA, ca=None),
    "self-signed": Case(UNKNOWN_CA, server="self_signed"),
    "self-signed and the system": Case(UNKNOWN_CA, server="self_signed", ca=None),
    "a CA's own certificate": Case("the server's certificate is that of a CA", server="ca_itself"),
    "no intermediate": Case(UNKNOWN_CA, server="no_intermediate"),
    "for clients": Case("is not one for servers", server="for_clients"),
    # another name or address
    "wrong name": Case('not for "localhost": it holds elsewhere.test', server="wrong_name", host="localhost"),
    "wrong name, an address asked": Case('not for "127.0.0.1": it holds elsewhere.test', server="wrong_name"),
    "wrong IP": Case('not for "127.0.0.1": it holds 127.0.0.2', server="wrong_ip"),
    "wrong IP, a name asked": Case('not for "localhost": it holds 127.0.0.2', server="wrong_ip", host="localhost"),
    "the name alone": Case('not for "127.0.0.1": it holds localhost', server="name_only"),
    "the address alone": Case('not for "localhost": it holds 127.0.0.1', server="ip_only", host="localhost"),
    "the address as a name": Case('not for "127.0.0.1": it holds the DNS name 127.0.0.1', server="ip_as_name"),
    "common name": Case(
        'not for "localhost": it holds no subject alternative names', server="common_name", host="localhost"
    ),
    "tls_server_name": Case('not for "elsewhere.test"', options={"tls_server_name": "elsewhere.test"}),
    "tls_server_name, address": Case('not for "127.0.0.2"', options={"tls_server_name": "127.0.0.2"}),
    "tls_server_name, below": Case('not for "sub.localhost"', options={"tls_server_name": "sub.localhost"}),
    "wildcard, two levels": Case(
        'not for "a.b.headrace.test"', server="wildcard", options={"tls_server_name": "a.b.headrace.test"}
    ),
    "wildcard, none": Case('not for "headrace.test"', server="wildcard", options={"tls_server_name": "headrace.test"}),
    # another time
    "expired": Case("the server's certificate expired at 20", server="expired"),
    "not yet valid": Case("the server's certificate is not valid before 20", server="not_yet_valid"),
    # servers that do not trust the endpoint
    "no client certificate": Case("client certificate", mutual=True),
    "no client certificate but a password": Case("client certificate", mutual=True, options={"password": "p"}),
    "client of another CA": Case("the CA of the client certificate", mutual=True, client="other_client"),
    "client that signed itself": Case("the CA of the client certificate", mutual=True, client="self_signed_client"),
    "client that has expired": Case("the client certificate has expired", mutual=True, client="expired_client"),
    "client with a server's certificate": Case("client certificate", mutual=True, client="for_servers"),
}


def refusal(server: LocalServer, endpoint: Endpoint) -> Failure:
    """The failure of three messages, after one attempt, and without a command at the server."""
    dispatcher = Dispatcher(endpoint)
    with Monitor(server) as seen:
        for _ in range(3):
            dispatcher.produce(b"x")
        failures = dispatcher.flush().failed
        assert seen.commands() == []
    dispatcher.close()
    assert len(failures) == 3
    assert len({one.message for one in failures}) == 1
    return failures[0]


def check(failure: Failure, words: str) -> None:
    assert (failure.kind, failure.code, failure.written) == REFUSED, failure
    assert words in failure.message
    assert failure.message.startswith("cannot connect to ")


@pytest.mark.needs("tls")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", CASES)
def test_a_mismatch_is_refused(start: Start, program: Program, connect: Connect, version: str, name: str) -> None:
    case, certs = CASES[name], start.certs
    server = start(getattr(certs, case.server), program, version=version, mutual=case.mutual)
    options = dict(case.options)
    if case.ca:
        options["tls_ca_cert"] = getattr(certs, case.ca)
    if case.client:
        pair = getattr(certs, case.client)
        options |= {"tls_cert": pair.cert, "tls_key": pair.key}
    check(refusal(server, to(server, host=case.host, **options)), case.words)
    assert connect(server).dbsize() == 0


def test_there_are_at_least_60_cases() -> None:
    count = len(CASES) * len(VERSIONS) + len(DOWNGRADES) + len(OLD)
    print(f"{count} cases of TLS that are refused, on each server that speaks it")
    assert count >= 60


# --- downgrade


OLD = ("TLSv1", "TLSv1.1")


@pytest.mark.needs("tls")
@pytest.mark.parametrize("version", OLD)
def test_a_server_with_only_old_tls_versions_is_refused(start: Start, program: Program, version: str) -> None:
    server = start(program=program, version=version)
    check(refusal(server, to(server, tls_ca_cert=start.certs.ca)), "no common protocol version (TLS 1.2")


#: In ServerHello of version 1.3: supported_versions (RFC 8446, 4.2.1).
CHOSEN = bytes.fromhex("002b 0002 0304")
#: The position of the version that TLS before 1.3 used, after the headers of record and handshake.
LEGACY = slice(9, 11)


def with_legacy(version: str) -> Change:
    return lambda hello: hello[: LEGACY.start] + bytes.fromhex(version) + hello[LEGACY.stop :]


def choosing(version: str) -> Change:
    def change(answer: bytes) -> bytes:
        assert CHOSEN in answer
        return answer.replace(CHOSEN, CHOSEN[:-2] + bytes.fromhex(version))

    return change


def with_cipher(suite: str) -> Change:
    def change(answer: bytes) -> bytes:
        at = LEGACY.stop + 32 + 1 + answer[LEGACY.stop + 32]  # after the random number and the session ID
        return answer[:at] + bytes.fromhex(suite) + answer[at + 2 :]

    return change


def alert(description: int) -> Change:
    return lambda _: bytes.fromhex("15 0303 0002 02") + bytes([description])


@dataclass(frozen=True)
class Downgrade:
    """A tampering proxy before a server with these TLS versions."""

    words: str
    hello: Change = bytes
    answer: Change = bytes
    versions: str = "TLSv1.2 TLSv1.3"


BROKEN = "the server, or something in between, violated the TLS protocol: "
NO_VERSION = "the server offers no TLS version or cipher that is accepted"
DOWNGRADES = {
    "ClientHello without 1.3": Downgrade(BROKEN + "AttemptedDowngradeToTls12", hello=without_tls_13),
    "and no mark of it": Downgrade("does not verify", hello=without_tls_13, answer=without_mark),
    "ClientHello of 1.1": Downgrade(
        "no common protocol version", hello=lambda hello: with_legacy("0302")(without_tls_13(hello))
    ),
    "ServerHello of 1.3 says 1.2": Downgrade(BROKEN + "SelectedTls12Using", answer=choosing("0303")),
    "ServerHello of 1.3 says 1.1": Downgrade(NO_VERSION, answer=choosing("0302")),
    "ServerHello of 1.2 says 1.1": Downgrade(NO_VERSION, answer=with_legacy("0302"), versions="TLSv1.2"),
    "ServerHello of 1.2 says 1.0": Downgrade(NO_VERSION, answer=with_legacy("0301"), versions="TLSv1.2"),
    "ServerHello of 1.2 says SSL 3": Downgrade(NO_VERSION, answer=with_legacy("0300"), versions="TLSv1.2"),
    "ServerHello picks NULL": Downgrade(BROKEN + "SelectedUnoffered", answer=with_cipher("0000"), versions="TLSv1.2"),
    "ServerHello picks RSA": Downgrade(BROKEN + "SelectedUnoffered", answer=with_cipher("002f"), versions="TLSv1.2"),
    "ServerHello of 1.3 picks a cipher of 1.2": Downgrade(BROKEN + "SelectedUnusable", answer=with_cipher("c02b")),
    "alert: protocol version": Downgrade("no common protocol version", answer=alert(70)),
    "alert: insufficient security": Downgrade("insufficient security", answer=alert(71)),
}


@pytest.mark.needs("tls")
@pytest.mark.parametrize("name", DOWNGRADES)
def test_a_downgrade_by_a_proxy_is_refused(start: Start, program: Program, name: str) -> None:
    case = DOWNGRADES[name]
    server = start(program=program, version=case.versions)
    with Tampering(server, hello=case.hello, answer=case.answer) as between:
        check(refusal(server, to(server, port=between.port, tls_ca_cert=start.certs.ca)), case.words)
        assert between.changed == (case.hello is not bytes) + (case.answer is not bytes)


@pytest.mark.needs("tls")
def test_a_transparent_proxy_is_accepted(start: Start, connect: Connect) -> None:
    """The counterpart of the test above: only a change is refused."""
    server = start()
    with Tampering(server) as between:
        with Dispatcher(to(server, port=between.port, tls_ca_cert=start.certs.ca)) as dispatcher:
            dispatcher.produce(b"x")
            assert dispatcher.flush().raise_for_failures().delivered == 1
        assert between.changed == 0
    assert connect(server).xlen("s") == 1


# --- TLS on one side only


def test_tls_to_a_plaintext_server_times_out(
    program: Program, start_server: StartServer, certs: Certs, connect: Connect
) -> None:
    server = start_server(program, transport="tcp")
    timeout = 0.4
    dispatcher = Dispatcher(to(server, tls_ca_cert=certs.ca, connect_timeout=timeout))
    dispatcher.produce(b"x")
    with lasting(timeout):
        (failure,) = dispatcher.flush().failed
    # The server takes the hello for an incomplete command and waits for its end.
    assert (failure.kind, failure.code, failure.written) == ("retryable", "TIMEOUT", "no")
    assert failure.message.endswith("; a server that does not speak TLS here never answers")
    assert f" within {timeout} s: timed out in the TLS handshake" in failure.message
    dispatcher.close()
    assert connect(server).dbsize() == 0


@pytest.mark.needs("tls")
@pytest.mark.parametrize("options", [{}, {"password": "p"}, {"db": 3}], ids=["CLIENT", "AUTH", "SELECT"])
def test_plaintext_to_a_tls_server_fails(
    start: Start, program: Program, connect: Connect, options: dict[str, Any]
) -> None:
    server = start(program=program)
    failure = refusal(server, to(server, tls=False, **options))
    # Servers reset the connection, some after an alert.
    assert failure.code in ("RESET", "EOF", "PROTOCOL")
    assert (failure.kind, failure.written) == ("retryable", "no")
    assert "TLS" in failure.message
    assert connect(server).dbsize() == 0
