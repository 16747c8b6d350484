"""Streams that are filled before they are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from benches.contenders.headrace_ import produce_batch, produce_typed
from benches.prepared_bytes import TYPED
from benches.servers import ServerWatch
from benches.turns import Target
from benches.worker import WARM_UP

#: The fields of an entry, by their count.
FIELDS = {2: ("payload", "ts"), 6: TYPED}


class FilledWatch(ServerWatch):
    """A `Watch` that keeps the streams: the one that is read, and that of the warm-up."""

    def fill(self, target: Target, fields: int) -> None:
        """Make both: `target.rows` entries with this number of fields, unless they exist."""
        if self._client.xlen(target.stream_key) != target.rows:
            self._client.delete(target.stream_key)
            append(target, fields)
        self._client.delete(WARM_UP)  # it may have other fields
        append(replace(target, stream_key=WARM_UP, rows=target.batch), fields)

    def fill_once(self, target: Target, write: Callable[[], object]) -> None:
        """Let `write` make the stream that is read, unless it exists."""
        if not self._client.exists(target.stream_key):
            write()

    def borders(self, key: str, rows: int, parts: int) -> list[str]:
        """Return the IDs where equal parts of the first rows begin, and the ID after the last row."""
        entries: Any = self._client.xrange(key, count=rows)
        found = [entry_id.decode() for entry_id, _ in entries]
        ms, _, seq = found[-1].partition("-")
        return [*(found[rows * part // parts] for part in range(parts)), f"{ms}-{int(seq) + 1}"]

    def fresh(self) -> None:
        self._client.config_resetstat()


def append(target: Target, fields: int) -> None:
    """Append the entries that most benchmarks write, with two fields, or those with six typed values."""
    options = {"maxlen": None}
    if FIELDS[fields] is TYPED:
        produce_typed(target, endpoint_options=options, dispatcher_options={"ts_field": None})()
    else:
        produce_batch(target, endpoint_options=options)()
