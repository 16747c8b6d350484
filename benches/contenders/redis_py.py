"""redis-py, the most common client: pipelines of 1,000 XADD, with and without hiredis."""

from __future__ import annotations

from typing import Any

import redis
from benches.contenders.common import now, pipelines
from benches.turns import Run, Target
from redis._parsers import _RESP2Parser
from redis.connection import PythonRespSerializer
from redis.utils import HIREDIS_AVAILABLE


class PlainConnection(redis.Connection):
    """redis-py's connection as it is without hiredis installed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options | {"parser_class": _RESP2Parser})  # type: ignore[no-untyped-call]

        if not isinstance(self._command_packer, PythonRespSerializer):
            raise TypeError("this redis-py still packs with hiredis: it calls its packer by another name")

    def _construct_command_packer(self, packer: object) -> PythonRespSerializer:  # noqa: ARG002
        return PythonRespSerializer(self._buffer_cutoff, self.encoder.encode)


def with_hiredis(target: Target) -> Run:
    if not HIREDIS_AVAILABLE:
        raise ImportError("this redis-py has no use for the hiredis that is installed")
    return prepare(target, redis.Connection)


def without_hiredis(target: Target) -> Run:
    return prepare(target, PlainConnection)


def prepare(target: Target, connection_class: type[redis.Connection]) -> Run:
    parts = pipelines(target)

    def run() -> int:
        pool = redis.ConnectionPool(connection_class=connection_class, host=target.host, port=target.port)
        stored = 0
        with redis.Redis.from_pool(pool) as client:
            for part in parts:
                pipeline = client.pipeline(transaction=False)
                ts = now()
                for payload in part:
                    pipeline.xadd(
                        target.stream_key, {"payload": payload, "ts": ts}, maxlen=target.maxlen, approximate=True
                    )
                stored += len(pipeline.execute())
        return stored

    return run
