"""The outcome of each message: every row of the table of outcomes that a real server can cause."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any, Literal

import pyarrow as pa
import pytest

from faults.proxy import Pair, Proxy
from headrace import Dispatcher, Endpoint
from headrace.testing import LocalServer
from support import Program
from support.fixture_types import StartServer
from support.pipelines import KEY, check_accounting, endpoint_to, labels, outcomes, stored
from support.processes import wait_until

Connect = Callable[..., Any]

DELIVERED = (None, None, None)


def permanent(code: str) -> tuple[str, str, str]:
    return "permanent", code, "no"


def retryable(code: str) -> tuple[str, str, str]:
    return "retryable", code, "no"


def test_each_message_of_a_pipeline_has_its_own_outcome(
    start_server: StartServer, program: Program, connect: Connect
) -> None:
    """Each of 1,000 messages has its own outcome, while another client fills and frees the memory.

    A proxy holds the pipeline back until the server has run a part of it and the memory has changed.
    """
    server = start_server(program, transport="tcp")
    assert server.port is not None
    client, other = connect(server), connect(server)
    client.set("text", "no stream")
    # How many messages the server had answered at each change. It answers in order.
    done = [0]

    def change_memory(_: Pair) -> None:
        wait_until(lambda: xadd_calls(other.info("commandstats")) >= done[-1] + 100)
        # A server runs the commands that it reads at once without others in between. A transaction would ensure that
        # too, but Redis 6.2 and 7.0 refuse any command in one while memory is full.
        with other.pipeline(transaction=False) as both:
            both.config_set("maxmemory", len(done) % 2)
            both.info("commandstats")
            done.append(xadd_calls(both.execute()[1]))

    routes = ["text" if row % 7 == 3 else "second" if row % 3 == 1 else None for row in range(1_000)]
    payloads = [f"{row}-".encode() + b"x" * 1_000 for row in range(1_000)]
    ids = [str(row) for row in range(1_000)]
    with Proxy(server.port) as proxy:
        for part in range(1, 5):
            proxy.at("requests", part * 200_000, change_memory)
        endpoint = Endpoint(host="127.0.0.1", port=proxy.port, stream_key=KEY)
        with Dispatcher(endpoint) as dispatcher:
            batch = pa.record_batch({"payload": payloads, "key": routes, "id": ids})
            dispatcher.produce_batch(batch, message_id="id", stream_key="key")
            report = dispatcher.flush()
            reported = outcomes(report)
            assert report.failed_ids == [outcome.message_id for outcome in reported if outcome.entry_id is None]
    assert [outcome.message_id for outcome in reported] == ids
    assert len(done) == 5
    for part, (first, end) in enumerate(itertools.pairwise([*done, 1_000])):
        for outcome, route in zip(reported[first:end], routes[first:end], strict=True):
            good = permanent("WRONGTYPE") if route == "text" else DELIVERED
            assert outcome.label == (permanent("OOM") if part % 2 else good), (part, outcome)
    check_accounting(
        client, [(route or KEY, payload) for route, payload in zip(routes, payloads, strict=True)], reported
    )
    assert len(stored(client)) + len(stored(client, "second")) == report.delivered


def xadd_calls(stats: dict[str, Any]) -> int:
    """How many XADD commands a server has answered, refused ones included, by its `INFO commandstats`."""
    xadd = stats.get("cmdstat_xadd", {"calls": 0, "rejected_calls": 0})
    return int(xadd["calls"] + xadd["rejected_calls"])


def test_a_missing_stream_is_reported_per_message(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    with Dispatcher(endpoint_to(server, nomkstream=True)) as dispatcher:
        dispatcher.produce(b"early")
        report = dispatcher.flush()
        assert labels(report) == [retryable("NO_STREAM")]
        assert report.failed[0].message == "the stream does not exist, and nomkstream forbids to create it"
        assert not client.exists(KEY)
        first = client.xadd(KEY, {"payload": b"made by another"})
        dispatcher.produce(b"late")
        assert labels(dispatcher.flush()) == [DELIVERED]
    assert [payload for _, payload in stored(client)] == [b"made by another", b"late"]
    assert first


@pytest.mark.parametrize("approximate", [False, True])
def test_entries_trimmed_at_once_are_reported(server: LocalServer, connect: Connect, approximate: bool) -> None:
    """The server returns an ID below `minid` for an entry that it trims at once or later."""
    client = connect(server)
    later = int(time.time() * 1_000) + 3_600_000
    endpoint = endpoint_to(server, minid=f"{later}-5", maxlen_approximate=approximate)
    given = [None, f"{later}-4", f"{later}-5", f"{later}-6"]
    with Dispatcher(endpoint) as dispatcher:
        dispatcher.produce_batch(pa.record_batch({"payload": [b"a", b"b", b"c", b"d"], "id": given}), entry_id="id")
        report = dispatcher.flush()
        trimmed = ("permanent", "TRIMMED", "unknown")
        assert labels(report) == [trimmed, trimmed, DELIVERED, DELIVERED]
        assert f"below minid {later}-5" in report.failed[1].message
    kept = [payload for _, payload in stored(client)]
    assert kept[-2:] == [b"c", b"d"]
    assert len(kept) == 2 or approximate


def test_bad_rows_fail_and_good_rows_are_delivered(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    rows = pa.record_batch(
        {
            "payload": [b"a", None, b"b", b"c", b"d", b"e", None, b"f"],
            "key": [None, None, "", None, "second", None, "", "second"],
            "entry": [None, None, None, "yesterday", "*", "5-", None, None],
        }
    )
    with Dispatcher(endpoint_to(server)) as dispatcher:
        dispatcher.produce_batch(rows, stream_key="key", entry_id="entry")
        report = dispatcher.flush()
        reported = labels(report)
    null, key, entry = permanent("NULL_PAYLOAD"), permanent("BAD_STREAM_KEY"), permanent("BAD_ENTRY_ID")
    assert reported[:6] == [DELIVERED, null, key, entry, DELIVERED, entry]
    assert reported[6] in (null, key)  # both apply
    assert reported[7] == DELIVERED
    assert report.failed_ids == [1, 2, 3, 5, 6]
    assert [payload for _, payload in stored(client)] == [b"a"]
    assert [payload for _, payload in stored(client, "second")] == [b"d", b"f"]


def test_rows_without_any_field_fail_and_other_rows_are_delivered(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    rows = pa.record_batch({"name": ["a", None, None, "d"], "size": pa.array([1, 2, None, None], pa.int32())})
    with Dispatcher(endpoint_to(server)) as dispatcher:
        dispatcher.produce_batch(rows, fields=["name", "size"])
        assert labels(dispatcher.flush()) == [DELIVERED, DELIVERED, permanent("EMPTY"), DELIVERED]
    fields = [{name: value for name, value in entry.items() if name != b"ts"} for _, entry in client.xrange(KEY)]
    assert fields == [{b"name": b"a", b"size": b"1"}, {b"size": b"2"}, {b"name": b"d"}]


def test_an_entry_id_at_or_below_the_top_item_fails(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    rows = pa.record_batch({"payload": [b"a", b"b", b"c", b"d", b"e"], "id": ["5-1", "4-9", "5-1", "0-0", "5-2"]})
    with Dispatcher(endpoint_to(server)) as dispatcher:
        dispatcher.produce_batch(rows, entry_id="id")
        reported = outcomes(dispatcher.flush())
    assert [outcome.entry_id for outcome in reported] == ["5-1", None, None, None, "5-2"]
    assert [outcome.label for outcome in reported[1:3]] == [retryable("ERR")] * 2
    # The client may refuse 0-0 by itself.
    assert reported[3].label in (retryable("ERR"), permanent("BAD_ENTRY_ID"))
    assert "equal or smaller" in (reported[1].message or "")
    assert stored(client) == [("5-1", b"a"), ("5-2", b"e")]


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_only_the_message_that_is_too_large_fails_permanently(
    start_server: StartServer, program: Program, connect: Connect, transport: Literal["unix", "tcp"]
) -> None:
    """Only that row is permanent. The server did not read those sent after it; the others are sent later."""
    server = start_server(program, transport=transport, config={"proto-max-bulk-len": "1mb"})
    client = connect(server)
    for turn in range(20):  # the server's error and its close arrive in either order
        payloads = [f"{turn}-{row}".encode() for row in range(300)]
        # No part of it may be parsed as commands, wherever the connection ends.
        payloads[100] += b"\r\nSET injected yes\r\n" * (1 << 16)
        with Dispatcher(endpoint_to(server)) as dispatcher:
            dispatcher.produce_batch(pa.record_batch({"payload": payloads}))
            report = dispatcher.flush()
            reported = outcomes(report)
            before, large, after = reported[:100], reported[100], reported[101:]
            assert {outcome.label for outcome in before} == {DELIVERED}
            assert large.label == permanent("TOO_LARGE"), large
            assert not client.exists("injected")
            lost = sum(outcome.label != DELIVERED for outcome in after)
            assert {outcome.label for outcome in after[lost:]} <= {DELIVERED}
            assert {outcome.label for outcome in after[:lost]} <= {retryable("RESET")}, after[0]
            check_accounting(client, [(KEY, payload) for payload in payloads], reported)
            dispatcher.produce(b"next")
            assert labels(dispatcher.flush()) == [DELIVERED]
        client.delete(KEY)
