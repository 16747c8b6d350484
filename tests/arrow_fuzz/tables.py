"""Random types, values and record batches."""

from __future__ import annotations

import datetime as dt
import random
import string
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyarrow import types

from support.json_rows import wanted_rows

from .model import ArrayNode, SchemaNode, model_of

_Random = random.Random
_EPOCH = dt.datetime(1970, 1, 1)

_TEXTS = ["", "a", 'é"\\', "x" * 13, "y" * 40, "\n\t\x01", "☃𝄞"]
_BYTES = [b"", b"\xff\x00", b"z" * 33, b"0123456789ab"]

#: Types without children, with how a value is drawn.
_SIMPLE: list[tuple[pa.DataType, Callable[[_Random], Any]]] = [
    *((kind, lambda r: r.randrange(-128, 128)) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())),
    *((kind, lambda r: r.randrange(256)) for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())),
    *((kind, lambda r: r.randrange(-800, 800) / 8) for kind in (pa.float16(), pa.float32(), pa.float64())),
    (pa.bool_(), lambda r: r.random() < 0.5),
    *((kind, lambda r: r.choice(_TEXTS)) for kind in (pa.string(), pa.large_string(), pa.string_view())),
    *((kind, lambda r: r.choice(_BYTES)) for kind in (pa.binary(), pa.large_binary(), pa.binary_view())),
    (pa.binary(3), lambda r: r.randbytes(3)),
    (pa.decimal32(9, 2), lambda r: Decimal(r.randrange(-(10**6), 10**6)).scaleb(-2)),
    (pa.decimal64(18, 3), lambda r: Decimal(r.randrange(-(10**9), 10**9)).scaleb(-3)),
    (pa.decimal128(20, 3), lambda r: Decimal(r.randrange(-(10**15), 10**15)).scaleb(-3)),
    (pa.decimal256(50, 5), lambda r: Decimal(r.randrange(-(10**15), 10**15)).scaleb(-5)),
    (pa.date32(), lambda r: _EPOCH.date() + dt.timedelta(r.randrange(-9000, 30000))),
    (pa.date64(), lambda r: _EPOCH.date() + dt.timedelta(r.randrange(-9000, 30000))),
    (pa.time32("s"), lambda r: _moment(r, 1).time()),
    *((kind, lambda r: _moment(r, 1000).time()) for kind in (pa.time32("ms"), pa.time64("us"), pa.time64("ns"))),
    (pa.timestamp("s"), lambda r: _moment(r, 1)),
    *((pa.timestamp(unit, zone), lambda r: _moment(r, 1000)) for unit in ("ms", "us", "ns") for zone in (None, "UTC")),
]
#: Those that JSON has no form for: they go by Arrow IPC.
_NOT_IN_JSON: list[tuple[pa.DataType, Callable[[_Random], Any]]] = [
    *(
        (pa.duration(unit), lambda r: dt.timedelta(seconds=r.randrange(-9000, 9000)))
        for unit in ("s", "ms", "us", "ns")
    ),
]
_DRAW = dict([*_SIMPLE, *_NOT_IN_JSON])
_KEYS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
#: Such dictionaries pyarrow can make of values.
_IN_DICTIONARIES = [pa.string(), pa.large_string(), pa.binary(), pa.int64(), pa.float64()]
_TEXT_TYPES = [pa.string(), pa.large_string(), pa.string_view()]
_BYTES_TYPES = [pa.binary(), pa.large_binary(), pa.binary_view()]
_DEPTH = 3


def _moment(random: _Random, per_second: int) -> dt.datetime:
    return _EPOCH + dt.timedelta(
        seconds=random.randrange(-(10**9), 4 * 10**9) + random.randrange(per_second) / per_second
    )


def random_type(random: _Random, in_json: bool, depth: int = 0) -> pa.DataType:
    """A type; the deeper, the simpler."""
    if depth >= _DEPTH or random.random() < 0.5:
        draw = random.random()
        if draw < 0.06:
            return pa.null()
        if draw < 0.18:
            return pa.dictionary(random.choice(_KEYS), random.choice(_IN_DICTIONARIES))
        return random.choice(_SIMPLE if in_json or draw < 0.9 else _NOT_IN_JSON)[0]

    def below() -> pa.DataType:
        return random_type(random, in_json, depth + 1)

    shape = random.randrange(6)
    if shape == 0:
        return pa.list_(below())
    if shape == 1:
        return pa.large_list(below())
    if shape == 2:
        return pa.list_(below(), random.randrange(4))
    if shape == 3:
        return pa.map_(random.choice([pa.string(), pa.int16()]), below())
    return pa.struct([(name, below()) for name in string.ascii_lowercase[: random.randrange(1, 4)]])


def fields_type(random: _Random) -> pa.DataType:
    """A type of all fields of an entry. JSON has it too."""
    value = random.choice(_TEXT_TYPES + _BYTES_TYPES)
    if random.random() < 0.5:
        return pa.map_(pa.string(), value)
    members = [("name", random.choice(_TEXT_TYPES + _BYTES_TYPES)), ("value", value)]
    random.shuffle(members)
    return random.choice([pa.list_, pa.large_list])(pa.struct(members))


def random_value(random: _Random, kind: pa.DataType, nulls: float = 0.2) -> Any:
    """A value of this type, or None."""
    if random.random() < nulls or types.is_null(kind):
        return None
    if draw := _DRAW.get(kind):
        return draw(random)
    if types.is_dictionary(kind):
        return random_value(random, kind.value_type, 0)
    if types.is_map(kind):
        keys = {random_value(random, kind.key_type, 0) for _ in range(random.randrange(3))}
        return [(key, random_value(random, kind.item_type)) for key in sorted(keys)]
    if types.is_struct(kind):
        return {field.name: random_value(random, field.type) for field in kind}
    count = kind.list_size if types.is_fixed_size_list(kind) else random.randrange(4)
    return [random_value(random, kind.value_type) for _ in range(count)]


@dataclass
class Made:
    """A record batch with its structures, and what is to come of it."""

    batch: pa.RecordBatch
    schema: SchemaNode
    array: ArrayNode
    in_json: bool
    #: The columns of `fields_type`.
    fields: list[str] = field(default_factory=list)
    #: Made when asked for.
    _json: list[dict[str, Any]] = field(default_factory=list)
    _rows: list[dict[str, Any]] = field(default_factory=list)

    @property
    def json(self) -> list[dict[str, Any]]:
        """The rows as JSON."""
        self._json = self._json or wanted_rows(self.batch)
        return self._json

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows as pyarrow reads them."""
        self._rows = self._rows or self.batch.to_pylist()
        return self._rows


def make(random: _Random) -> Made:
    """A record batch of up to four columns and some rows; a slice, more often than not."""
    in_json = random.random() < 0.85
    count = random.choice([0, 1, 2, 3, 5, 9, 20])
    before, behind = (random.randrange(4), random.randrange(3)) if random.random() < 0.6 else (0, 0)
    columns: dict[str, pa.Array] = {}
    fields = []
    for number in range(random.randrange(1, 5)):
        if random.random() < 0.2:
            kind = fields_type(random)
            fields.append(f"column{number}")
        else:
            kind = random_type(random, in_json)
        nulls = random.choice([0, 0.2, 0.2, 1])
        values = [random_value(random, kind, nulls) for _ in range(before + count + behind)]
        columns[f"column{number}"] = pa.array(values, kind)
    batch = pa.record_batch(columns).slice(before, count)
    schema, array = model_of(batch)
    return Made(batch, schema, array, in_json, fields)
