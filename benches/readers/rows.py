"""Entries and rows as Python objects: what a loop over them costs, and what a list of dicts costs."""

from __future__ import annotations

from typing import Any

from benches.contenders.headrace_ import endpoint
from benches.readers import PAGE
from benches.turns import Run, Target

from headrace import Reader


def prepare_entries(target: Target, fields: list[str]) -> Run:
    """Read entries, and the values of these fields of each."""
    one, other = fields

    def run() -> int:
        rows = 0
        with Reader(endpoint(target), end="latest", limit=target.rows) as reader:
            for batch in reader:
                for entry in batch:
                    _ = entry[one], entry[other]
                rows += len(batch)
        return rows

    return run


def prepare_redis_py(target: Target, fields: list[str]) -> Run:
    """The same with redis-py and hiredis, in pages."""
    import redis
    from redis.utils import HIREDIS_AVAILABLE

    if not HIREDIS_AVAILABLE:
        raise ImportError("this redis-py has no use for the hiredis that is installed")
    one, other = (name.encode() for name in fields)

    def run() -> int:
        rows, start = 0, "-"
        with redis.Redis(host=target.host, port=target.port) as client:
            while rows < target.rows:
                page: Any = client.xrange(target.stream_key, start, count=PAGE)
                for _, entry in page:
                    _ = entry[one], entry[other]
                rows += len(page)
                start = f"({page[-1][0].decode()}"
        return rows

    return run


def prepare_pylist(target: Target, by: str) -> Run:
    """Make dicts of the six typed columns of batches that are in memory, with headrace or pyarrow."""
    import pyarrow as pa
    from benches.prepared_bytes import TYPED
    from benches.typed_batches import typed_batch

    schema = typed_batch(target).select(list(TYPED)).schema
    with Reader(endpoint(target), end="latest", limit=target.rows, schema=schema) as reader:
        batches: list[Any] = list(reader)
    if by == "pyarrow":
        batches = [pa.record_batch(batch) for batch in batches]

    def run() -> int:
        return sum(len(batch.to_pylist()) for batch in batches)

    return run
