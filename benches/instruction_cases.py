"""The program that runs under callgrind: each case sends its batches with marks between them.

The mark is a call of `getpriority` in the C library, which nothing else calls here: callgrind dumps and resets its
counts at each call. Each case has three counts: the preparation with the first batches, `SHORT` batches, and `LONG`
batches. The difference of the latter two is the cost of the messages, with their share of a record batch and its flush.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from operator import is_
from typing import Any

from benches.contenders.common import payloads
from benches.contenders.streams import STREAMS, keys_of_rows, shard_keys_of_rows
from benches.turns import Target

from headrace import Consumer, Dispatcher, Endpoint, Reader

#: The function whose calls make callgrind dump its counts.
MARK = "getpriority"
ROWS_OF_BATCH = 10_000
FIRST, SHORT, LONG = 2, 1, 3

#: Sends a number of batches and waits for the replies, or reads that many.
Send = Callable[[int], object]
#: Yields the number of rows of each batch that is read, with these fields.
Read = Callable[[Endpoint, list[str]], Iterator[int]]


@dataclass(frozen=True)
class Case:
    """A way to pass rows. `loop` names the case with the cost of its Python loop alone, which is shown next to it."""

    title: str
    prepare: Callable[[Dispatcher], Send]
    endpoint_options: Mapping[str, Any] = field(default_factory=dict)
    loop: str = ""
    #: Whether a real server is needed: the counting server stores nothing.
    reads: bool = False
    #: The number of cluster nodes of the counting server; 0: it has no cluster.
    nodes: int = 0


def rows(size: int) -> list[bytes]:
    return payloads(Target(ROWS_OF_BATCH, payload_bytes=size, batch=ROWS_OF_BATCH))


def of_batches(make: Callable[[], Any], read_ids: bool = False, **options: Any) -> Callable[[Dispatcher], Send]:
    def prepare(dispatcher: Dispatcher) -> Send:
        import pyarrow as pa

        batch = make()

        def send(batches: int) -> None:
            for _ in range(batches):
                dispatcher.produce_batch(batch, **options)
                report = dispatcher.flush().raise_for_failures()
                if read_ids:
                    pa.table(report.to_arrow())

        return send

    return prepare


def of_payloads(size: int) -> Callable[[], Any]:
    def make() -> Any:
        import pyarrow as pa

        return pa.record_batch({"payload": pa.array(rows(size), pa.binary())})

    return make


def payload_and_key() -> Any:
    """A record batch for 64 streams."""
    import pyarrow as pa

    keys = keys_of_rows(Target(ROWS_OF_BATCH, batch=ROWS_OF_BATCH))
    return pa.record_batch({"payload": pa.array(rows(120), pa.binary()), "key": keys})


def payload_and_shard_key() -> Any:
    import pyarrow as pa

    keys = shard_keys_of_rows(Target(ROWS_OF_BATCH, batch=ROWS_OF_BATCH))
    return pa.record_batch({"payload": pa.array(rows(120), pa.binary()), "key": keys})


def of_shards(nodes: int, title: str) -> Case:
    send = of_batches(payload_and_shard_key, payload="payload", shard_key="key")
    return Case(title, send, {"shards": STREAMS} | ({"topology": "cluster"} if nodes else {}), nodes=nodes)


def of_nodes(nodes: int, title: str) -> Case:
    send = of_batches(payload_and_key, payload="payload", stream_key="key")
    return Case(title, send, {"topology": "cluster"} if nodes else {}, nodes=nodes)


TWO = ["payload", "ts"]


def payload_and_time() -> Any:
    import pyarrow as pa

    times = pa.array([str(1_795_000_000_000 + n) for n in range(ROWS_OF_BATCH)])
    return pa.record_batch([pa.array(rows(120), pa.binary()), times], names=TWO)


def six_columns() -> Any:
    """The columns of a typical order: int64, double, string, bool, timestamp, decimal."""
    import pyarrow as pa

    numbers = range(ROWS_OF_BATCH)
    first, step = datetime(2026, 4, 14, 12, tzinfo=UTC), timedelta(microseconds=1_234_567)
    return pa.record_batch(
        {
            "order_id": pa.array([10_000_000 + 7 * n for n in numbers], pa.int64()),
            "weight": pa.array([n * 0.37 + 0.01 for n in numbers], pa.float64()),
            "customer": pa.array([f"customer{n:04d}" for n in numbers], pa.string()),
            "express": pa.array([n % 3 == 0 for n in numbers], pa.bool_()),
            "ordered_at": pa.array([first + n * step for n in numbers], pa.timestamp("us", "UTC")),
            "total": pa.array([Decimal(n * 1_999 + 1).scaleb(-2) for n in numbers], pa.decimal128(18, 2)),
        }
    )


def of_reader(make: Callable[[], Any], fields: list[str], read: Read) -> Callable[[Dispatcher], Send]:
    """Write the rows as fields first. A batch that is read has as many rows as one that is written."""

    def prepare(dispatcher: Dispatcher) -> Send:
        batch = make()
        with Dispatcher(dispatcher.endpoint, ts_field=None) as writer:
            for _ in range(FIRST + SHORT + LONG):
                writer.produce_batch(batch, fields=fields)
        batches = read(dispatcher.endpoint, fields)

        def send(count: int) -> None:
            rows = 0
            while rows < count * ROWS_OF_BATCH:
                rows += next(batches)
            assert rows == count * ROWS_OF_BATCH

        return send

    return prepare


def by_position(endpoint: Endpoint, fields: list[str]) -> Iterator[int]:
    import pyarrow as pa

    with Reader(endpoint, end="latest", fields=fields, metadata=["entry_id"], batch_rows=ROWS_OF_BATCH) as reader:
        for batch in reader:
            yield pa.record_batch(batch).num_rows


def through_a_group(endpoint: Endpoint, fields: list[str]) -> Iterator[int]:
    import pyarrow as pa

    options: dict[str, Any] = {"fields": fields, "metadata": ["entry_id"], "batch_rows": ROWS_OF_BATCH}
    with Consumer(endpoint, group="bench", consumer="bench", **options) as consumer:
        for batch in consumer:
            yield pa.record_batch(batch).num_rows
            consumer.ack(batch)


SIX = ["order_id", "weight", "customer", "express", "ordered_at", "total"]


def of_loop(with_ids: bool, sends: bool = True) -> Callable[[Dispatcher], Send]:
    """Make one call per message; without `sends`, the same loop around a built-in function that does nothing."""

    def prepare(dispatcher: Dispatcher) -> Send:
        messages = rows(120)
        one: Callable[[bytes], object] = dispatcher.produce if sends else callable
        two: Callable[[bytes, int], object] = dispatcher.produce if sends else is_

        def send(batches: int) -> None:
            for _ in range(batches):
                if with_ids:
                    for message_id, payload in enumerate(messages):
                        two(payload, message_id)
                else:
                    for payload in messages:
                        one(payload)
                dispatcher.flush().raise_for_failures()

        return send

    return prepare


def of_mappings(dispatcher: Dispatcher) -> Send:
    """Make one call per message, with a mapping of two fields that is made before."""
    messages: list[dict[str, int | bytes]] = [
        {"order_id": number, "payload": payload} for number, payload in enumerate(rows(120))
    ]

    def send(batches: int) -> None:
        for _ in range(batches):
            for message in messages:
                dispatcher.produce(fields=message)
            dispatcher.flush().raise_for_failures()

    return send


CASES = {
    "payload": Case("produce_batch, payload of 120 bytes", of_batches(of_payloads(120), payload="payload")),
    "payload-ids": Case(
        "the same, entry IDs read as Arrow", of_batches(of_payloads(120), read_ids=True, payload="payload")
    ),
    "payload-16": Case("payload of 16 bytes", of_batches(of_payloads(16), payload="payload")),
    "payload-1024": Case("payload of 1 KiB", of_batches(of_payloads(1024), payload="payload")),
    "trim-every-100": Case(
        "payload of 120 bytes, trim_every=100", of_batches(of_payloads(120), payload="payload"), {"trim_every": 100}
    ),
    "ten-rows": Case(
        "payload of 120 bytes, rows_per_entry=10", of_batches(of_payloads(120), payload="payload", rows_per_entry=10)
    ),
    "arrow-ipc": Case("the same as arrow_ipc=True", of_batches(of_payloads(120), arrow_ipc=True)),
    "fields": Case("fields= of six typed columns", of_batches(six_columns, fields=SIX)),
    "json": Case("json=True of the same six", of_batches(six_columns, json=True)),
    "streams": of_nodes(0, "payload of 120 bytes, 64 streams by stream_key="),
    "streams-1-node": of_nodes(1, "the same on a cluster of 1 node"),
    "streams-8-nodes": of_nodes(8, "the same on a cluster of 8 nodes"),
    "shards": of_shards(0, "payload of 120 bytes, 64 shards by shard_key="),
    "shards-8-nodes": of_shards(8, "the same on a cluster of 8 nodes"),
    "read": Case("Reader, payload of 120 bytes and time", of_reader(payload_and_time, TWO, by_position), reads=True),
    "read-fields": Case("Reader, fields= of the same six", of_reader(six_columns, SIX, by_position), reads=True),
    "consume": Case(
        "Consumer, payload of 120 bytes and time, acknowledged",
        of_reader(payload_and_time, TWO, through_a_group),
        reads=True,
    ),
    "produce": Case("produce(payload), with the loop around it", of_loop(with_ids=False), loop="loop"),
    "produce-ids": Case("produce(payload, int), with the loop around it", of_loop(with_ids=True), loop="loop-ids"),
    "produce-fields": Case("produce(fields=) of two, with the loop around it", of_mappings, loop="loop"),
    "loop": Case("a loop that does nothing", of_loop(with_ids=False, sends=False)),
    "loop-ids": Case("a loop that does nothing, with enumerate", of_loop(with_ids=True, sends=False)),
}


def mark() -> None:
    os.getpriority(os.PRIO_PROCESS, 0)


def main(counting: Mapping[int, int], storing: int, names: list[str]) -> None:
    """`counting`: the ports of the counting servers, by number of nodes; `storing`: that of the real server, or 0."""
    gc.disable()  # a collection would fall into one of the intervals
    for number, name in enumerate(names, 1):
        case = CASES[name]
        print(f"under callgrind, {number} of {len(names)}: {case.title}", file=sys.stderr, flush=True)
        port, maxlen = (storing, None) if case.reads else (counting[case.nodes], 1_000)
        endpoint = Endpoint(host="127.0.0.1", port=port, stream_key=name, maxlen=maxlen, **case.endpoint_options)
        with Dispatcher(endpoint) as dispatcher:
            send = case.prepare(dispatcher)
            send(FIRST)
            mark()
            send(SHORT)
            mark()
            send(LONG)
            mark()


if __name__ == "__main__":
    main({int(nodes): port for nodes, port in json.loads(sys.argv[1]).items()}, int(sys.argv[2]), sys.argv[3:])
