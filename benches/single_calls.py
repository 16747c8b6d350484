"""One message, one reply: the duration of a call on an open connection, in one thread or in several."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from threading import Barrier
from time import perf_counter_ns
from typing import Any

from benches.contenders.common import now, payloads
from benches.turns import Done, Figures, Run, Target

#: Calls before the measured ones, to warm up the connection, the caches and the branch prediction.
WARM_UP_CALLS = 1_000


def dispatch(target: Target, threads: int = 1) -> Run:
    """`Dispatcher.dispatch`: all threads share the dispatcher, and its connection."""
    from benches.contenders.headrace_ import endpoint

    from headrace import Dispatcher

    def run() -> Done:
        with Dispatcher(endpoint(target, {})) as dispatcher:
            return timed(dispatcher.dispatch, target, threads)

    return run


def xadd(target: Target, threads: int = 1, connections: int | None = None) -> Run:
    """`redis.Redis.xadd`, with hiredis. A real caller would format `ts` for each call; here it is constant.

    All threads share the client, which opens a connection for each, or lets them wait for one of `connections`.
    """
    import redis
    from redis.utils import HIREDIS_AVAILABLE

    if not HIREDIS_AVAILABLE:
        raise ImportError("this redis-py has no use for the hiredis that is installed")
    ts = now()
    address: dict[str, Any] = {"host": target.host, "port": target.port}
    if target.unix_socket:
        address = {"unix_socket_path": target.unix_socket}
    elif target.tls_ca_cert:
        address |= {"ssl": True, "ssl_ca_certs": target.tls_ca_cert}
    if connections:
        pool: Any = redis.BlockingConnectionPool  # its stub has no types
        address = {"connection_pool": pool(max_connections=connections, **address)}

    def run() -> Done:
        with redis.Redis(**address) as client:

            def call(payload: bytes) -> object:
                fields: Any = {"payload": payload, "ts": ts}
                return client.xadd(target.stream_key, fields, maxlen=target.maxlen, approximate=True)

            return timed(call, target, threads)

    return run


def timed(call: Callable[[bytes], object], target: Target, threads: int = 1) -> Done:
    """Call it for each row, and return percentiles of the duration."""
    rows = payloads(target)
    begin = Barrier(threads)

    def work(first: int) -> list[int]:
        begin.wait()
        took = []
        for row in range(first, target.rows, threads):
            payload = rows[row % len(rows)]
            start = perf_counter_ns()
            call(payload)
            took.append(perf_counter_ns() - start)
        return after_warm_up(took, threads)

    if threads == 1:
        return Done(target.rows, percentiles(work(0)))
    with ThreadPoolExecutor(threads) as pool:
        return Done(target.rows, percentiles([*chain.from_iterable(pool.map(work, range(threads)))]))


def after_warm_up(took: list[int], threads: int = 1) -> list[int]:
    """Return what one of several threads measured, without its part of the warm-up."""
    return took[WARM_UP_CALLS // threads :] or took


def percentiles(took: list[int]) -> Figures:
    """Return percentiles such as `p50`, in seconds, of durations in nanoseconds."""
    counted = sorted(took)
    return {f"p{percent}": counted[len(counted) * percent // 100] / 1e9 for percent in (50, 99)}
