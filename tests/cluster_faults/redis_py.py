"""redis-py's pipeline for clusters, in the place of a dispatcher."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import redis
from redis.cluster import RedisCluster

from headrace.testing import LocalCluster

from .contender import Failed, Report


class RedisPy:
    """What `Load` needs of a dispatcher. The options of the client are its defaults."""

    def __init__(self, cluster: LocalCluster, key: str) -> None:
        self._client: Any = RedisCluster(host="127.0.0.1", port=cluster.owner(key).port or 0)
        self._key = key
        self._rows: list[tuple[str, bytes]] = []

    def produce_batch(self, table: pa.Table, *, payload: str, stream_key: str | None = None) -> None:
        payloads = table[payload].to_pylist()
        keys = table[stream_key].to_pylist() if stream_key else [self._key] * len(payloads)
        self._rows += zip(keys, payloads, strict=True)

    def flush(self) -> Report:
        rows, self._rows = self._rows, []
        pipeline = self._client.pipeline()
        for key, payload in rows:
            pipeline.xadd(key, {"payload": payload})
        try:
            replies = pipeline.execute(raise_on_error=False)
        except (redis.RedisError, OSError) as error:
            replies = [error] * len(rows)
        failed = [Failed(n, type(reply).__name__) for n, reply in enumerate(replies) if isinstance(reply, Exception)]
        return Report(len(rows) - len(failed), failed)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()
