"""The jobs that Spark runs in its Python workers: nothing, headrace, redis-py.

A job runs one action over all rows, and returns the number of confirmed rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from benches.contenders.common import PIPELINE, now
from benches.prepared_bytes import TYPED
from benches.turns import Target

from headrace import Endpoint
from headrace.spark import xadd


@dataclass(frozen=True)
class Rows:
    """The kind of rows, and the `layout` options of headrace for them."""

    name: str
    layout: dict[str, Any] = field(hash=False)


PAYLOAD = Rows("payload of 120 bytes", {"payload": "payload"})
TYPED_FIELDS = Rows("six typed fields", {"fields": TYPED})

Job = Callable[[Any, Rows, Target], int]


def count_only(frame: Any, _rows: Rows, _target: Target) -> int:
    """A mapInArrow that does nothing: the cost of Spark and its workers."""

    def count(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        yield pa.record_batch({"rows": pa.array([sum(batch.num_rows for batch in batches)], pa.int64())})

    return sum(row.rows for row in frame.mapInArrow(count, "rows long").collect())


def headrace_xadd(frame: Any, rows: Rows, target: Target) -> int:
    """`headrace.spark.xadd`: one outcome row per row; those that failed are collected."""
    outcomes = frame.mapInArrow(xadd(endpoint(target), **rows.layout), xadd.schema)
    return target.rows - len(outcomes.where("code IS NOT NULL").collect())


def headrace_xadd_only_failed(frame: Any, rows: Rows, target: Target) -> int:
    """The same with `only_failed=True`: outcome rows only for those that failed."""
    outcomes = frame.mapInArrow(xadd(endpoint(target), only_failed=True, **rows.layout), xadd.schema)
    return target.rows - len(outcomes.collect())


def endpoint(target: Target) -> Endpoint:
    return Endpoint(host=target.host, port=target.port, stream_key=target.stream_key, maxlen=target.maxlen)


def redis_py(frame: Any, rows: Rows, target: Target) -> int:
    """redis-py with hiredis in mapInArrow, pipelines of 1,000; typed values are passed as str."""
    host, port, key, maxlen = target.host, target.port, target.stream_key, target.maxlen
    typed = rows is TYPED_FIELDS

    def write(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        import redis
        from redis.utils import HIREDIS_AVAILABLE

        assert HIREDIS_AVAILABLE
        stored = 0
        with redis.Redis(host=host, port=port) as client:
            for batch in batches:
                for first in range(0, batch.num_rows, PIPELINE):
                    pipeline = client.pipeline(transaction=False)
                    ts = now()
                    for row in batch.slice(first, PIPELINE).to_pylist():
                        fields = {name: str(value) for name, value in row.items()} if typed else row
                        pipeline.xadd(key, {**fields, "ts": ts}, maxlen=maxlen, approximate=True)
                    stored += len(pipeline.execute())
        yield pa.record_batch({"rows": pa.array([stored], pa.int64())})

    return sum(row.rows for row in frame.mapInArrow(write, "rows long").collect())
