"""A steady rate of small record batches into all streams of a cluster, while something happens to it."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
from benches.contenders.common import payloads
from benches.contenders.headrace_ import endpoint
from benches.contenders.streams import STREAMS, stream_keys
from benches.turns import Run, Target

from headrace import Dispatcher, RetryPolicy

#: The interval, in seconds, at which a record batch with one row per stream is produced.
EVERY = 0.002


def prepare(target: Target, until: str) -> Run:
    """Continue until the file `until` exists. There is no trimming: the streams show when each entry was added."""
    batch = pa.record_batch({"payload": pa.array(payloads(target)[:STREAMS], pa.binary()), "key": stream_keys(target)})
    options = {"topology": "cluster", "maxlen": None}

    ended = Path(until)

    def run() -> int:
        delivered = 0
        with Dispatcher(endpoint(target, options), retry=RetryPolicy(deadline=60)) as dispatcher:
            due = time.perf_counter()
            while not ended.exists():
                dispatcher.produce_batch(batch, stream_key="key")
                delivered += dispatcher.poll().delivered
                due += EVERY
                time.sleep(max(0.0, due - time.perf_counter()))
            return delivered + dispatcher.flush().raise_for_failures().delivered

    return run
