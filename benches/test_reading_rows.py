"""Entries of a Redis stream as Python objects, and rows of typed columns as dicts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from benches.driver import TakeTurn, interleaved
from benches.filled import FIELDS, FilledWatch
from benches.servers import programs, title
from benches.tables import CLIENT_CPU, RATE, ROW_RATE, Bench
from benches.turns import Contender, Target

from headrace.testing import LocalServer
from support import Program

_HERE = "benches.readers.rows"

ENTRIES = Contender("headrace, entry by entry", f"{_HERE}:prepare_entries", {"fields": list(FIELDS[2])})
REDIS_PY = Contender(
    "redis-py with hiredis", f"{_HERE}:prepare_redis_py", {"fields": list(FIELDS[2])}, max_rows=200_000
)
PYLIST = Contender("headrace, to_pylist", f"{_HERE}:prepare_pylist", {"by": "headrace"}, max_rows=200_000)
PYARROW = Contender("pyarrow, to_pylist", f"{_HERE}:prepare_pylist", {"by": "pyarrow"}, max_rows=200_000)

BENCH = Bench(
    "reading_rows",
    "entries out of a Redis stream, one Python object each, and two of their fields",
    columns=(RATE, CLIENT_CPU),
    ratios=((ENTRIES.name, REDIS_PY.name),),
)
PYLISTS = Bench(
    "reading_rows_dicts",
    "rows of six typed columns, in memory, as dicts",
    columns=(ROW_RATE, CLIENT_CPU),
    ratios=((PYLIST.name, PYARROW.name),),
    compared=(ROW_RATE, CLIENT_CPU),
)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("number", "program", "contender"), interleaved(programs()[:1], [ENTRIES, REDIS_PY, PYLIST, PYARROW], title)
)
def test_reading_rows(
    number: int,
    program: Program,
    contender: Contender,
    server_of: Callable[[Program], LocalServer],
    take_turn: TakeTurn,
) -> None:
    server = server_of(program)
    is_typed = contender in (PYLIST, PYARROW)
    fields = 6 if is_typed else 2
    target = replace(Target.at(server, contender.rows()), stream_key=f"fields-{fields}")
    with FilledWatch(server) as watch:
        watch.fill(replace(target, rows=ENTRIES.rows()), fields)
        take_turn(
            PYLISTS if is_typed else BENCH,
            contender,
            target,
            group=title(program),
            number=number,
            watch=watch,
            entries=ENTRIES.rows(),
        )
