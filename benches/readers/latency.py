"""One entry at a time on an idle stream: from XADD in another process to the value in this one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import Any

from benches.single_calls import after_warm_up, percentiles
from benches.turns import Done, Run, Target


def headrace(target: Target) -> Run:
    """The reader with `linger=0`, and the value from a pyarrow column."""
    import pyarrow as pa
    from benches.contenders.headrace_ import endpoint

    from headrace import Reader

    def values(begin: Callable[[], object]) -> Iterator[Any]:
        with Reader(endpoint(target), start="latest", limit=target.rows, linger=0, fields=["payload"]) as reader:
            assert reader.read(timeout=0.1) is None  # it is connected, and knows where to begin
            begin()
            for batch in reader:
                for value in pa.record_batch(batch).column(0):
                    yield value.as_py()

    return lambda: timed(target, values)


def redis_py(target: Target) -> Run:
    """XREAD BLOCK after the last entry ID, with hiredis."""
    import redis

    def values(begin: Callable[[], object]) -> Iterator[Any]:
        with redis.Redis(host=target.host, port=target.port) as client:
            client.ping()
            seen, last = 0, "0"
            begin()
            while seen < target.rows:
                reply: Any = client.xread({target.stream_key: last}, block=5_000)
                ((_, entries),) = reply
                seen += len(entries)
                last = entries[-1][0]
                for _, fields in entries:
                    yield fields[b"payload"]

    return lambda: timed(target, values)


def timed(target: Target, values: Callable[[Callable[[], object]], Iterator[Any]]) -> Done:
    """Measure latency: each value is the time at which its entry was sent, by the clock that all processes share."""
    command = [sys.executable, "-m", "benches.readers.ticker", target.host, str(target.port), target.stream_key]
    with subprocess.Popen([*command, str(target.rows)], stdin=subprocess.PIPE) as ticker:
        assert ticker.stdin is not None
        took = [perf_counter_ns() - int(sent) for sent in values(ticker.stdin.close)]
    return Done(len(took), percentiles(after_warm_up(took)))
