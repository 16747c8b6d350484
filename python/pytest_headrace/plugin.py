"""headrace's fixtures for pytest: real servers, one per worker, which each test finds empty."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headrace import Endpoint
    from headrace.testing import LocalServer
    from pytest_headrace.certificates import Certificates
    from pytest_headrace.shared_server import SharedServer

__all__ = [
    "headrace_ca_cert",
    "headrace_endpoint",
    "headrace_server",
    "headrace_tls_endpoint",
    "headrace_tls_server",
    "pytest_addoption",
]

#: The stream of both endpoints.
STREAM_KEY = "events"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the setting `headrace_server`."""
    parser.addini(
        "headrace_server", "The server program for headrace's fixtures, unless HEADRACE_SERVER is set", default=""
    )


@pytest.fixture
def headrace_server(_headrace_shared_server: SharedServer) -> LocalServer:
    """An empty Redis or Valkey server, on a port of 127.0.0.1 and on a Unix socket: a `headrace.testing.LocalServer`.

    The tests of a worker share its process. Before each test its data, scripts, functions and connections are removed;
    a server that a test has reconfigured, killed or stopped is replaced.
    """
    return _emptied(_headrace_shared_server)


@pytest.fixture
def headrace_endpoint(headrace_server: LocalServer) -> Endpoint:
    """The stream `events` of `headrace_server`, which does not exist yet: a `headrace.Endpoint`."""
    from headrace import Endpoint

    return Endpoint.from_url(headrace_server.url, stream_key=STREAM_KEY)


@pytest.fixture
def headrace_tls_server(_headrace_shared_tls_server: SharedServer) -> LocalServer:
    """As `headrace_server`, but its port accepts TLS only. Its certificate is for 127.0.0.1 and localhost.

    Needs the extra `headrace[testing]`.
    """
    return _emptied(_headrace_shared_tls_server)


@pytest.fixture
def headrace_tls_endpoint(headrace_tls_server: LocalServer, headrace_ca_cert: Path) -> Endpoint:
    """The stream `events` of `headrace_tls_server`: a `headrace.Endpoint` that trusts `headrace_ca_cert`."""
    from headrace import Endpoint

    return Endpoint.from_url(headrace_tls_server.url, stream_key=STREAM_KEY, tls_ca_cert=headrace_ca_cert)


@pytest.fixture(scope="session")
def headrace_ca_cert(_headrace_certificates: Certificates) -> Path:
    """The PEM file of the CA that signed the certificate of `headrace_tls_server`.

    Needs the extra `headrace[testing]`.
    """
    return _headrace_certificates.ca


@pytest.fixture(scope="session")
def _headrace_shared_server(pytestconfig: pytest.Config) -> Iterator[SharedServer]:
    from pytest_headrace.shared_server import SharedServer

    server = SharedServer(pytestconfig.getini("headrace_server"), transport="tcp")
    yield server
    server.stop()


@pytest.fixture(scope="session")
def _headrace_shared_tls_server(
    pytestconfig: pytest.Config, _headrace_certificates: Certificates
) -> Iterator[SharedServer]:
    from pytest_headrace.shared_server import SharedServer

    files = _headrace_certificates
    program = pytestconfig.getini("headrace_server")
    server = SharedServer(program, transport="tls", tls_cert=files.server_cert, tls_key=files.server_key)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def _headrace_certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    try:
        import trustme  # noqa: F401
    except ImportError:
        pytest.fail(
            "the TLS fixtures of headrace need the package trustme: pip install 'headrace[testing]'", pytrace=False
        )
    from pytest_headrace.certificates import make_certificates

    return make_certificates(tmp_path_factory.mktemp("headrace-certificates"))


def _emptied(shared: SharedServer) -> LocalServer:
    from headrace.testing import LocalServerError

    try:
        return shared.emptied()
    except LocalServerError as error:
        # Without a traceback: the cause is a machine without a server, or a program that cannot start.
        pytest.fail("\n".join([f"headrace: {error}", *getattr(error, "__notes__", ())]), pytrace=False)
