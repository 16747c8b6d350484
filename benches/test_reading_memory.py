"""The memory of a reader and of its server: with five times the entries, and where entries become much larger."""

from __future__ import annotations

import os
from typing import Any

import pytest
from benches.driver import TakeTurn
from benches.filled import FilledWatch, append
from benches.readers import READER
from benches.servers import newest_program
from benches.tables import MEANINGFUL_ROWS, RATE, Bench, Column
from benches.turns import ROWS, Figures, Target

from headrace.testing import LocalServer

#: With 20 the server takes 2 GB.
TIMES = int(os.environ.get("HEADRACE_BENCH_TIMES", "5"))
#: How much more the peak of the process may be.
TOLERANCE = 1.1

BENCH = Bench(
    "reading_memory",
    "memory: a reader of many entries, and of entries that become larger",
    columns=(
        Column.figure("peak memory of the process, MB", "peak_rss", 1e-6, ",.1f"),
        Column.figure("before the first entry, MB", "rss", 1e-6, ",.1f"),
        Column.figure("server's peak above the stream, MB", "server_peak", 1e-6, ",.1f"),
        RATE,
    ),
    compared=(),
    flat="entries",
)

#: The parts of a stream: numbers of entries, and the bytes of their payload.
Parts = tuple[tuple[int, int], ...]
MANY: list[Parts] = [((ROWS, 40),), ((TIMES * ROWS, 40),)]
#: When the first large one comes, the reader has asked for a page of the short ones.
GROWING: Parts = ((100_000, 100), (40, 5_000_000))


class MemoryWatch(FilledWatch):
    """Figures: also `server_peak`, the most memory that the server had in a turn, above what it had before.

    No command resets the peak that a server reports, so it must be a new one.
    """

    _figure = "used_memory"

    def totals(self) -> Figures:
        memory: dict[str, Any] = self._client.info("memory")
        figure, self._figure = self._figure, "used_memory_peak"  # the second call is that after the turn
        return {**super().totals(), "server_peak": float(memory[figure])}


def name_of(parts: Parts) -> str:
    return ", then ".join(f"{rows:,} of {size:,} bytes" for rows, size in parts)


@pytest.fixture(scope="module")
def peaks() -> dict[Parts, float]:
    return {}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("parts", [*MANY, GROWING], ids=name_of)
def test_reading_memory(parts: Parts, take_turn: TakeTurn, peaks: dict[Parts, float]) -> None:
    rows = sum(count for count, _ in parts)
    with LocalServer(newest_program().path, transport="tcp") as server, MemoryWatch(server) as watch:
        for count, size in parts:
            batch = min(count, 10_000) if size < 1_000 else 4
            append(Target.at(server, count, payload_bytes=size, batch=batch), 2)
        target = Target.at(server, rows, batch=20)
        turn = take_turn(BENCH, READER, target, group=name_of(parts), number=1, watch=watch, warm_up=False)
    if "peak_rss" not in turn.figures:
        pytest.skip("the peak memory of a process is available on Linux only")
    peaks[parts] = turn.figures["peak_rss"]
    if parts == MANY[1] and MANY[0] in peaks and ROWS >= MEANINGFUL_ROWS:
        assert peaks[parts] <= TOLERANCE * peaks[MANY[0]], f"{peaks[parts]:,.0f} instead of {peaks[MANY[0]]:,.0f}"
