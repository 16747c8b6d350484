"""Messages with fields: `produce(fields=…)` beside redis-py's pipeline, and beside the encoding alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import redis
from benches.contenders.fields import mappings
from benches.driver import TakeTurn, interleaved
from benches.servers import ServerWatch, newest_program, title
from benches.tables import CLIENT_CPU, RATE, SERVER_CPU, Bench
from benches.turns import Contender, Target

from headrace.testing import LocalServer

_HERE = "benches.contenders.fields"

PRODUCE = Contender("headrace produce(fields=)", f"{_HERE}:produce")
XADD = Contender("redis-py with hiredis, pipeline.xadd", f"{_HERE}:xadd", max_rows=100_000)
PACK = Contender("hiredis.pack_command alone", f"{_HERE}:pack")
FIELDS = (2, 6)
#: The number of entries that are compared with what was sent.
COMPARED = 1_000

BENCH = Bench(
    "fields",
    f"messages with fields: XADD MAXLEN ~ 100,000, one mapping each, over TCP into {title(newest_program())}",
    columns=(RATE, CLIENT_CPU, SERVER_CPU),
    ratios=((PRODUCE.name, XADD.name), (PRODUCE.name, PACK.name)),
    flat="fields",
)


@pytest.mark.parametrize(
    ("number", "fields", "contender"), interleaved(FIELDS, (PRODUCE, XADD, PACK), "{} fields".format)
)
def test_fields(
    number: int,
    fields: int,
    contender: Contender,
    server_of: Callable[..., LocalServer],
    take_turn: TakeTurn,
) -> None:
    server = server_of(newest_program())
    target = Target.at(server, contender.rows())
    timed = replace(contender, options={"fields": fields})
    if contender is PACK:
        take_turn(BENCH, timed, target, group=str(fields), number=number)
        return
    with ServerWatch(server) as watch:
        check = partial(compare, server, target, fields) if number == 1 else None
        take_turn(BENCH, timed, target, group=str(fields), number=number, watch=watch, check=check)


def compare(server: LocalServer, target: Target, fields: int) -> None:
    """Compare the newest entries of the stream with the last mappings."""
    with redis.Redis(unix_socket_path=server.unix_socket, protocol=2) as client:
        newest: Any = client.xrevrange(target.stream_key, count=COMPARED)
        sent = mappings(target, fields)[: -COMPARED - 1 : -1]
        assert [entry for _, entry in newest] == [{name.encode(): stored(row[name]) for name in row} for row in sent]


def stored(value: bytes | str | float) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
