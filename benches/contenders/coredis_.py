"""coredis, an asyncio client: pipelines of 1,000 XADD, which it sends at the end of each block."""

from __future__ import annotations

import asyncio

import coredis
from benches.contenders.common import SILENCE, now, pipelines
from benches.turns import Run, Target
from coredis import PureToken


def prepare(target: Target) -> Run:
    parts = pipelines(target)

    async def run() -> int:
        stored = 0
        async with coredis.Redis(host=target.host, port=target.port, stream_timeout=SILENCE) as client:
            for part in parts:
                ts = now()
                async with client.pipeline(transaction=False) as pipeline:
                    entry_ids = [
                        pipeline.xadd(
                            target.stream_key,
                            {"payload": payload, "ts": ts},
                            trim_strategy=PureToken.MAXLEN,
                            trim_operator=PureToken.APPROXIMATELY,
                            threshold=target.maxlen,
                        )
                        for payload in part
                    ]
                stored += len(entry_ids)
        return stored

    return lambda: asyncio.run(run())
