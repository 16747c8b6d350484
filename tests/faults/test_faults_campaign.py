"""Each kind of fault once, on each server in each mode; the laboratory `campaign` runs thousands."""

from __future__ import annotations

import functools
import math
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from faults.campaign import Share, pairs, program_of, run_share
from faults.checker import Message, violations
from faults.episode import REDIS_PY, kinds_for, run_episode
from faults.fault_kinds import KINDS
from faults.proxy import Pair, Proxy
from faults.senders import Headrace
from faults.testbed import FaultTestbed
from headrace import Dispatcher, Endpoint
from support.fixture_types import StartServer
from support.pipelines import KEY, labels, stored
from support.processes import wait_until
from support.servers import find_programs

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize(("label", "mode"), pairs(), ids=str)
def test_every_outcome_is_correct_under_each_kind_of_fault(label: str, mode: str) -> None:
    with FaultTestbed(program_of(label)) as testbed:
        for name in dict.fromkeys(kinds_for(mode)):
            seed = f"{label}/{mode}/{name}"
            # On a busy machine a command may time out before the byte of its fault is reached. Each episode must be
            # correct, and one of them must have its fault.
            faults: Counter[str] = Counter()
            for further in ("", "/2", "/3"):
                if not faults:
                    result = run_episode(testbed, mode, [name], random.Random(seed + further))
                    assert not result.violations, (seed + further, result)
                    faults = result.faults
            assert faults == {name: 1}, seed


def test_the_checker_finds_the_duplicates_of_redis_py() -> None:
    """Its default retries send a whole pipeline again, and report only the last attempt."""
    with FaultTestbed(max(find_programs())) as testbed:
        result = run_episode(testbed, REDIS_PY, ["reset in replies"] * 6, random.Random(1))
    assert "more duplicates than reported" in {violation.what for violation in result.violations}


def test_each_lost_connection_may_leave_a_late_copy() -> None:
    """A connection that replaces a lost one may be lost as well, so a fault can cause more than one copy."""
    message = Message("0", KEY, b"0-" + b"x" * 10_000)
    held: list[Pair] = []
    with FaultTestbed(max(find_programs())) as testbed:

        def hold(pair: Pair) -> None:
            pair.hold("requests", math.inf)
            held.append(pair)
            if len(held) < 2:
                testbed.proxy.at("requests", 3_000, hold)  # in the message, after the handshake

        sender = Headrace(testbed, "off", KEY, random.Random(14), "token")
        assert (sender.in_flight, sender.retry) == (1, "always"), "another seed is needed"
        testbed.proxy.at("requests", 3_000, hold)
        sender.send([message])
        sender.flush()
        sender.close()
        for pair in held:
            testbed.proxy.after(0.3, functools.partial(pair.resume, "requests"))
        testbed.settle()
        stored = testbed.stored([KEY])
        assert len(held) == 2
        assert len(stored[KEY]) >= 3, "the late copies were not awaited"
        promise = sender.promise([KINDS["requests come late"]], again=False)
        assert not violations([message], sender.reported.outcomes, stored, promise)
        assert promise.duplicates == sender.reported.possible_duplicates


def test_an_episode_is_repeatable() -> None:
    """A repeated episode has the same messages and faults; their timing depends on the machine."""
    share = Share(seed=5, server=max(find_programs()).label, mode="off", number=1, faults=6)
    first, again = run_share(share, only=0), run_share(share, only=0)
    assert first.result.messages == again.result.messages > 0
    assert not first.failures
    assert not again.failures


@pytest.fixture
def narrow_proxy(start_server: StartServer) -> Any:
    """A server, and a proxy with a small receive buffer."""
    server = start_server(transport="tcp")
    assert server.port is not None
    with Proxy(server.port, receive_buffer=4096) as proxy:
        yield server, proxy


def test_an_abandoned_connection_drops_unsent_bytes(narrow_proxy: Any, connect: Callable[..., Any]) -> None:
    """A connection is abandoned by an RST: after a plain close the kernel would still deliver its send buffer.

    The proxy stops reading, so most bytes stay in the dispatcher's send buffer in the kernel. When the proxy reads
    again, long after the timeout, only the bytes of its own small receive buffer arrive.
    """
    server, proxy = narrow_proxy
    stalled: list[Pair] = []

    def stall(pair: Pair) -> None:
        pair.stall("requests")
        pair.stall("replies")  # a reply to a closed socket would cause an RST
        stalled.append(pair)

    endpoint = Endpoint(host="127.0.0.1", port=proxy.port, stream_key=KEY, command_timeout=0.3)
    with Dispatcher(endpoint) as dispatcher:
        assert dispatcher.dispatch(b"first")
        proxy.at("requests", 1_000, stall)
        batch = pa.record_batch({"payload": pa.array([b"%d-" % n + b"x" * 1_000 for n in range(2_000)], pa.binary())})
        dispatcher.produce_batch(batch)
        reported = labels(dispatcher.flush())
        doubtful = reported.count(("retryable", "TIMEOUT", "unknown"))
        assert doubtful > 500, "the kernel took too little for this test"
        assert set(reported) <= {("retryable", "TIMEOUT", "unknown"), ("retryable", "TIMEOUT", "no")}
        proxy.after(0.0, lambda: stalled[0].resume("requests"))
        wait_until(lambda: stalled[0].over or stalled[0].flows["requests"].closed)
        assert dispatcher.dispatch(b"last")
    late = len(stored(connect(server))) - 2
    assert late * 1_000 < 100_000, f"{late} of {doubtful} messages arrived after the connection was abandoned"


def test_a_late_copy_from_a_proxy_is_deduplicated(start_server: StartServer, connect: Callable[..., Any]) -> None:
    """The proxy delivers the messages after the dispatcher has sent them again on another connection."""
    server = start_server(transport="tcp")
    assert server.port is not None
    payloads = [b"%d" % number for number in range(100)]
    with Proxy(server.port) as proxy:
        endpoint = Endpoint(host="127.0.0.1", port=proxy.port, stream_key=KEY, command_timeout=0.2)
        with Dispatcher(endpoint, exactly_once="script", script_run_rows=10) as dispatcher:
            held: list[Pair] = []

            def hold(pair: Pair) -> None:
                pair.hold("requests", math.inf)
                held.append(pair)

            proxy.at("requests", 3_000, hold)  # in the first script call, after the handshake and the probe
            for payload in payloads:
                dispatcher.produce(payload)
            report = dispatcher.flush()
            assert report.ok
            client = connect(server)
            before = script_calls(client)
            proxy.after(0.0, lambda: held[0].resume("requests"))
            wait_until(lambda: script_calls(client) > before)  # the late copy runs
            proxy.rest()
            dispatcher.flush()
    assert [payload for _, payload in stored(client)] == payloads


def script_calls(client: Any) -> int:
    commands = client.info("commandstats")
    return sum(commands.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("eval", "evalsha"))
