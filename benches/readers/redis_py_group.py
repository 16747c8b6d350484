"""redis-py with hiredis: pages of XREADGROUP converted to pyarrow record batches, with XACK before the next page."""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa
import redis
from benches.readers import PAGE
from benches.turns import Run, Target


def prepare(target: Target, fields: list[str]) -> Run:
    names = [name.encode() for name in fields]
    group = f"bench-{os.getpid()}"

    def run() -> int:
        rows, acked = 0, 0
        with redis.Redis(host=target.host, port=target.port) as client:
            client.xgroup_create(target.stream_key, group, 0)
            ids: list[bytes] = []
            while rows < target.rows:
                pipeline = client.pipeline(transaction=False)
                if ids:
                    pipeline.xack(target.stream_key, group, *ids)
                pipeline.xreadgroup(group, "bench", {target.stream_key: ">"}, PAGE)
                replies: Any = pipeline.execute()
                acked += sum(replies[:-1])
                page = replies[-1][0][1]
                ids = [entry_id for entry_id, _ in page]
                columns = [pa.array(ids, pa.binary())]
                columns += [pa.array([entry.get(name) for _, entry in page], pa.binary()) for name in names]
                rows += pa.RecordBatch.from_arrays(columns, ["entry_id", *fields]).num_rows
            last: Any = client.xack(target.stream_key, group, *ids)
            client.xgroup_destroy(target.stream_key, group)
        return acked + int(last)

    return run
