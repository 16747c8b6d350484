"""The same rows read back from each layout: one per entry, and a hundred."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pytest
from benches.contenders.headrace_ import produce_batch, produce_typed
from benches.driver import TakeTurn, interleaved
from benches.filled import FilledWatch
from benches.prepared_bytes import TYPED
from benches.servers import programs, title
from benches.tables import CLIENT_CPU, ROW_RATE, Bench, Column
from benches.turns import Contender, Target

from headrace.testing import LocalServer
from support import Program

MANY = 100


@dataclass(frozen=True)
class Layout:
    """How rows are written, and how they are read."""

    name: str
    written: Mapping[str, object]
    unpack: str | None
    typed: bool = False
    rows_per_entry: int = 1

    @property
    def reader(self) -> Contender:
        return Contender(
            self.name, "benches.readers.headrace_:prepare_rows", {"typed": self.typed, "unpack": self.unpack}
        )


PAYLOAD = Layout("payload, 1 row", {"payload": "payload"}, None)
PAYLOADS = Layout(
    f"payload, {MANY} rows", {"payload": "payload", "rows_per_entry": MANY}, "payload", rows_per_entry=MANY
)
COLUMNS = Layout("six fields, 1 row", {"fields": list(TYPED)}, None, typed=True)
JSON = Layout("JSON, 1 row", {"json": list(TYPED)}, "json", typed=True)
JSONS = Layout(
    f"JSON, {MANY} rows",
    {"json": list(TYPED), "rows_per_entry": MANY},
    "json",
    typed=True,
    rows_per_entry=MANY,
)
ARROW = Layout(
    f"Arrow IPC, {MANY} rows",
    {"arrow_ipc": True, "fields": list(TYPED), "rows_per_entry": MANY},
    "arrow_ipc",
    typed=True,
    rows_per_entry=MANY,
)
LAYOUTS = (PAYLOAD, PAYLOADS, COLUMNS, JSON, JSONS, ARROW)
LAYOUT_OF = {layout.name: layout for layout in LAYOUTS}

BENCH = Bench(
    "reading_layouts",
    "rows out of a Redis stream into typed columns, by layout, over TCP on this machine",
    columns=(ROW_RATE, CLIENT_CPU, Column.per_row("server CPU, µs per row", "server_cpu", 1e6)),
    ratios=((PAYLOADS.name, PAYLOAD.name), (JSONS.name, JSON.name), (ARROW.name, COLUMNS.name)),
    compared=(ROW_RATE, CLIENT_CPU),
)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("number", "program", "contender"), interleaved(programs()[:2], [layout.reader for layout in LAYOUTS], title)
)
def test_reading_layouts(
    number: int,
    program: Program,
    contender: Contender,
    server_of: Callable[[Program], LocalServer],
    take_turn: TakeTurn,
) -> None:
    server, layout = server_of(program), LAYOUT_OF[contender.name]
    target = replace(Target.at(server, contender.rows()), stream_key=contender.name)
    with FilledWatch(server) as watch:
        watch.fill_once(target, lambda: write(layout, target))
        take_turn(
            BENCH,
            contender,
            target,
            group=title(program),
            number=number,
            watch=watch,
            entries=target.rows // layout.rows_per_entry,
            warm_up=False,
        )


def write(layout: Layout, target: Target) -> None:
    produce = produce_typed if layout.typed else produce_batch
    produce(
        target,
        endpoint_options={"maxlen": None},
        dispatcher_options={"ts_field": None},
        batch_options=dict(layout.written),
    )()
