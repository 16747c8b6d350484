"""headrace: batches of a consumer through its own group, passed to pyarrow and acknowledged."""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa
from benches.contenders.headrace_ import endpoint
from benches.turns import Run, Target

from headrace import Consumer, Group


def prepare(target: Target, fields: list[str] | None = None, **options: Any) -> Run:
    """`options` are those of a consumer."""
    if fields is not None:
        options |= {"fields": fields, "metadata": ["entry_id"]}
    name = f"bench-{os.getpid()}"
    group = Group(endpoint(target), name)

    def run() -> int:
        rows = 0
        with Consumer(endpoint(target), group=name, consumer="bench", **options) as consumer:
            while rows < target.rows and (batch := consumer.poll()):
                rows += pa.record_batch(batch).num_rows
                consumer.ack(batch)
            report = consumer.flush()
        group.destroy()
        return report.acked if options.get("ack") != "none" else rows

    return run
