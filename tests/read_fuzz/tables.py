"""Random tables of every type that is written and read, with the whole range of their values."""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

_Random = random.Random

_TEXTS = ["", "a", 'é"\\/', "x" * 12, "y" * 13, "z" * 40, "\n\r\t\0\x1f\x7f", "☃𝄞", "null", " 1 ", "{}", "\ud7ff\uffff"]
_UNITS = ["s", "ms", "us", "ns"]
_ZONES = [None, "UTC", "+05:30", "Europe/Berlin"]
_KEYS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
_DAY = 86_400
_DEPTH = 3

Draw = Callable[[_Random], Any]


def _integer(bits: int, is_signed: bool) -> Draw:
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if is_signed else (0, (1 << bits) - 1)

    def draw(random: _Random) -> int:
        if random.random() < 0.2:
            return random.choice([low, high, 0, 1, max(low, -1)])
        # Of every size, not mostly of the largest.
        value = random.getrandbits(random.randrange(1, bits + 1))
        return max(low, min(high, -value if is_signed and random.random() < 0.5 else value))

    return draw


def _digits(precision: int, scale: int) -> Draw:
    def draw(random: _Random) -> Decimal:
        count = random.choice([1, precision, random.randrange(1, precision + 1)])
        digits = tuple(random.randrange(10) for _ in range(count))
        return Decimal((random.randrange(2), digits, -scale))

    return draw


def _text(random: _Random) -> str:
    if random.random() < 0.5:
        return random.choice(_TEXTS)
    return "".join(chr(random.choice([random.randrange(0x20), random.randrange(0xD800), 0x1F600])) for _ in range(9))


def _bytes(random: _Random) -> bytes:
    return random.choice([b"", b"\xff\x00", b"\r\n", random.randbytes(random.randrange(40))])


def _time(per_second: int) -> Draw:
    count = _DAY * per_second
    return lambda random: random.choice([0, count - 1, random.randrange(count)])


def _interval(random: _Random) -> pa.MonthDayNano:
    days = _integer(32, True)
    return pa.MonthDayNano([days(random), days(random), _integer(64, True)(random)])


_DECIMALS = [
    *((pa.decimal32, precision, scale) for precision, scale in ((9, 2), (1, 0), (5, -3), (9, 9))),
    *((pa.decimal64, precision, scale) for precision, scale in ((18, 3), (10, -2), (18, 18))),
    *((pa.decimal128, precision, scale) for precision, scale in ((38, 10), (20, -5), (38, 38), (19, 0))),
    *((pa.decimal256, precision, scale) for precision, scale in ((76, 20), (50, -4), (76, 76))),
]
_FLOATS = {pa.float16(): np.uint16, pa.float32(): np.uint32, pa.float64(): np.uint64}
_SPECIAL = [0.0, -0.0, 1.0, -1.5, 0.1, float("inf"), float("-inf"), float("nan"), 1e-7, 65504.0]

#: Types of Python values, and how one is drawn.
_DRAWN: dict[pa.DataType, Draw] = {
    pa.int8(): _integer(8, True),
    pa.int16(): _integer(16, True),
    pa.int32(): _integer(32, True),
    pa.int64(): _integer(64, True),
    pa.uint8(): _integer(8, False),
    pa.uint16(): _integer(16, False),
    pa.uint32(): _integer(32, False),
    pa.uint64(): _integer(64, False),
    pa.bool_(): lambda random: random.random() < 0.5,
    **dict.fromkeys([pa.string(), pa.large_string(), pa.string_view()], _text),
    **dict.fromkeys([pa.binary(), pa.large_binary(), pa.binary_view()], _bytes),
    pa.binary(3): lambda random: random.randbytes(3),
    pa.binary(16): lambda random: random.randbytes(16),
    **{make(precision, scale): _digits(precision, scale) for make, precision, scale in _DECIMALS},
    pa.month_day_nano_interval(): _interval,
}
#: Types that are numbers in memory, with the type of these and how one is drawn.
_COUNTED: dict[pa.DataType, tuple[pa.DataType, Draw]] = {
    pa.date32(): (pa.int32(), _integer(32, True)),
    # The type allows whole days only; the first one begins before its range.
    pa.date64(): (pa.int64(), lambda random: int(_integer(64, True)(random) / (_DAY * 1000)) * _DAY * 1000),
    pa.time32("s"): (pa.int32(), _time(1)),
    pa.time32("ms"): (pa.int32(), _time(1_000)),
    pa.time64("us"): (pa.int64(), _time(1_000_000)),
    pa.time64("ns"): (pa.int64(), _time(1_000_000_000)),
    # JSON cuts to milliseconds, and those of the first one begin before the range.
    **{
        pa.timestamp(unit, zone): (pa.int64(), lambda random: max(-(2**63) + 10**6, _integer(64, True)(random)))
        for unit in _UNITS
        for zone in _ZONES
    },
    **{pa.duration(unit): (pa.int64(), _integer(64, True)) for unit in _UNITS},
}
_LEAVES = [*_DRAWN, *_COUNTED, *_FLOATS, pa.uuid(), pa.bool8()]
_IN_DICTIONARIES = [kind for kind in _LEAVES if not isinstance(kind, pa.BaseExtensionType)]
#: What a payload can be.
PAYLOADS = [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()]
_MAP_KEYS = [pa.string(), pa.large_string(), pa.int8(), pa.int64(), pa.uint64(), pa.decimal128(19, 0)]


