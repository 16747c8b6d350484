"""Writes what the golden files hold, on an empty server, and shows it as they do."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa

from headrace import Consumer, Dispatcher, Reader
from headrace.reader import ReaderOptions
from headrace.spark.source.offset import Offset, StreamOffset
from headrace.spark.source.place import Place
from headrace.testing import LocalServer
from support import Monitor
from support.pipelines import endpoint_to

from .golden import show, show_fields

__all__ = ["TOKENS", "WRITERS", "packed_rows", "rows", "send"]

#: The token of each batch that is written exactly once.
TOKENS: dict[str, tuple[str, int | None]] = {
    "plain": ("orders", None),
    "with a version": ("orders of the day", 7),
    "with spaces": ("Zoë {1}: a b", None),
}
PAYLOADS = [b"one", b"two", b"three"]
MESSAGE_IDS: list[int | str] = [17, "seventeen", "x" * 300]


def rows() -> pa.RecordBatch:
    """Rows with a column of each kind of type."""
    moment = datetime.datetime(2026, 11, 25, 12, 30, 15, 123456, datetime.UTC)
    return pa.record_batch(
        {
            "entry_id": pa.array(["5-1", "5-2", "6-1"]),
            "stream": pa.array(["events", "others", None]),
            "payload": pa.array([b"one", b"\x00\xff", b""], pa.binary()),
            "id": pa.array([1, -(2**63), None], pa.int64()),
            "ok": pa.array([True, False, None]),
            "ratio": pa.array([0.1, 1e300, float("nan")], pa.float64()),
            "price": pa.array([Decimal("12.50"), Decimal("-0.01"), None], pa.decimal128(9, 2)),
            "name": pa.array(["Zoë", "", None]),
            "day": pa.array([datetime.date(2026, 11, 25), datetime.date(1969, 12, 31), None]),
            "at": pa.array([moment, None, moment], pa.timestamp("us", "Europe/Berlin")),
            "local": pa.array([moment.replace(tzinfo=None), None, None], pa.timestamp("ms")),
            "took": pa.array([datetime.timedelta(seconds=90), None, None], pa.duration("us")),
            "tags": pa.array([["a", None], [], None], pa.list_(pa.string())),
            "place": pa.array([{"x": 1, "y": None}, {"x": None, "y": "b"}, None]),
            "counts": pa.array([{"a": 1}, {}, None], pa.map_(pa.string(), pa.int32())),
        }
    )


#: The columns that a field can hold, and those that only JSON can.
FLAT = ["id", "ok", "ratio", "price", "name", "day", "at", "local", "took"]
NESTED = ["tags", "place", "counts"]


def packed_rows() -> pa.RecordBatch:
    """The columns that one entry of Arrow IPC holds."""
    return rows().select(["id", "name", "at", "tags"])


def entries(server: LocalServer, client: Any) -> dict[str, Any]:
    """The fields of the entries of each layout."""
    layouts: dict[str, dict[str, Any]] = {
        "payload": {"entry_id": "entry_id"},
        "fields": {"fields": FLAT, "entry_id": "entry_id"},
        "json": {"json": [*FLAT, *NESTED], "entry_id": "entry_id"},
        "stream_key": {"stream_key": "stream", "entry_id": "entry_id"},
        "rows_per_entry": {"rows_per_entry": 2},
        "rows_per_entry, json": {"rows_per_entry": 2, "json": ["id", "name"]},
        "arrow_ipc": {"arrow_ipc": True, "fields": packed_rows().schema.names, "rows_per_entry": 2},
        "arrow_ipc, lz4": {"arrow_ipc": True, "fields": packed_rows().schema.names, "codec": "lz4"},
        "arrow_ipc, zstd": {"arrow_ipc": True, "fields": packed_rows().schema.names, "codec": "zstd"},
    }
    found: dict[str, Any] = {}
    for name, layout in layouts.items():
        with Dispatcher(endpoint_to(server)) as dispatcher:
            dispatcher.produce_batch(rows(), **layout)
            assert dispatcher.flush().ok, name
        found[name] = _taken(client, *(["events", "others"] if "stream_key" in layout else ["events"]))
    with Dispatcher(endpoint_to(server), payload_field="body", ts_field=None) as dispatcher:
        dispatcher.produce(b"one")
    found["produce, other names"] = _taken(client, "events")
    copied = pa.table({"fields": pa.array([[(b"a", b"1"), (b"\xff", b"\x00")]], pa.map_(pa.binary(), pa.binary()))})
    with Dispatcher(endpoint_to(server)) as dispatcher:
        dispatcher.produce_batch(copied, fields_from="fields")
    found["fields_from"] = _taken(client, "events")
    return found


def _taken(client: Any, *streams: str) -> list[Any]:
    """The entries of streams, in the order of the streams, which are then deleted."""
    found = [show_fields(fields) for stream in streams for _, fields in client.xrange(stream)]
    client.delete(*streams)
    assert found
    return found


def exactly_once(server: LocalServer, client: Any) -> dict[str, Any]:
    """The keys and values of markers."""
    found: dict[str, Any] = {}
    for name, (token, version) in TOKENS.items():
        with Dispatcher(endpoint_to(server), exactly_once="script") as dispatcher:
            dispatcher.begin(token, version=version) if version is not None else dispatcher.begin(token)
            for payload in PAYLOADS:
                dispatcher.produce(payload)
        found[name] = _markers(client)
    with Dispatcher(endpoint_to(server), exactly_once="script") as dispatcher:
        dispatcher.begin("orders")
        dispatcher.produce_batch(rows(), stream_key="stream")
    found["several streams"] = _markers(client)
    with Dispatcher(endpoint_to(server, shards=4), exactly_once="script") as dispatcher:
        dispatcher.begin("orders")
        for payload in PAYLOADS:
            dispatcher.produce(payload, key=payload)
    found["shards"] = _markers(client)
    assert send(server, "--exactly-once", "import-1", rows=b"one\ntwo\nthree\n") == 0
    stored = json.loads(client.get("{orders}:headrace:import-1:import"))
    assert stored.pop("stored")  # the time
    client.delete("{orders}:headrace:import-1:import")
    found["headrace send"] = {**_markers(client), "{orders}:headrace:import-1:import": stored}
    return found


def _markers(client: Any) -> dict[str, str]:
    keys = sorted(key for key in client.scan_iter() if b":headrace:" in key)
    found = {show(key): show(client.get(key)) for key in keys}
    client.flushall()
    assert found
    return found


def idmp(server: LocalServer, client: Any) -> dict[str, Any]:
    """The names of messages, as the server gets them."""
    found: dict[str, Any] = {}
    for key in ("row", "message_id"):
        for name, (token, version) in TOKENS.items():
            with (
                Monitor(server) as seen,
                Dispatcher(endpoint_to(server), exactly_once="idmp", exactly_once_key=key) as dispatcher,
            ):
                dispatcher.begin(token, version=version) if version is not None else dispatcher.begin(token)
                for number, payload in enumerate(PAYLOADS):
                    dispatcher.produce(payload, message_id=MESSAGE_IDS[number])
                dispatcher.flush().raise_for_failures()
            added = [command for command in seen.commands("XADD") if b"IDMP" in command]
            names = [command[command.index(b"IDMP") + 1 :][:2] for command in added]
            assert len(names) == len(PAYLOADS)
            found[f"{key}, {name}"] = [[show(producer), show(each)] for producer, each in names]
            client.flushall()
    return found


def positions(server: LocalServer, client: Any) -> dict[str, Any]:
    """The positions of readers, and the offsets of streaming queries."""
    for stream in ("events", "others", b"\xff"):
        for number in range(1, 5):
            client.xadd(stream, {"payload": f"{number}"}, id=f"5-{number}")
    found: dict[str, Any] = {}
    limited: dict[str, ReaderOptions] = {
        "one stream": {"limit": 2, "end": "latest"},
        "backwards": {"limit": 2, "reverse": True},
        "from an entry": {"start": "5-2", "limit": 1, "end": "latest"},
    }
    for name, options in limited.items():
        with Reader(endpoint_to(server), **options) as reader:
            found[name] = list(reader)[-1].position
    with Reader(endpoint_to(server), ["events", "others", b"\xff"], end="latest") as reader:
        found["several streams"] = list(reader)[-1].position
    start, first, end = Place((5, 0), 0), (5, 1), Place((5, 4), 4)
    offsets = {
        "a query that begins": Offset({"events": StreamOffset(Place((0, 0), 0))}, is_initial=True),
        "a micro-batch": Offset({"events": StreamOffset(end, 3, start, (((5, 3), None), ((5, 4), 3)), first)}),
        "an idle stream": Offset({"events": StreamOffset(end, 3, start), "others": StreamOffset(Place((7, 1), None))}),
    }
    return {"reader": found, "spark": {name: offset.to_json() for name, offset in offsets.items()}}


SHARD_KEYS = [b"", b"one", b"two", b"three", b"\x00\xff", b"1234567890"]


def shards(server: LocalServer, client: Any) -> dict[str, Any]:
    """What the first producer writes beside the shards, and the stream of each key."""
    found: dict[str, Any] = {}
    for hashed in ("murmur2", "crc32"):
        for names in ("plain", "spread"):
            endpoint = endpoint_to(server, stream_key="orders", shards=6, shard_hash=hashed, shard_names=names)
            with Dispatcher(endpoint) as dispatcher:
                for key in SHARD_KEYS:
                    dispatcher.produce(key, key=key)
            registry = {show(name): show(value) for name, value in client.hgetall("{orders}:shards").items()}
            streams = sorted(key for key in client.scan_iter() if client.type(key) == b"stream")
            keys = {
                show(stream): [show(fields[b"payload"]) for _, fields in client.xrange(stream)] for stream in streams
            }
            found[f"{hashed}, {names}"] = {"registry": registry, "keys": keys}
            client.flushall()
    return found


def dead_letters(server: LocalServer, client: Any) -> dict[str, Any]:
    """The dead letters of a consumer and of `headrace send`."""
    client.xadd("events", {b"payload": b"\x00\xff", b"\xfe": b""}, id="5-1")
    options: Any = {"create": True, "start": "0", "max_failures": 1, "dead_letter_key": "dead"}
    with Consumer(endpoint_to(server), group="billing", consumer="pod", **options) as consumer:
        consumer.fail(next(iter(consumer)), "no such customer")
        while not client.exists("dead"):
            consumer.poll(0.1)
    found = {"consumer": _taken(client, "dead")}
    bad_row = ["--format", "jsonl", "--payload", "a", "--on-bad-row", "dead-letter", "--dead-letters", "dead"]
    assert send(server, *bad_row, rows=b'{"a": 1}\n{"a": \n') == 1
    letter = dict(_taken(client, "dead")[0])
    assert letter.pop("message")  # its text may change
    found["headrace send"] = [list(field) for field in letter.items()]
    return found


def send(server: LocalServer, *arguments: str, rows: bytes) -> int:
    """Run `headrace send orders`; returns its exit code."""
    command = [sys.executable, "-W", "ignore", "-m", "headrace_command", "send", "orders", "-u", server.url, *arguments]
    return subprocess.run(command, input=rows, check=False, capture_output=True).returncode


#: What writes each golden file.
WRITERS: dict[str, Callable[[LocalServer, Any], Any]] = {
    "entries": entries,
    "exactly_once": exactly_once,
    "idmp": idmp,
    "positions": positions,
    "shards": shards,
    "dead_letters": dead_letters,
}
