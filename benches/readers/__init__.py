"""Those who read: each reads the entries of one stream, in their order, in its own way.

One file each. Only a worker imports them; the driver knows this list alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benches.turns import Contender

_HERE = "benches.readers"
#: Entries of a page, for those that choose it themselves.
PAGE = 1_000

#: Nothing is parsed: the requests and the sizes of the replies are known.
FLOOR = Contender("floor: bytes thrown away", f"{_HERE}.rust:prepare", {"by": "bytes"})
#: The default columns: all fields of an entry in one.
READER = Contender("headrace Reader", f"{_HERE}.headrace_:prepare")
#: A column for each field, and one for the entry IDs: what the others in Python make.
READER_FIELDS = Contender("headrace Reader, fields=", f"{_HERE}.headrace_:prepare", {"fields": ()})
#: A page has at most the rows of a batch.
READER_1000 = Contender("headrace Reader, batch_rows=1_000", f"{_HERE}.headrace_:prepare", {"batch_rows": PAGE})
BY_HAND = Contender("hiredis by hand, to pyarrow", f"{_HERE}.hiredis_by_hand:prepare", {"fields": ()}, max_rows=200_000)
REDIS_PY = Contender("redis-py with hiredis, to pyarrow", f"{_HERE}.redis_py:prepare", {"fields": ()}, max_rows=100_000)
REDIS_RS = Contender("redis-rs, lists of fields", f"{_HERE}.rust:prepare", {"by": "entries"})
REDIS_RS_VALUES = Contender("redis-rs, its Value", f"{_HERE}.rust:prepare", {"by": "values"})

OURS = (READER, READER_FIELDS)
OTHERS = (BY_HAND, REDIS_PY, REDIS_RS, REDIS_RS_VALUES)
READERS = (FLOOR, *OURS, *OTHERS)


def with_fields(contender: Contender, fields: Sequence[str]) -> Contender:
    """The contender for entries with these fields, if it makes columns of them."""
    if "fields" not in contender.options:
        return contender
    return replace(contender, options={**contender.options, "fields": list(fields)})
