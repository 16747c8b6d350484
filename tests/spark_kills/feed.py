"""The stream that a query reads: filled round by round, and trimmed where the query is to miss rows, and where not."""

from __future__ import annotations

import bisect
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import redis

from headrace.testing import LocalServer

from .plan import Plan
from .rows import line

ROWS_KEY = "rows"
#: Milliseconds of the first entry.
FIRST_MS = 1_795_324_724_029
#: Entries that share a millisecond.
PER_MS = 7

EntryId = tuple[int, int]


class Feed:
    """The rows of a plan as entries; those of a file come in one round.

    Args:
        plan: What there is, and what of it is trimmed.
        server: It has the stream.
        checkpoint: The folder of the query's checkpoint.
    """

    def __init__(self, plan: Plan, server: LocalServer, checkpoint: Path) -> None:
        self._plan = plan
        self._server = server
        self._checkpoint = checkpoint
        self._round = 0

    @property
    def trimmed(self) -> dict[int, int]:
        """Of each round's rows so far, how many were trimmed before the query could read them."""
        return dict(enumerate(self._plan.losses[: self._round]))

    def next_round(self) -> bool:
        """Add the rows of the next round, and trim what it loses; false behind the last one.

        The query must have read everything, and must not run: then the number of rows that it misses is certain.
        """
        rows, number = self._plan.rows, self._round
        if number == rows.files:
            return False
        with self._client() as client:
            for first in range(0, rows.rows_per_file, 1_000):
                pipeline = client.pipeline(transaction=False)
                for row in range(first, min(first + 1_000, rows.rows_per_file)):
                    pipeline.xadd(ROWS_KEY, {"payload": line(number, row)}, id=_text(self._id(number, row)))
                pipeline.execute()
            if loss := self._plan.losses[number]:
                client.xtrim(ROWS_KEY, minid=_text(self._id(number, loss)), approximate=False)
        self._round += 1
        return True

    def trim_committed(self) -> int:
        """Trim what the query has committed, which it does not need again. Returns the number of entries."""
        ends = self._ends()
        committed = [batch for batch in ends if (self._checkpoint / "commits" / str(batch)).exists()]
        if not committed:
            return 0
        ms, seq = ends[max(committed)]
        with self._client() as client:
            return cast("int", client.xtrim(ROWS_KEY, minid=f"{ms}-{seq + 1}", approximate=False))

    def is_read(self) -> bool:
        """Whether the newest micro-batch ends with the newest entry. Spark 4.0 and 4.1 may end before."""
        last = self._id(self._round - 1, self._plan.rows.rows_per_file - 1)
        return max(self._ends().values(), default=(0, 0)) >= last

    def reported(self) -> int:
        """How many entries the query counted as trimmed before it read them."""
        offsets = self._offsets()
        return int(offsets[max(offsets)]["lost"]) if offsets else 0

    def place(self) -> Callable[[int, int], tuple[int, int]]:
        """The micro-batch of a row, and the number of its partition among all partitions, as the checkpoint says."""
        ends = [end for _, end in sorted(self._ends().items())]
        splits = (split[0] for offset in self._offsets().values() for split in offset.get("splits", ()))
        # A partition begins with a split, or behind the end of a micro-batch.
        begins = sorted({*map(_parse, splits), *((ms, seq + 1) for ms, seq in ends)})

        def place(file: int, number: int) -> tuple[int, int]:
            entry = self._id(file, number)
            return bisect.bisect_left(ends, entry), bisect.bisect_right(begins, entry)

        return place

    def _client(self) -> redis.Redis:
        return redis.Redis(unix_socket_path=self._server.unix_socket, protocol=2)

    def _id(self, file: int, number: int) -> EntryId:
        ms, seq = divmod(file * self._plan.rows.rows_per_file + number, PER_MS)
        return FIRST_MS + ms, seq

    def _offsets(self) -> dict[int, dict[str, Any]]:
        """The offset of each micro-batch."""
        offsets = {}
        for path in (self._checkpoint / "offsets").glob("[0-9]*"):
            # A version, what Spark notes of the micro-batch, and the offset of each source.
            version, _, offset = itertools.islice(path.read_text().splitlines(), 3)
            assert version == "v1", path
            offsets[int(path.name)] = json.loads(offset)["streams"][ROWS_KEY]
        return offsets

    def _ends(self) -> dict[int, EntryId]:
        return {batch: _parse(offset["id"]) for batch, offset in self._offsets().items()}


def _text(entry: EntryId) -> str:
    return f"{entry[0]}-{entry[1]}"


def _parse(text: str) -> EntryId:
    ms, _, seq = text.partition("-")
    return int(ms), int(seq)
