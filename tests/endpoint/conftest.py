"""Fixtures of several test files about endpoints."""

from __future__ import annotations

import os

import pytest

from support import Certs
from support.endpoints import Pem
from support.fixture_types import StartServer
from support.tls import Start


@pytest.fixture
def start(start_server: StartServer, certs: Certs) -> Start:
    """Start a server that speaks TLS with one of the certificates."""
    return Start(start_server, certs)


@pytest.fixture
def pem(tmp_path_factory: pytest.TempPathFactory) -> Pem:
    """Files of the test's own, which it may change."""
    return Pem(tmp_path_factory.mktemp("pem"), "one")


@pytest.fixture
def no_process_wide_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the variables that are defaults of every endpoint."""
    for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
        monkeypatch.delenv(name)