def random_type(random: _Random, depth: int = 0) -> pa.DataType:
    """A type; the deeper, the simpler."""
    if depth >= _DEPTH or random.random() < 0.7:
        shape = random.random()
        if shape < 0.05:
            return pa.null()
        if shape < 0.2:
            return pa.dictionary(random.choice(_KEYS), random.choice(_IN_DICTIONARIES))
        return random.choice(_LEAVES)

    def below() -> pa.DataType:
        return random_type(random, depth + 1)

    shape = random.randrange(5)
    if shape == 0:
        return pa.list_(below())
    if shape == 1:
        return pa.large_list(below())
    if shape == 2:
        return pa.list_(below(), random.randrange(1, 4))
    if shape == 3:
        return pa.map_(random.choice(_MAP_KEYS), below())
    return pa.struct([(_name(random, number), below()) for number in range(random.randrange(1, 4))])


def _name(random: _Random, number: int) -> str:
    return random.choice(["", "n ", 'ü"\\', "payload", "\n"]) + string.ascii_letters[number]


def random_array(random: _Random, kind: pa.DataType, count: int, nulls: float) -> pa.Array:
    """An array of this type."""
    missing = [random.random() < nulls for _ in range(count)]
    mask = pa.array(missing, pa.bool_())
    if types.is_null(kind):
        return pa.nulls(count)
    if isinstance(kind, pa.BaseExtensionType):
        values = random_array(random, pa.binary(16) if kind == pa.uuid() else pa.bool_(), count, nulls)
        return kind.wrap_array(values if kind == pa.uuid() else values.cast(pa.int8()))
    if draw := _DRAWN.get(kind):
        return pa.array([None if is_missing else draw(random) for is_missing in missing], kind)
    if kind in _COUNTED:
        storage, draw = _COUNTED[kind]
        return pa.array([None if is_missing else draw(random) for is_missing in missing], storage).view(kind)
    if bits := _FLOATS.get(kind):
        special = np.array([random.choice(_SPECIAL) for _ in range(count)]).astype(kind.to_pandas_dtype())
        drawn = np.frombuffer(random.randbytes(special.nbytes), bits).view(special.dtype)
        return pa.array(np.where(random.random() < 0.5, special, drawn), kind, mask=np.array(missing, bool))
    if types.is_dictionary(kind):
        size = random.randrange(1, 9)
        values = random_array(random, kind.value_type, size, random.choice([0, 0.3]))
        indices = [None if is_missing else random.randrange(size) for is_missing in missing]
        return pa.DictionaryArray.from_arrays(pa.array(indices, kind.index_type), values)
    if types.is_struct(kind):
        fields = list(kind)
        members = [random_array(random, field.type, count, nulls) for field in fields]
        return pa.StructArray.from_arrays(members, fields=fields, mask=mask)
    if types.is_fixed_size_list(kind):
        values = random_array(random, kind.value_type, count * kind.list_size, nulls)
        return pa.FixedSizeListArray.from_arrays(values, type=kind, mask=mask)
    lengths = [0 if is_missing else random.choice([0, 1, 1, 2, 5]) for is_missing in missing]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    total = int(offsets[-1])
    if types.is_map(kind):
        # The keys of a map differ; another map may have the same.
        is_text = types.is_string(kind.key_type) or types.is_large_string(kind.key_type)
        numbers = [number % 127 for number in range(total)]
        keys = pa.array([f"{_text(random)}{number}" if is_text else number for number in numbers])
        items = random_array(random, kind.item_type, total, nulls)
        return pa.MapArray.from_arrays(
            pa.array(offsets, pa.int32()), keys.cast(kind.key_type), items, type=kind, mask=mask
        )
    values = random_array(random, kind.value_type, total, nulls)
    is_large = types.is_large_list(kind)
    make = pa.LargeListArray if is_large else pa.ListArray
    return make.from_arrays(pa.array(offsets, pa.int64() if is_large else pa.int32()), values, type=kind, mask=mask)


def random_table(seed: int, number: int) -> pa.Table:
    """Up to five columns and some rows; a slice, more often than not."""
    chance = random.Random(f"{seed} {number}")
    count = chance.choice([0, 1, 2, 3, 5, 9, 30])
    before, behind = (chance.randrange(4), chance.randrange(3)) if chance.random() < 0.6 else (0, 0)
    columns = {}
    for place in range(chance.randrange(1, 6)):
        kind, nulls = random_type(chance), chance.choice([0, 0, 0.2, 0.2, 1])
        if place == 0 and chance.random() < 0.4:
            kind = chance.choice(PAYLOADS)
        columns[_name(chance, place)] = random_array(chance, kind, before + count + behind, nulls)
    fields = [pa.field(name, array.type, nullable=True) for name, array in columns.items()]
    return pa.table(list(columns.values()), schema=pa.schema(fields)).slice(before, count)
