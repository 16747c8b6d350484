"""Rows in entries: one row each, ten rows each, a record batch each; read back and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, repeat
from typing import Any

import pyarrow as pa
import pytest
import redis
from benches.contenders import FLOOR, PRODUCE_BATCH, TRIM_EVERY_100
from benches.contenders.common import payloads
from benches.driver import TakeTurn, interleaved
from benches.servers import ServerWatch, programs, title
from benches.tables import CLIENT_CPU, ROW_RATE, Bench, Column
from benches.turns import Contender, Target

import headrace
from headrace.testing import LocalServer
from support import Program

#: An entry's fields, as redis-py reads them.
Fields = Mapping[bytes, bytes]
#: Entries that are read at a time.
PAGE = 1_000


@dataclass(frozen=True)
class Layout:
    """How a contender packs rows, and how an entry is read: `unpack` returns its payloads."""

    contender: Contender
    rows_per_entry: int
    unpack: Callable[[Fields], list[bytes]]


def one_row(fields: Fields) -> list[bytes]:
    return [fields[b"payload"]]


def ten_rows(fields: Fields) -> list[bytes]:
    return headrace.unpack(fields)


def record_batch(fields: Fields) -> list[bytes]:
    rows: list[bytes] = pa.table(headrace.unpack_arrow(fields))["payload"].to_pylist()
    return rows


def batches(name: str, **options: object) -> Contender:
    """Return headrace's `produce_batch` with these options."""
    return Contender(name, "benches.contenders.headrace_:produce_batch", {"batch_options": options})


TEN = batches("headrace rows_per_entry=10", payload="payload", rows_per_entry=10)
ARROW = batches("headrace arrow_ipc", arrow_ipc=True, fields=["payload"])
LAYOUTS = (
    Layout(FLOOR, 1, one_row),
    Layout(PRODUCE_BATCH, 1, one_row),
    Layout(TRIM_EVERY_100, 1, one_row),
    Layout(TEN, 10, ten_rows),
    Layout(ARROW, 10_000, record_batch),
    *(
        Layout(
            batches(f"headrace arrow_ipc, {codec}", arrow_ipc=True, fields=["payload"], codec=codec),
            10_000,
            record_batch,
        )
        for codec in ("lz4", "zstd")
    ),
)
LAYOUT_OF = {layout.contender.name: layout for layout in LAYOUTS}

BENCH = Bench(
    "layouts",
    "rows in entries: rows of 120 bytes, XADD MAXLEN ~ 100,000 (entries), over TCP on this machine",
    columns=(ROW_RATE, CLIENT_CPU, Column.per_row("server CPU, µs per row", "server_cpu", 1e6)),
    ratios=(
        (TRIM_EVERY_100.name, PRODUCE_BATCH.name),
        (TEN.name, TRIM_EVERY_100.name),
        (ARROW.name, PRODUCE_BATCH.name),
    ),
    compared=(ROW_RATE, CLIENT_CPU),
)


@pytest.mark.parametrize(
    ("number", "program", "contender"),
    interleaved(programs()[:2], [layout.contender for layout in LAYOUTS], title),
)
def test_layouts(
    number: int,
    program: Program,
    contender: Contender,
    server_of: Callable[[Program], LocalServer],
    take_turn: TakeTurn,
) -> None:
    server, layout = server_of(program), LAYOUT_OF[contender.name]
    target = Target.at(server, contender.rows())
    with ServerWatch(server) as watch:
        take_turn(
            BENCH,
            contender,
            target,
            group=title(program),
            number=number,
            watch=watch,
            entries=target.rows // layout.rows_per_entry,
            # What is stored does not change from one round to the next.
            check=partial(check, server, target, layout) if number == 1 else None,
        )


def check(server: LocalServer, target: Target, layout: Layout) -> None:
    """Compare what remains in the stream with the last rows that were sent."""
    with redis.Redis(unix_socket_path=server.unix_socket, protocol=2) as client:
        kept = int(client.xlen(target.stream_key))
        rows = chain.from_iterable(map(layout.unpack, entries(client, target.stream_key)))
        sent = chain.from_iterable(repeat(payloads(target), target.rows // target.batch))
        count = kept * layout.rows_per_entry
        assert count >= min(target.rows, target.maxlen * layout.rows_per_entry)
        for read, expected in zip(rows, islice(sent, target.rows - count, None), strict=True):
            assert read == expected


def entries(client: redis.Redis, stream_key: str) -> Iterator[Fields]:
    after = "-"
    while page := entries_from(client, stream_key, after):
        yield from (fields for _, fields in page)
        after = f"({page[-1][0].decode()}"


def entries_from(client: redis.Redis, stream_key: str, first: str) -> list[tuple[bytes, Fields]]:
    page: Any = client.xrange(stream_key, min=first, count=PAGE)
    return [(entry_id, fields) for entry_id, fields in page]
