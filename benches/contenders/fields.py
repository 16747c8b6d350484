"""Messages with fields, one call for each: what a loop over `dispatcher.produce(fields=…)` or `pipeline.xadd` costs.

The mappings are made off the clock and the same for each contender, with values of types that all of them take.
"""

from __future__ import annotations

from itertools import chain, repeat
from typing import Any

from benches.contenders.common import PIPELINE, payloads
from benches.turns import Run, Target

#: The value of a field `ts`, which each contender sends as it is.
TS = "2026-04-14T12:00:00Z"


def mappings(target: Target, fields: int) -> list[dict[str, Any]]:
    """Return `target.batch` mappings with two fields, a payload and a time, or with six."""
    if fields == 2:
        return [{"payload": payload, "ts": TS} for payload in payloads(target)]
    return [
        {
            "order_id": 10_000_000 + 7 * number,
            "weight": number * 0.37 + 0.01,
            "customer": f"customer-{number:04d}",
            "status": "shipped",
            "ordered_at": TS,
            "note": b"leave it with the neighbours",
        }
        for number in range(target.batch)
    ]


def produce(target: Target, fields: int) -> Run:
    """`Dispatcher.produce(fields=…)`, `poll()` after each batch."""
    from benches.contenders.headrace_ import endpoint

    from headrace import Dispatcher

    rows = mappings(target, fields)

    def run() -> int:
        delivered = 0
        with Dispatcher(endpoint(target), ts_field=None) as dispatcher:
            for _ in repeat(None, target.rows // target.batch):
                for row in rows:
                    dispatcher.produce(fields=row)
                delivered += dispatcher.poll().delivered
            return delivered + dispatcher.flush().raise_for_failures().delivered

    return run


def xadd(target: Target, fields: int) -> Run:
    """redis-py with hiredis: pipelines of 1,000 `xadd`."""
    import redis
    from redis.utils import HIREDIS_AVAILABLE

    if not HIREDIS_AVAILABLE:
        raise ImportError("this redis-py has no use for the hiredis that is installed")
    rows = mappings(target, fields)
    parts = [rows[at : at + PIPELINE] for at in range(0, len(rows), PIPELINE)]

    def run() -> int:
        stored = 0
        with redis.Redis(host=target.host, port=target.port) as client:
            for part in chain.from_iterable(repeat(parts, target.rows // target.batch)):
                pipeline = client.pipeline(transaction=False)
                for row in part:
                    pipeline.xadd(target.stream_key, row, maxlen=target.maxlen, approximate=True)
                stored += len(pipeline.execute())
        return stored

    return run


def pack(target: Target, fields: int) -> Run:
    """`hiredis.pack_command` alone: nothing is sent, and the bytes are dropped."""
    import hiredis

    head = ("XADD", target.stream_key, "MAXLEN", "~", target.maxlen, "*")
    rows = mappings(target, fields)

    def run() -> int:
        packed = 0
        for _ in repeat(None, target.rows // target.batch):
            for row in rows:
                arguments: Any = (*head, *chain.from_iterable(row.items()))
                hiredis.pack_command(arguments)  # its stub knows tuples of one argument only
            packed += len(rows)
        return packed

    return run
