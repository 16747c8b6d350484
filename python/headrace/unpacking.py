"""Unpacks the payloads or rows of an entry that was read with redis-py, valkey-py or another client.

The inverse of `Dispatcher.produce_batch` with `rows_per_entry` or `arrow_ipc`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from headrace._headrace import Rows, decode_rows
from headrace.errors import MessageError, SchemaError

__all__ = ["unpack", "unpack_arrow"]

#: The fields of one entry, as clients return them: bytes, or str with `decode_responses=True`.
_Fields: TypeAlias = Mapping[bytes, bytes] | Mapping[str, bytes] | Mapping[str, str] | Mapping[bytes | str, bytes | str]


def unpack(fields: _Fields, payload_field: str = "payload") -> list[bytes]:
    """Return the payloads of one entry in the order of their rows, whether it holds one or several.

    ```python
    for entry_id, fields in client.xrange("order-events"):
        for payload in headrace.unpack(fields):
            print(payload)
    ```

    Args:
        fields: The fields of one entry, as a client returns them. Names and values are bytes, or str from a client with
            `decode_responses=True`; str payloads are encoded as UTF-8.
        payload_field: The dispatcher's `payload_field`.

    Raises:
        MessageError: The entry has no payload, or one of several is missing.
        SchemaError: `fields` is not a mapping of the kind that clients return.
    """
    several = _payloads(fields, payload_field)
    single = several.pop(payload_field, None)
    if single is not None and several:
        raise MessageError(f"the entry has both the field {payload_field!r} and {next(iter(several))!r}")
    if single is not None:
        return [_bytes(payload_field, single)]
    if not several:
        raise MessageError(f"the entry has no payload: no field {payload_field!r}, {_listed(fields)}")
    names = [f"{payload_field}:{place}" for place in range(len(several))]
    missing = next((name for name in names if name not in several), None)
    if missing is not None:
        raise MessageError(f"the entry has {len(several)} payloads, but no field {missing!r}")
    return [_bytes(name, several[name]) for name in names]


def unpack_arrow(fields: _Fields, payload_field: str = "payload") -> Rows:
    """Return the rows of one entry that was written with `arrow_ipc=True`, for any Arrow library.

    ```python
    for entry_id, fields in client.xrange("order-events"):
        table = pyarrow.table(headrace.unpack_arrow(fields))
    ```

    This function needs no Arrow library; an Arrow library can also read the payload directly, as in
    `pyarrow.ipc.open_stream(fields[b"payload"])`. Offsets, UTF-8 and dictionary keys are checked, and rows of more than
    1 GiB are not decompressed.

    Args:
        fields: The fields of one entry, as a client returns them. The payload must be bytes: a client with
            `decode_responses=True` cannot read it.
        payload_field: The dispatcher's `payload_field`.

    Returns:
        The rows, for `pyarrow.table(rows)` or `polars.DataFrame(rows)`, or as Python objects: `rows.to_pylist()`.

    Raises:
        MessageError: The entry has no Arrow IPC stream, or one that is truncated, corrupt or too large.
        SchemaError: `fields` is not a mapping of the kind that clients return, or the payload is a str.
    """
    several = _payloads(fields, payload_field)
    stream = several.pop(payload_field, None)
    if stream is None and several:
        raise MessageError("the entry has no Arrow IPC stream but several payloads: use headrace.unpack")
    if stream is None:
        raise MessageError(f"the entry has no Arrow IPC stream: no field {payload_field!r}, {_listed(fields)}")
    if isinstance(stream, str):
        reason = "read Arrow IPC as bytes, with a client without decode_responses=True"
        raise SchemaError(f"the field {payload_field!r} must be bytes: got a str ({reason})")
    return decode_rows(_bytes(payload_field, stream))


def _payloads(fields: _Fields, payload_field: str) -> dict[str, object]:
    """Return the fields `payload` and `payload:<number>`, with their names as str."""
    if not isinstance(fields, Mapping):
        raise SchemaError(f"fields must be a mapping, from the names of one entry to its values: got {_type(fields)}")
    if not isinstance(payload_field, str):
        raise SchemaError(f"payload_field must be a str: got {_type(payload_field)}")
    start = f"{payload_field}:"
    found: dict[str, object] = {}
    for name, value in fields.items():
        text = _text(name)
        place = text[len(start) :] if text.startswith(start) else ""
        if text == payload_field or (place.isascii() and place.isdecimal()):
            found[text] = value
    return found


def _text(name: object) -> str:
    if isinstance(name, str):
        return name
    if isinstance(name, bytes):
        return name.decode(errors="surrogateescape")
    raise SchemaError(f"names of fields must be bytes or str: got {_type(name)}")


def _bytes(name: str, value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode(errors="surrogateescape")
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise SchemaError(f"the field {name!r} must be bytes or str: got {_type(value)}")


def _listed(fields: _Fields) -> str:
    """List the names of an entry's fields for an error, without their values."""
    names = [_text(name) for name in fields]
    shown = ", ".join(repr(name[:50]) for name in names[:10]) or "none at all"
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return f"its fields are {shown}{more}"


def _type(value: object) -> str:
    return type(value).__qualname__
