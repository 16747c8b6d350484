"""Connections that are lost again and again: what is left behind, and how soon it goes on when the server is back."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from bounds import reconnects, recovery
from conftest import StartServer
from support import Certs

#: What a busy machine may add to a second.
BUSY = 2.0


@pytest.mark.parametrize("transport", ["unix", "tcp", "tls"])
def test_a_thousand_losses_leave_nothing_behind(
    start_server: StartServer, certs: Certs, transport: Literal["unix", "tcp", "tls"]
) -> None:
    tls = {"ca": certs.ca, "cert": certs.server.cert, "key": certs.server.key} if transport == "tls" else {}
    options: dict[str, Any] = {"tls_cert": tls["cert"], "tls_key": tls["key"]} if tls else {}
    server = start_server(needs=["tls"] if tls else [], transport=transport, **options)
    told = reconnects.measure(server, tls, 1_000)
    print(told)
    assert told["reconnects"] >= 2 * 1_000
    assert told["refused"] >= 1_000
    assert told["memory"] < 2**20
    assert (told["files"], told["threads"]) == (0, 0)


@pytest.mark.alone
@pytest.mark.parametrize("mode", ["off", "script", "idmp"])
@pytest.mark.parametrize("outage", recovery.OUTAGES)
def test_it_goes_on_within_a_second_of_the_server_s_return(start_server: StartServer, outage: str, mode: str) -> None:
    """With the defaults of `RetryPolicy`, after longer than its longest pause."""
    server = start_server(needs=["idmp"], transport="tcp", config=recovery.DURABLE)
    seconds = recovery.with_retry(server, recovery.OUTAGES[outage], 0.8, exactly_once=mode)
    print(f"{seconds:.3f} s")
    assert seconds < 1 + BUSY


@pytest.mark.alone
@pytest.mark.parametrize("outage", recovery.OUTAGES)
def test_without_retry_the_next_batch_goes_through(start_server: StartServer, outage: str) -> None:
    seconds = recovery.without_retry(start_server(transport="tcp"), recovery.OUTAGES[outage])
    assert seconds < 1 + BUSY
