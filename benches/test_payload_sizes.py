"""Payloads from 16 bytes to 1 MiB: the cost per command and the cost per byte."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from benches.contenders import FLOOR, PRODUCE_BATCH
from benches.driver import TakeTurn, interleaved
from benches.servers import ServerWatch, newest_program, title
from benches.tables import CLIENT_CPU, RATE, SERVER_CPU, Bench, Column
from benches.turns import ROWS, Contender, Target, Turn

from headrace.testing import LocalServer

KIB = 1024
SIZES = (16, 120, KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, KIB * KIB)
#: Maximum bytes of payload in a turn with the default `HEADRACE_BENCH_ROWS`.
TURN_BYTES = 200_000_000 * ROWS // 1_000_000
#: Maximum bytes of payload in a record batch.
BATCH_BYTES = 16 * KIB * KIB

BENCH = Bench(
    "payload_sizes",
    f"payloads of every size: XADD MAXLEN ~ 100,000 with payload and ts, over TCP into {title(newest_program())}",
    columns=(
        RATE,
        Column("payload, MB/s", lambda turn: size_of(turn) * turn.rows / turn.figures["seconds"] / 1e6, ",.0f"),
        CLIENT_CPU,
        SERVER_CPU,
    ),
    ratios=((PRODUCE_BATCH.name, FLOOR.name),),
    flat="payload",
)


def size_of(turn: Turn) -> int:
    """Return the size after which a group is named."""
    return next(size for size in SIZES if text(size) == turn.group)


def text(size: int) -> str:
    """Format as `120 B`, `64 KiB`, `1 MiB`."""
    for unit, name in ((KIB * KIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


@pytest.mark.parametrize(("number", "size", "contender"), interleaved(SIZES, (FLOOR, PRODUCE_BATCH), text))
def test_payload_sizes(
    number: int,
    size: int,
    contender: Contender,
    server_of: Callable[..., LocalServer],
    take_turn: TakeTurn,
) -> None:
    server = server_of(newest_program())
    batch = min(10_000, BATCH_BYTES // size)
    batches = max(1, min(TURN_BYTES // size, ROWS) // batch)
    target = Target.at(server, batches * batch, payload_bytes=size, batch=batch)
    with ServerWatch(server) as watch:
        take_turn(BENCH, contender, target, group=text(size), number=number, watch=watch)
