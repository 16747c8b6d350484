"""Record batches that are created while they are sent, and not kept: only headrace holds memory."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from benches.contenders.common import payloads
from benches.contenders.headrace_ import endpoint
from benches.contenders.streams import keys_of_rows
from benches.turns import Run, Target

from headrace import Dispatcher

#: Large, so that the server spends its time on entries rather than on trimming.
OPTIONS = {"trim_every": 100}
SCHEMA = pa.schema({"id": pa.int64(), "payload": pa.binary()})


def batches(target: Target) -> Iterator[pa.RecordBatch]:
    """Yield all rows."""
    rows = payloads(target)
    for first in range(0, target.rows, target.batch):
        yield pa.record_batch(
            [pa.array(range(first, first + target.batch)), pa.array(rows, pa.binary())], schema=SCHEMA
        )


def produce_batch(target: Target) -> Run:
    """A record batch with message IDs, then `poll()`."""

    def run() -> int:
        delivered = 0
        with Dispatcher(endpoint(target, OPTIONS)) as dispatcher:
            for batch in batches(target):
                dispatcher.produce_batch(batch, message_id="id")
                delivered += dispatcher.poll().delivered
            return delivered + dispatcher.flush().raise_for_failures().delivered

    return run


def reader(target: Target) -> Run:
    """One call that reads all rows, and one report. Message IDs are ordinals, because a report would keep given IDs."""

    def run() -> int:
        with Dispatcher(endpoint(target, OPTIONS)) as dispatcher:
            dispatcher.produce_batch(pa.RecordBatchReader.from_batches(SCHEMA, batches(target)))
            return dispatcher.flush().raise_for_failures().delivered

    return run


def streams(target: Target, polls: bool) -> Run:
    """Record batches for 64 streams of a cluster: with a report of each, or one report of all."""
    keys = pa.array(keys_of_rows(target))

    def run() -> int:
        delivered = 0
        with Dispatcher(endpoint(target, {**OPTIONS, "topology": "cluster"})) as dispatcher:
            for batch in batches(target):
                # Without message IDs, which a report would keep.
                row = {"payload": batch.column("payload"), "key": keys}
                dispatcher.produce_batch(pa.record_batch(row), stream_key="key")
                if polls:
                    delivered += dispatcher.poll().delivered
            return delivered + dispatcher.flush().raise_for_failures().delivered

    return run
