"""Reading on an event loop: beside the blocking classes, redis.asyncio and FastStream; and with many consumers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from benches.driver import TakeTurn, interleaved
from benches.filled import FilledWatch
from benches.readers import CONSUMER, READER
from benches.readers.many import keys_of
from benches.servers import ServerWatch, newest_program, title
from benches.tables import RATE, SERVER_CPU, Bench, Column
from benches.turns import ROWS, Contender, Target

from headrace.testing import LocalServer
from support import Program

_HERE = "benches.readers.asynchronous"
LOOPS = ("asyncio", "uvloop")
ASYNC_READER = Contender("headrace AsyncReader", f"{_HERE}:reader")
ASYNC_CONSUMER = Contender("headrace AsyncConsumer", f"{_HERE}:consumer")
REDIS_ASYNCIO = Contender("redis.asyncio with hiredis, XACK, to pyarrow", f"{_HERE}:redis_asyncio", max_rows=100_000)
FASTSTREAM = Contender("FastStream, a batch subscriber", f"{_HERE}:faststream", max_rows=50_000)
CONTENDERS = (READER, ASYNC_READER, CONSUMER, ASYNC_CONSUMER, REDIS_ASYNCIO, FASTSTREAM)

CLIENT_CPU = Column.per_row("client CPU, µs per entry", "client_cpu", 1e6, ",.3f")
BENCH = Bench(
    "async_reading",
    "entries out of a Redis stream on an event loop, over TCP on this machine",
    columns=(RATE, CLIENT_CPU, SERVER_CPU),
    ratios=(
        (ASYNC_READER.name, READER.name),
        (ASYNC_CONSUMER.name, CONSUMER.name),
        (REDIS_ASYNCIO.name, ASYNC_CONSUMER.name),
        (FASTSTREAM.name, ASYNC_CONSUMER.name),
    ),
    compared=(RATE, CLIENT_CPU),
)

STREAMS = 100
#: At 10 a second for each; the first 1,000 are not measured.
ENTRIES = min(10_000, ROWS // 10)
MANY = (
    Contender("headrace AsyncConsumer", "benches.readers.many:headrace", max_rows=ENTRIES),
    Contender("redis.asyncio with hiredis", "benches.readers.many:redis_asyncio", max_rows=ENTRIES),
    Contender("FastStream", "benches.readers.many:faststream", max_rows=ENTRIES),
)
P50 = Column.figure("p50, ms", "p50", 1e3)
P99 = Column.figure("p99, ms", "p99", 1e3)
CONNECTIONS = Column("connections", lambda turn: turn.figures["connections"], ",.0f")
MANY_CPU = Column.per_row("client CPU, µs per entry", "client_cpu", 1e6, ",.1f")
MANY_BENCH = Bench(
    "async_many",
    f"{STREAMS} consumers on one event loop, each of a stream with 10 entries a second: from XADD to the handler",
    columns=(P50, P99, MANY_CPU, CONNECTIONS),
    ratios=tuple((MANY[0].name, other.name) for other in MANY[1:]),
    compared=(P50, P99, MANY_CPU),
)


class ManyWatch(ServerWatch):
    """The streams of many consumers."""

    def entries_added(self, stream_key: str) -> int:
        keys = keys_of(stream_key, STREAMS)
        return sum(ServerWatch.entries_added(self, key) for key in keys)


def name_of(loop: str) -> str:
    return f"{title(newest_program())}, {loop}"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("number", "loop", "contender"), interleaved(LOOPS, CONTENDERS, name_of))
def test_async_reading(
    number: int,
    loop: str,
    contender: Contender,
    server_of: Callable[[Program], LocalServer],
    take_turn: TakeTurn,
) -> None:
    server = server_of(newest_program())
    with FilledWatch(server) as watch:
        target = replace(Target.at(server, ROWS), stream_key="fields-2")
        watch.fill(target, 2)
        blocks = contender in (READER, CONSUMER)
        timed = contender if blocks else replace(contender, options={"loop": loop})
        take_turn(
            BENCH,
            timed,
            replace(target, rows=contender.rows()),
            group=name_of(loop),
            number=number,
            watch=watch,
            entries=ROWS,
        )


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("number", "loop", "contender"), interleaved(LOOPS, MANY, name_of))
def test_async_many(
    number: int,
    loop: str,
    contender: Contender,
    server_of: Callable[[Program], LocalServer],
    take_turn: TakeTurn,
) -> None:
    server = server_of(newest_program())
    with ManyWatch(server) as watch:
        target = replace(Target.at(server, contender.rows(), batch=1_000), stream_key="many")
        timed = replace(contender, options={"streams": STREAMS, "loop": loop})
        take_turn(MANY_BENCH, timed, target, group=name_of(loop), number=number, watch=watch, warm_up=False)
