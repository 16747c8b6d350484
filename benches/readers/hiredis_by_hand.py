"""The strongest rival in Python: hiredis parses what a plain socket receives, and pyarrow gets each value by position.

It relies on all entries having the same fields in the same order.
"""

from __future__ import annotations

from typing import Any

import hiredis
import pyarrow as pa
from benches.contenders.common import connect, packed
from benches.readers import PAGE
from benches.turns import Run, Target

RECEIVE_BYTES = 256 * 1024


def prepare(target: Target, fields: list[str]) -> Run:
    places = range(1, 2 * len(fields), 2)

    def run() -> int:
        rows, start = 0, b"-"
        reader = hiredis.Reader()
        with connect(target) as connection:
            while rows < target.rows:
                connection.sendall(packed("XRANGE", target.stream_key, start, "+", "COUNT", PAGE))
                page: Any = False
                while (page := reader.gets()) is False:
                    reader.feed(connection.recv(RECEIVE_BYTES))
                if not page:
                    break
                columns = [pa.array([entry[0] for entry in page], pa.binary())]
                columns += [pa.array([entry[1][place] for entry in page], pa.binary()) for place in places]
                rows += pa.RecordBatch.from_arrays(columns, ["entry_id", *fields]).num_rows
                start = b"(" + page[-1][0]
        return rows

    return run
