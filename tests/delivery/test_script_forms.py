"""The forms in which a script call carries rows: what they write, and which entry IDs they report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from headrace import Dispatcher
from headrace.testing import LocalServer
from support import Monitor
from support.delivery import bodies, script
from support.marks import thorough
from support.pipelines import KEY, batch_of, endpoint_to, outcomes, payloads_of, stored

Connect = Callable[..., Any]

ROWS = 500
#: Every other layout that has an entry for each row, and the columns it takes.
LAYOUTS: dict[str, dict[str, Any]] = {
    "payload": {},
    "json": {"json": True},
    "fields": {"fields": ["id", "name"]},
    "fields-with-nulls": {"fields": ["name", "amount", "id"]},
    "more-fields-than-a-mark-has-bits": {
        "fields": [f"w{n}" for n in range(60)] + [f"c{n}" for n in range(1, 6)] + ["amount"]
    },
    "fields-of-many-sets": {"fields": [f"c{n}" for n in range(12)]},
    "fields-that-are-long": {"fields": ["id", "long"]},
    "fields-that-are-long-with-nulls": {"fields": ["id", "long", "amount"]},
    "many-fields": {"fields": [f"w{n}" for n in range(60)]},
    "as-many-fields-as-have-code": {"fields": [f"w{n}" for n in range(50)]},
    "stream-keys": {"stream_key": "key", "fields": ["id", "amount"]},
    "entry-ids": {"entry_id": "entry", "fields": ["id", "amount"]},
}


def rows(start: int) -> pa.RecordBatch:
    numbers = range(start, start + ROWS)
    columns: dict[str, Any] = {
        "payload": [f"payload {n}" for n in numbers],
        "id": numbers,
        "name": [f"name {n}" for n in numbers],
        "amount": [None if n % 3 else n / 4 for n in numbers],
        "key": [None if n % 5 == 0 else f"events:{n // 50 % 2}" for n in numbers],
        "entry": [f"{1 + n}-7" for n in numbers],
        "any_entry": ["*" for _ in numbers],
        "long": [f"{n:0100}" for n in numbers],
    }
    for place in range(60):
        columns[f"w{place}"] = [str(n + place) for n in numbers]
    for place in range(12):
        columns[f"c{place}"] = [None if place and (n >> (place - 1)) % 2 else str(n) for n in numbers]
    return pa.record_batch(columns)


def entries(client: Any) -> dict[bytes, list[list[tuple[bytes, bytes]]]]:
    """The fields of all entries, in their order, by stream key."""
    return {key: [list(fields.items()) for _, fields in client.xrange(key)] for key in sorted(client.keys("events*"))}


@pytest.mark.parametrize("ts_field", ["ts", *thorough(None)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_script_writes_the_same_entries_as_plain_calls(
    server: LocalServer, connect: Connect, layout: str, ts_field: str | None
) -> None:
    client = connect(server)
    written = []
    for exactly_once in ("off", "script"):
        with Dispatcher(endpoint_to(server), exactly_once=exactly_once, ts_field=ts_field) as dispatcher:
            for start in (0, ROWS):
                dispatcher.produce_batch(rows(start), **LAYOUTS[layout])
            report = dispatcher.flush()
            assert (report.ok, report.delivered) == (True, 2 * ROWS)
        found = entries(client)
        for fields in (fields for stream in found.values() for fields in stream):
            if ts_field:
                name, _ = fields.pop()
                assert name == b"ts"
        written.append(found)
        client.flushall()
    assert written[0] == written[1]


def test_rows_of_all_forms_keep_their_order(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    with script(server, ts_field=None) as dispatcher:
        dispatcher.begin("batch")
        for number, layout in enumerate(LAYOUTS.values()):
            dispatcher.produce(f"{number}")
            entry_id = "any_entry" if "entry_id" in layout else None
            dispatcher.produce_batch(rows(0), **{**layout, "stream_key": None, "entry_id": entry_id})
        report = dispatcher.flush()
        stats = dispatcher.stats()
    assert report.ok
    assert (stats.script_rows_whole, stats.script_rows_shared) == (ROWS, (len(LAYOUTS) - 1) * ROWS + len(LAYOUTS))
    assert stats.script_calls >= 2 * len(LAYOUTS)
    assert [outcome.entry_id for outcome in outcomes(report)] == [key.decode() for key, _ in client.xrange(KEY)]
    assert client.xlen(KEY) == len(LAYOUTS) * (ROWS + 1)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("there", [*thorough(1, 37, 150, 399), 499])
def test_a_call_continues_after_the_rows_already_written(
    server: LocalServer, connect: Connect, layout: str, there: int
) -> None:
    client, options = connect(server), {**LAYOUTS[layout], "stream_key": None, "entry_id": None}
    written = []
    for parts in ((there, ROWS), (ROWS,)):
        reports = []
        for part in parts:
            with script(server, ts_field=None) as dispatcher:
                dispatcher.begin("batch")
                dispatcher.produce_batch(rows(0)[:part], **options)
                reports.append(dispatcher.flush())
        assert all(report.ok for report in reports)
        assert reports[-1].deduplicated == (there if len(parts) > 1 else 0)
        written.append(entries(client))
        client.flushall()
    assert written[0] == written[1]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("left", [*thorough(1, 37, 99), 399])
def test_a_call_ends_at_the_first_refused_row(server: LocalServer, connect: Connect, layout: str, left: int) -> None:
    """The stream has so many entry IDs left."""
    client, options = connect(server), {**LAYOUTS[layout], "stream_key": None, "entry_id": None}
    with script(server, ts_field=None) as dispatcher:
        dispatcher.produce_batch(rows(0), **options)
        assert dispatcher.flush().ok
        expected = entries(client)[KEY.encode()][:left]
        client.flushall()
        last = (1 << 64) - 1
        client.xadd(KEY, {"a": b"b"}, id=f"{last}-{last - left}")
        dispatcher.begin("batch")
        dispatcher.produce_batch(rows(0), **options)
        codes = [outcome.code for outcome in outcomes(dispatcher.flush())]
    assert codes == [None] * left + ["ERR"] + ["BLOCKED"] * (ROWS - left - 1)
    assert entries(client)[KEY.encode()][1:] == expected


@pytest.mark.parametrize("last", [(1 << 53) - 3, (1 << 64) - 53, (1 << 64) - 3], ids=["2^53", "2^64-53", "2^64-3"])
def test_entry_ids_are_exact_up_to_the_last_one(server: LocalServer, connect: Connect, last: int) -> None:
    """Numbers of Lua have 53 bits. Behind the last sequence number the milliseconds go on."""
    client, ms, payloads = connect(server), 1 << 60, payloads_of(0, 100, 20)
    client.xadd(KEY, {"payload": b"first"}, id=f"{ms}-{last}")
    with script(server) as dispatcher:
        dispatcher.produce_batch(batch_of(payloads))
        report = dispatcher.flush()
    assert report.ok
    reported = [(outcome.entry_id, payload) for outcome, payload in zip(outcomes(report), payloads, strict=True)]
    assert reported == stored(client)[1:]
    assert len({str(entry_id).split("-")[0] for entry_id, _ in reported}) == (1 if last < 1 << 60 else 2)


def test_entry_ids_are_correct_when_the_clock_advances_within_a_call(server: LocalServer, connect: Connect) -> None:
    """Up to Redis 7.0 the clock of a script call goes on, so that its entries may be of several milliseconds."""
    client, payloads = connect(server), payloads_of(0, 50_000, 20)
    with script(server, script_run_rows=1_000) as dispatcher:
        dispatcher.produce_batch(batch_of(payloads))
        report = dispatcher.flush()
    assert report.ok
    reported = [(outcome.entry_id, payload) for outcome, payload in zip(outcomes(report), payloads, strict=True)]
    assert reported == stored(client)
    if client.info("server").get("server_name") != "valkey" and client.info("server")["redis_version"] < "7.1":
        runs = [
            {str(entry_id).split("-")[0] for entry_id, _ in reported[at : at + 1_000]} for at in range(0, 50_000, 1_000)
        ]
        assert max(map(len, runs)) > 1, "no call was of several milliseconds"


def test_a_call_trims_once(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    endpoint = {"maxlen": 10, "maxlen_approximate": False}
    with Monitor(server) as monitor, script(server, endpoint, script_run_rows=100) as dispatcher:
        dispatcher.produce_batch(batch_of(payloads_of(0, 300, 20)))
        assert dispatcher.flush().ok
    xadds = monitor.commands("XADD")
    assert len(xadds) == 300
    assert sum(b"MAXLEN" in xadd for xadd in xadds) == 3
    assert bodies(client) == payloads_of(290, 10, 20)


def test_a_missing_stream_fails_the_first_row_and_blocks_the_rest(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    with script(server, {"nomkstream": True}) as dispatcher:
        dispatcher.produce_batch(batch_of(payloads_of(0, 50, 20)))
        codes = [outcome.code for outcome in outcomes(dispatcher.flush())]
        assert codes == ["NO_STREAM"] + ["BLOCKED"] * 49
        client.xgroup_create(KEY, "g", mkstream=True)
        dispatcher.skip_failed()
        dispatcher.produce_batch(batch_of(payloads_of(50, 50, 20)))
        assert dispatcher.flush().ok
    assert bodies(client) == payloads_of(50, 50, 20)
