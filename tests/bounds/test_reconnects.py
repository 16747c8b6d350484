"""Connections that are lost repeatedly: leaks, and the time until messages are delivered again."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from bounds import reconnects, recovery
from support import Certs
from support.fixture_types import StartServer
from support.patience import LATE
from support.servers import DURABLE


@pytest.mark.thorough
@pytest.mark.parametrize("transport", ["unix", "tcp", "tls"])
def test_a_thousand_lost_connections_leak_no_resources(
    start_server: StartServer, certs: Certs, transport: Literal["unix", "tcp", "tls"]
) -> None:
    tls = {"ca": certs.ca, "cert": certs.server.cert, "key": certs.server.key} if transport == "tls" else {}
    options: dict[str, Any] = {"tls_cert": tls["cert"], "tls_key": tls["key"]} if tls else {}
    server = start_server(needs=["tls"] if tls else [], transport=transport, **options)
    measured = reconnects.measure(server, tls, 1_000)
    print(measured)
    assert measured["reconnects"] >= 2 * 1_000
    assert measured["refused"] >= 1_000
    assert measured["memory"] < 2**20
    assert (measured["files"], measured["threads"]) == (0, 0)


@pytest.mark.parametrize("mode", ["off", "script", "idmp"])
@pytest.mark.parametrize("outage", recovery.OUTAGES)
def test_retries_continue_after_the_restart(start_server: StartServer, outage: str, mode: str) -> None:
    """With the defaults of `RetryPolicy`, after longer than its longest pause. The laboratory allows a second."""
    server = start_server(needs=["idmp"], transport="tcp", config=DURABLE)
    seconds = recovery.with_retry(server, recovery.OUTAGES[outage], 0.8, exactly_once=mode)
    print(f"{seconds:.3f} s")
    assert seconds < LATE


@pytest.mark.parametrize("outage", recovery.OUTAGES)
def test_without_retry_the_next_batch_is_delivered(start_server: StartServer, outage: str) -> None:
    seconds = recovery.without_retry(start_server(transport="tcp"), recovery.OUTAGES[outage])
    assert seconds < LATE
