"""The speed of the lean clients against a server that only counts, so that the server is not the limit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from benches.contenders import BY_HAND, BY_HAND_AHEAD, PRODUCE, PRODUCE_BATCH, PRODUCE_IDS
from benches.counting import CountingServer
from benches.driver import TakeTurn, interleaved
from benches.tables import CLIENT_CPU, RATE, SERVER_CPU, Bench
from benches.turns import ROUNDS, ROWS, Contender

#: A turn of one million takes only a tenth of a second here.
ROWS_OF_LEAN = 10 * ROWS
#: With the window of the other benchmarks, its bytes would not fit into a core's cache, and it would be slower.
FLOOR = Contender("floor: prepared bytes, window of 1,000", "benches.contenders.floor:prepare", {"window": 1_000})
CONTENDERS = (FLOOR, PRODUCE_BATCH, PRODUCE_IDS, PRODUCE, BY_HAND, BY_HAND_AHEAD)
GROUP = "counting server"

BENCH = Bench(
    "ceiling",
    "clients by themselves: the same XADD, against a server that only counts, over TCP on this machine",
    columns=(RATE, CLIENT_CPU, SERVER_CPU),
    ratios=tuple((ours.name, FLOOR.name) for ours in (PRODUCE_BATCH, PRODUCE_IDS, PRODUCE)),
)


@pytest.fixture(scope="module")
def counting_server() -> Iterator[CountingServer]:
    with CountingServer() as server:
        yield server


@pytest.mark.parametrize(("number", "group", "contender"), interleaved([GROUP], CONTENDERS, rounds=ROUNDS))
def test_ceiling(
    number: int, group: str, contender: Contender, counting_server: CountingServer, take_turn: TakeTurn
) -> None:
    rows = ROWS if contender in (BY_HAND, BY_HAND_AHEAD) else ROWS_OF_LEAN
    target = counting_server.target(rows)
    take_turn(BENCH, contender, target, group=group, number=number, watch=counting_server)
