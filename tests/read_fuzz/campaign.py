"""Tables that are written, read and compared."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import redis

from headrace import Dispatcher, Endpoint, HeadraceError, Reader
from headrace.testing import LocalServer

from .compare import difference
from .layouts import LAYOUTS, Layout
from .tables import random_table


class Campaign:
    """A server, and one stream per layout."""

    def __init__(self, server: LocalServer) -> None:
        self.counts: Counter[str] = Counter()
        self._stack = contextlib.ExitStack()
        self._client: Any = self._stack.enter_context(redis.Redis(unix_socket_path=server.unix_socket))
        self._dispatchers = {}
        for layout in LAYOUTS:
            endpoint = Endpoint(unix_socket=server.unix_socket, stream_key=layout.name)
            self._dispatchers[layout.name] = self._stack.enter_context(Dispatcher(endpoint, ts_field="\x01ts"))

    def __enter__(self) -> Campaign:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, seed: int, number: int) -> str | None:
        """Send a table of this number through each layout. Returns what did not come back as it was."""
        table = random_table(seed, number)
        chance = random.Random(f"{seed} {number} layouts")
        for layout in LAYOUTS:
            part = layout.part(table)
            if not part.num_columns:
                continue
            options = layout.written(chance, part)
            try:
                read = self._round_trip(layout, part, options, chance)
            except (HeadraceError, pa.ArrowException) as error:
                return f"{layout.name} {options}, {part.schema}: {error!r}"
            self.counts[f"tables by {layout.name}"] += 1
            self.counts["values"] += part.num_rows * part.num_columns
            if read.schema != part.schema:
                return f"{layout.name}: the schema is {read.schema}, not {part.schema}"
            for name in part.column_names:
                if found := difference(read[name], part[name], name, layout.is_cut):
                    return f"{layout.name} {options}: {found}"
        return None

    def _round_trip(self, layout: Layout, table: pa.Table, options: dict[str, Any], chance: random.Random) -> pa.Table:
        dispatcher = self._dispatchers[layout.name]
        reading: dict[str, Any] = {"batch_rows": chance.choice([1, 5, 8_192]), "unpack": layout.unpack}
        try:
            dispatcher.produce_batch(table, **options)
            dispatcher.flush().raise_for_failures()
            with Reader(dispatcher.endpoint, end="latest", schema=table.schema, **reading) as reader:
                return pa.table(reader)
        finally:
            self._client.unlink(layout.name)


def run(
    server: LocalServer, seed: int, first: int, tables: int, tell: Callable[[int], object] = lambda _: None
) -> tuple[Counter[str], tuple[int, str] | None]:
    """Do these tables, up to the first that does not come back: its number, and what differs."""
    with Campaign(server) as campaign:
        for number in range(first, first + tables):
            if finding := campaign.run(seed, number):
                return campaign.counts, (number, finding)
            tell(number + 1 - first)
        return campaign.counts, None
