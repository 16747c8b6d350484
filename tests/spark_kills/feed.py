"""The stream that a query reads: filled in rounds, and trimmed both where the query must miss rows and where not."""

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
#: The milliseconds in the ID of the first entry.
FIRST_MS = 1_795_324_724_029
#: The number of entries that share a millisecond.
PER_MS = 7

EntryId = tuple[int, int]


class Feed:
    """The rows of a plan as entries; all rows of a file are added in one round.

    Args:
        plan: The rows, and how many of them are trimmed.
        server: The server with the stream.
        checkpoint: The folder of the query's checkpoint.
    """

    def __init__(self, plan: Plan, server: LocalServer, checkpoint: Path) -> None:
        self._plan = plan
        self._server = server
        self._checkpoint = checkpoint
        self._round = 0

    @property
    def trimmed(self) -> dict[int, int]:
        """For each round so far, how many of its rows were trimmed before the query could read them."""
        return dict(enumerate(self._plan.losses[: self._round]))

    def next_round(self) -> bool:
        """Add the rows of the next round, and trim those that it loses; false after the last round.

        The query must have read everything and must not be running: then the number of rows that it misses is certain.
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
        """Trim entries that the query has committed and does not need again. Returns their number."""
        ends = self._ends()
        committed = [batch for batch in ends if (self._checkpoint / "commits" / str(batch)).exists()]
        if not committed:
            return 0
        ms, seq = ends[max(committed)]
        with self._client() as client:
            return cast("int", client.xtrim(ROWS_KEY, minid=f"{ms}-{seq + 1}", approximate=False))

    def is_read(self) -> bool:
        """Whether the newest micro-batch ends with the newest entry. With Spark 4.0 and 4.1 it may end before it."""
        last = self._id(self._round - 1, self._plan.rows.rows_per_file - 1)
        return max(self._ends().values(), default=(0, 0)) >= last

    def reported(self) -> int:
        """The number of entries that the query counted as trimmed before it read them."""
        offsets = self._offsets()
        return int(offsets[max(offsets)]["lost"]) if offsets else 0

    def place(self) -> Callable[[int, int], tuple[int, int]]:
        """A function from a row to its micro-batch and its partition's number among all, from the checkpoint."""
        ends = [end for _, end in sorted(self._ends().items())]
        splits = (split[0] for offset in self._offsets().values() for split in offset.get("splits", ()))
        # A partition starts with a split, or after the end of a micro-batch.
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
            # A version, Spark's record of the micro-batch, and the offset of each source.
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
