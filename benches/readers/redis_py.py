"""redis-py with hiredis: pages of XRANGE, each converted to a pyarrow record batch."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import redis
from benches.readers import PAGE
from benches.turns import Run, Target
from redis.utils import HIREDIS_AVAILABLE


def prepare(target: Target, fields: list[str]) -> Run:
    if not HIREDIS_AVAILABLE:
        raise ImportError("this redis-py has no use for the hiredis that is installed")
    names = [name.encode() for name in fields]

    def run() -> int:
        rows, start = 0, "-"
        with redis.Redis(host=target.host, port=target.port) as client:
            while rows < target.rows:
                page: Any = client.xrange(target.stream_key, start, count=PAGE)
                if not page:
                    break
                columns = [pa.array([entry_id for entry_id, _ in page], pa.binary())]
                columns += [pa.array([entry.get(name) for _, entry in page], pa.binary()) for name in names]
                rows += pa.RecordBatch.from_arrays(columns, ["entry_id", *fields]).num_rows
                start = f"({page[-1][0].decode()}"
        return rows

    return run
