"""The JSON of a row of Arrow data as Spark writes it: the reference in Python for the writer in Rust."""

from __future__ import annotations

import base64
import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyarrow import types


def wanted_rows(data: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows with the values that `read_row` returns: nulls in structs and rows are left out."""
    fields = list(data.schema)
    return [
        {field.name: wanted(row[field.name], field.type) for field in fields if row[field.name] is not None}
        for row in data.to_pylist(maps_as_pydicts=None)
    ]


def read_row(payload: bytes) -> Any:
    """Parse a row that was written; decimals and floats both become `Decimal`, so that no digit is lost."""
    return json.loads(payload, parse_float=Decimal)


def wanted(value: Any, kind: pa.DataType) -> Any:
    """The expected value for a value of this type."""
    if value is None:
        return None
    if types.is_dictionary(kind):
        return wanted(value, kind.value_type)
    if types.is_map(kind):
        return {str(key): wanted(item, kind.item_type) for key, item in value}
    if types.is_struct(kind):
        return {field.name: wanted(value[field.name], field.type) for field in kind if value[field.name] is not None}
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return [wanted(item, kind.value_type) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float):
        return Decimal(str(value))
    if isinstance(value, dt.datetime):
        # UTC is written as Z, as in Java's ISO_INSTANT; fractions are milliseconds.
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, dt.time):
        # Fractions of a second without trailing zeros, as java.time.LocalTime prints them.
        return value.isoformat().rstrip("0").rstrip(".") if value.microsecond else value.isoformat()
    return value
