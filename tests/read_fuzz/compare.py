"""Whether two arrays of one type have the same values, to the last bit but for those of a NaN."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

_PER_MILLISECOND = {"s": 1, "ms": 1, "us": 1_000, "ns": 1_000_000}


def difference(got: pa.ChunkedArray, wanted: pa.ChunkedArray, column: str, cut: bool = False) -> str | None:
    """Where two columns differ, if they do. With `cut` the timestamps of the second one are cut to milliseconds."""
    if len(got) != len(wanted):
        return f"{column} has {len(got)} rows, not {len(wanted)}"
    both = (
        [value for chunk in data.chunks for value in values(chunk, is_cut)]
        for data, is_cut in ((got, False), (wanted, cut))
    )
    for row, (ours, theirs) in enumerate(zip(*both, strict=True)):
        if ours != theirs:
            return f"{column} of type {wanted.type} has {ours!r} in row {row}, not {theirs!r}"
    return None


def values(array: pa.Array, cut: bool = False) -> list[Any]:
    """The values as objects that are equal where the values are: for many types pyarrow compares none."""
    found = [None] * len(array) if types.is_null(array.type) else _valid_or_not(array, cut)
    return [value if is_valid else None for value, is_valid in zip(found, array.is_valid().to_pylist(), strict=True)]


def _valid_or_not(array: pa.Array, cut: bool) -> list[Any]:
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return values(array.storage, cut)
    if types.is_dictionary(kind):
        known = values(array.dictionary, cut)
        return [None if index is None else known[index] for index in array.indices.to_pylist()]
    if types.is_struct(kind):
        members = [values(array.field(place), cut) for place in range(kind.num_fields)]
        return list(zip(*members, strict=True)) if members else [()] * len(array)
    if types.is_map(kind):
        pairs = list(zip(values(array.keys, cut), values(array.items, cut), strict=True))
        return _lists(array, pairs)
    if types.is_fixed_size_list(kind):
        size, items = kind.list_size, values(array.values, cut)
        return [tuple(items[row * size : (row + 1) * size]) for row in range(array.offset, array.offset + len(array))]
    if types.is_nested(kind):
        return _lists(array, values(array.values, cut))
    if types.is_floating(kind):
        bits = np.dtype(f"u{kind.bit_width // 8}")
        floats = array.to_numpy(zero_copy_only=False).astype(kind.to_pandas_dtype())
        return ["NaN" if np.isnan(number) else int(number.view(bits)) for number in floats]
    if types.is_interval(kind):
        return [None if value is None else tuple(value) for value in array.to_pylist()]
    if types.is_temporal(kind):
        numbers = array.view(pa.int32() if kind.bit_width == 32 else pa.int64()).to_pylist()
        unit = _PER_MILLISECOND[kind.unit] if cut and types.is_timestamp(kind) else 1
        return [None if number is None else number // unit * unit for number in numbers]
    return list(array.to_pylist())


def _lists(array: pa.Array, items: list[Any]) -> list[tuple[Any, ...]]:
    offsets = array.offsets.to_pylist()
    return [tuple(items[start:end]) for start, end in itertools.pairwise(offsets)]
