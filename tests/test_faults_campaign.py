"""Each kind of fault once, on each server in each mode; `make campaign` does thousands."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from conftest import StartServer
from faults.campaign import Share, pairs, play_share, program_of
from faults.episode import REDIS_PY, kinds_for, play
from faults.lab import Lab
from faults.proxy import Pair, Proxy
from headrace import Dispatcher, Endpoint
from support.pipelines import KEY, labels, stored
from support.processes import wait_until
from support.servers import find_programs

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize(("label", "mode"), pairs(), ids=str)
def test_each_kind_of_fault(label: str, mode: str) -> None:
    with Lab(program_of(label)) as lab:
        for name in dict.fromkeys(kinds_for(mode)):
            seed = f"{label}/{mode}/{name}"
            result = play(lab, mode, [name], random.Random(seed))
            assert not result.violations, (seed, result)
            assert result.faults == {name: 1}, (seed, result)


def test_redis_py_says_what_is_not_so_and_the_laboratory_sees_it() -> None:
    """Its default retries send a whole pipeline again, and tell of the last time only."""
    with Lab(max(find_programs())) as lab:
        result = play(lab, REDIS_PY, ["reset in replies"] * 6, random.Random(1))
    assert "there more often than was told" in {violation.what for violation in result.violations}


def test_an_episode_is_played_again() -> None:
    """The same messages and the same faults; when they meet is up to the machine."""
    share = Share(seed=5, server=max(find_programs()).label, mode="off", number=1, faults=6)
    first, again = play_share(share, only=0), play_share(share, only=0)
    assert first.result.messages == again.result.messages > 0
    assert not first.failures
    assert not again.failures


@pytest.fixture
def narrow_proxy(start_server: StartServer) -> Any:
    """A server, and a proxy that reads what it must."""
    server = start_server(transport="tcp")
    assert server.port is not None
    with Proxy(server.port, receive_buffer=4096) as proxy:
        yield server, proxy


def test_what_the_kernel_holds_goes_with_the_connection(narrow_proxy: Any, connect: Callable[..., Any]) -> None:
    """A connection is given up by an RST: by a plain close the kernel would go on delivering what it holds.

    The proxy reads nothing, so that all but what its own kernel took stands in the kernel of the dispatcher. When it
    reads again, long after the dispatcher gave up, only that little comes out.
    """
    server, proxy = narrow_proxy
    stalled: list[Pair] = []

    def stall(pair: Pair) -> None:
        pair.stall("requests")
        pair.stall("replies")  # one that came to a closed socket would be answered by an RST
        stalled.append(pair)

    endpoint = Endpoint(host="127.0.0.1", port=proxy.port, stream_key=KEY, command_timeout=0.3)
    with Dispatcher(endpoint) as dispatcher:
        assert dispatcher.dispatch(b"first")
        proxy.at("requests", 1_000, stall)
        batch = pa.record_batch({"payload": pa.array([b"%d-" % n + b"x" * 1_000 for n in range(2_000)], pa.binary())})
        dispatcher.produce_batch(batch)
        told = labels(dispatcher.flush())
        doubtful = told.count(("retryable", "TIMEOUT", "unknown"))
        assert doubtful > 500, "the kernel took too little for this test"
        assert set(told) <= {("retryable", "TIMEOUT", "unknown"), ("retryable", "TIMEOUT", "no")}
        proxy.after(0.0, lambda: stalled[0].resume("requests"))
        wait_until(lambda: stalled[0].over or stalled[0].flows["requests"].closed)
        assert dispatcher.dispatch(b"last")
    late = len(stored(connect(server))) - 2
    assert late * 1_000 < 100_000, f"{late} of {doubtful} messages came after the dispatcher had given up"


@pytest.mark.alone
def test_a_proxy_that_delivers_late_fools_nobody(start_server: StartServer, connect: Callable[..., Any]) -> None:
    """It took what the dispatcher sent, and delivers it when the dispatcher has long sent it again elsewhere."""
    server = start_server(transport="tcp")
    assert server.port is not None
    payloads = [b"%d" % number for number in range(100)]
    with Proxy(server.port) as proxy:
        endpoint = Endpoint(host="127.0.0.1", port=proxy.port, stream_key=KEY, command_timeout=0.2)
        with Dispatcher(endpoint, exactly_once="script", script_run_rows=10) as dispatcher:
            held: list[float] = []

            def hold(pair: Pair) -> None:
                pair.hold("requests", 1.0)
                held.append(time.monotonic())

            proxy.at("requests", 3_000, hold)  # in the first run, behind the handshake and the probe
            for payload in payloads:
                dispatcher.produce(payload)
            report = dispatcher.flush()
            assert report.ok
            assert time.monotonic() - held[0] < 1.0, "it was sent again before it came"
            client = connect(server)
            before = client.info("commandstats")
            wait_until(lambda: client.info("commandstats") != before)  # what came late runs
            proxy.rest()
            dispatcher.flush()
    wait_until(lambda: len(stored(client)) >= 100)
    assert [payload for _, payload in stored(client)] == payloads
