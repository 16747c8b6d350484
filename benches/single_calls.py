"""One message, one reply: the duration of a call on an open connection."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from benches.contenders.common import now, payloads
from benches.turns import Done, Figures, Run, Target

#: Calls before the measured ones, to warm up the connection, the caches and the branch prediction.
WARM_UP_CALLS = 1_000


def dispatch(target: Target) -> Run:
    """`Dispatcher.dispatch`."""
    from benches.contenders.headrace_ import endpoint

    from headrace import Dispatcher

    def run() -> Done:
        with Dispatcher(endpoint(target, {})) as dispatcher:
            return timed(dispatcher.dispatch, target)

    return run


def xadd(target: Target) -> Run:
    """`redis.Redis.xadd`, with hiredis. A real caller would format `ts` for each call; here it is constant."""
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

    def run() -> Done:
        with redis.Redis(**address) as client:

            def call(payload: bytes) -> object:
                fields: Any = {"payload": payload, "ts": ts}
                return client.xadd(target.stream_key, fields, maxlen=target.maxlen, approximate=True)

            return timed(call, target)

    return run


def timed(call: Callable[[bytes], object], target: Target) -> Done:
    """Call it for each row, and return percentiles of the duration."""
    rows = payloads(target)
    took = []
    for row in range(target.rows):
        payload = rows[row % len(rows)]
        start = perf_counter_ns()
        call(payload)
        took.append(perf_counter_ns() - start)
    return Done(target.rows, percentiles(took))


def percentiles(took: list[int]) -> Figures:
    """Return percentiles such as `p50`, in seconds, of durations in nanoseconds, without those of the warm-up."""
    counted = sorted(took[WARM_UP_CALLS:] or took)
    return {f"p{percent}": counted[len(counted) * percent // 100] / 1e9 for percent in (50, 99)}
