"""redis-py's cluster client: pipelines of 1,000 XADD, with hiredis."""

from __future__ import annotations

from itertools import chain, repeat

from benches.contenders.common import PIPELINE, now, payloads
from benches.contenders.streams import keys_of_rows
from benches.turns import Run, Target
from redis.cluster import RedisCluster
from redis.utils import HIREDIS_AVAILABLE


def prepare(target: Target) -> Run:
    if not HIREDIS_AVAILABLE:
        raise ImportError("this redis-py has no use for the hiredis that is installed")
    rows = list(zip(keys_of_rows(target), payloads(target), strict=True))
    parts = [rows[at : at + PIPELINE] for at in range(0, len(rows), PIPELINE)]

    def run() -> int:
        stored = 0
        with RedisCluster(target.host, target.port) as client:
            for part in chain.from_iterable(repeat(parts, target.rows // target.batch)):
                pipeline = client.pipeline()
                ts = now()
                for key, payload in part:
                    pipeline.xadd(key, {"payload": payload, "ts": ts}, maxlen=target.maxlen, approximate=True)
                stored += len(pipeline.execute())
        return stored

    return run
