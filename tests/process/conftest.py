"""Fixtures of several test files about processes."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import Endpoint
from headrace.testing import LocalServer
from support import Certs
from support.patience import NEVER
from support.pipelines import endpoint_to


@pytest.fixture(params=["unix", "tcp", "tls"])
def reached(request: pytest.FixtureRequest, certs: Certs) -> tuple[LocalServer, Endpoint]:
    """A server over each transport, the newest, and the endpoint for it."""
    name = {"unix": "any_server", "tcp": "tcp_server", "tls": "tls_server"}[request.param]
    server: LocalServer = request.getfixturevalue(name)
    options: dict[str, Any] = {"tls_ca_cert": certs.ca} if request.param == "tls" else {}
    return server, endpoint_to(server, command_timeout=NEVER, **options)
