"""The window that a round trip needs: the same rows over lines with several round trips and windows.

The reference is the floor without a window on the same line: prepared bytes, as fast as the line and the server accept
them. The delay proxy runs on the same machine, so all contenders leave it a share of the cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from benches.delay import DelayProxy
from benches.driver import TakeTurn, interleaved
from benches.servers import ServerWatch, newest_program, title
from benches.tables import CLIENT_CPU, RATE, SERVER_CPU, Bench, Column
from benches.turns import Contender, Target

from headrace.testing import LocalServer
from support import Program

ROUND_TRIPS_MS = (0.0, 0.25, 1.0, 5.0)
WINDOWS = (256, 1_024, 4_096, 8_192, 16_384)
#: More bytes than any window of `WINDOWS` reaches.
AMPLE = 64 * 2**20
#: Bytes that a dispatcher may hold besides its window of 2 MiB: buffers, a report, the arrays of a record batch.
MEMORY = 16 * 2**20

_PRODUCE_BATCH = "benches.contenders.headrace_:produce_batch"
FLOOR = Contender("floor: prepared bytes, no window", "benches.prepared_bytes:prepare", max_rows=500_000)
DEFAULT = Contender("headrace, default window", _PRODUCE_BATCH, max_rows=500_000)
OTHERS = [
    Contender(
        f"headrace, window of {entries:,}",
        _PRODUCE_BATCH,
        {"dispatcher_options": {"window_max_entries": entries, "window_max_bytes": AMPLE}},
        # Few enough that a turn lasts seconds rather than minutes.
        max_rows=500_000 if entries >= 4_096 else 100_000,
    )
    for entries in WINDOWS
]

MEMORY_GROWTH = Column(
    "peak memory over the start, MB",
    lambda turn: (turn.figures["peak_rss"] - turn.figures["rss"]) / 1e6 if "rss" in turn.figures else None,
    ",.1f",
)
BENCH = Bench(
    "round_trips",
    "windows and round trips: XADD MAXLEN ~ 100,000 with payload (120 bytes) and ts, over a line that delays",
    columns=(RATE, CLIENT_CPU, SERVER_CPU, MEMORY_GROWTH),
    ratios=tuple((ours.name, FLOOR.name) for ours in (DEFAULT, *OTHERS)),
)

ProxyOf = Callable[[Program, float], DelayProxy]


@pytest.fixture(scope="module")
def proxy_of(server_of: Callable[[Program], LocalServer]) -> Iterator[ProxyOf]:
    """Return the line to a server with a round trip in milliseconds; it is idle while another one is measured."""
    with ExitStack() as stack:
        proxies: dict[tuple[Program, float], DelayProxy] = {}

        def proxy_of(program: Program, round_trip_ms: float) -> DelayProxy:
            key = program, round_trip_ms
            if key not in proxies:
                proxies[key] = stack.enter_context(DelayProxy(server_of(program), round_trip_ms / 1000))
            return proxies[key]

        yield proxy_of


def name_of(round_trip_ms: float) -> str:
    return f"round trip {round_trip_ms:g} ms"


@pytest.mark.parametrize(
    ("number", "round_trip_ms", "contender"), interleaved(ROUND_TRIPS_MS, [FLOOR, DEFAULT, *OTHERS], name_of)
)
def test_round_trips(
    number: int,
    round_trip_ms: float,
    contender: Contender,
    server_of: Callable[[Program], LocalServer],
    proxy_of: ProxyOf,
    take_turn: TakeTurn,
) -> None:
    program = newest_program()
    with ServerWatch(server_of(program)) as watch:
        target = Target(contender.rows(), "127.0.0.1", proxy_of(program, round_trip_ms).port)
        group = f"{title(program)}, {name_of(round_trip_ms)}"
        turn = take_turn(BENCH, contender, target, group=group, number=number, watch=watch)
    if contender is DEFAULT and "rss" in turn.figures:
        growth = turn.figures["peak_rss"] - turn.figures["rss"]
        assert growth < MEMORY, f"memory grew by {growth:,.0f} bytes"
