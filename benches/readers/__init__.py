"""The readers: each reads the entries of one stream, in order, in its own way.

Each has one file. Only a worker imports them; the driver knows only this list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benches.turns import Contender

_HERE = "benches.readers"
#: Entries per page, for readers that choose it themselves.
PAGE = 1_000

#: Nothing is parsed: the requests and the sizes of the replies are known.
FLOOR = Contender("floor: bytes thrown away", f"{_HERE}.rust:prepare", {"by": "bytes"})
#: The default columns: all fields of an entry in one.
READER = Contender("headrace Reader", f"{_HERE}.headrace_:prepare")
#: One column per field, and one for the entry IDs: what the other readers in Python make.
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

#: The same floor through a group, with each page acknowledged before the next request.
FLOOR_SCRIPT = Contender("floor: XREADGROUP and headrace's script", f"{_HERE}.rust:prepare", {"by": "script"})
FLOOR_XACK = Contender("floor: XREADGROUP and XACK", f"{_HERE}.rust:prepare", {"by": "xack"})
CONSUMER = Contender("headrace Consumer", f"{_HERE}.consumer:prepare")
CONSUMER_FIELDS = Contender("headrace Consumer, fields=", f"{_HERE}.consumer:prepare", {"fields": ()})
CONSUMER_UNACKED = Contender('headrace Consumer, ack="none"', f"{_HERE}.consumer:prepare", {"ack": "none"})
REDIS_PY_GROUP = Contender(
    "redis-py with hiredis, XACK, to pyarrow", f"{_HERE}.redis_py_group:prepare", {"fields": ()}, max_rows=100_000
)

CONSUMERS = (FLOOR_SCRIPT, FLOOR_XACK, CONSUMER, CONSUMER_FIELDS, CONSUMER_UNACKED, REDIS_PY_GROUP)


def with_fields(contender: Contender, fields: Sequence[str]) -> Contender:
    """Return the contender for entries with these fields, if it makes columns of them."""
    if "fields" not in contender.options:
        return contender
    return replace(contender, options={**contender.options, "fields": list(fields)})
