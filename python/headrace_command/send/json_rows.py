"""Rows that are JSON objects."""

from __future__ import annotations

import json
from typing import Any

from headrace_command.send.rows import Block, Prepared, too_long

__all__ = ["JsonRows"]


class _Float(float):
    """A number that keeps its digits as written."""

    text: str


def _float(text: str) -> _Float:
    number = _Float(text)
    number.text = text
    return number


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not valid JSON")


_DECODER = json.JSONDecoder(parse_float=_float, parse_constant=_refuse)


class JsonRows:
    """Each row is a JSON object, whose members are the payload or the fields.

    Args:
        max_row_bytes: The most bytes of a row.
        payload: The member that is the payload.
        fields: The members that become fields; empty: all.
        members: The members kept in the payload, which is JSON; empty: the row as it is.
        shard_key: The member that determines the shard.
    """

    def __init__(
        self,
        max_row_bytes: int,
        *,
        payload: str | None = None,
        fields: list[str] | None = None,
        members: list[str] | None = None,
        shard_key: str | None = None,
    ) -> None:
        self._max_row_bytes = max_row_bytes
        self._payload = payload
        self._fields = fields
        self._members = members
        self._shard_key = shard_key

    def pass_over(self, _block: Block, /) -> int:
        """Return 0: no row is a header."""
        return 0

    def prepare(self, block: Block) -> Prepared:
        """Parse each row. One that is not a JSON object, or lacks the payload, is bad."""
        bad: dict[int, str] = {}
        indices: list[int] = []
        contents: list[Any] = []
        keys: list[bytes | None] = []
        for at, row in enumerate(block.rows):
            if not row.strip():
                continue
            try:
                parsed = self._parsed(row)
                content = self._content(row, parsed)
                key = None if self._shard_key is None else _bytes(parsed.get(self._shard_key))
            except (ValueError, RecursionError) as error:
                bad[at] = str(error)
                continue
            indices.append(at)
            contents.append(content)
            keys.append(key)
        if self._fields is not None:
            return self._with_fields(block, indices, bad, contents, keys)
        return Prepared(block, indices, bad, contents, None if self._shard_key is None else keys)

    def _parsed(self, row: bytes) -> dict[str, Any]:
        if len(row) > self._max_row_bytes:
            raise ValueError(too_long(self._max_row_bytes))
        try:
            parsed = _DECODER.decode(row.decode().strip())
        except UnicodeDecodeError as error:
            raise ValueError(f"the row is not valid UTF-8: byte {error.start}") from None
        except json.JSONDecodeError as error:
            raise ValueError(f"the row is not valid JSON: {error.msg} at character {error.pos}") from None
        if not isinstance(parsed, dict):
            raise ValueError("the row is not a JSON object")
        return parsed

    def _content(self, row: bytes, parsed: dict[str, Any]) -> Any:
        if self._payload is not None:
            if (payload := _bytes(parsed.get(self._payload))) is None:
                raise ValueError(f"the row has no member {self._payload!r}, or it is null")
            return payload
        if self._fields is not None:
            names = self._fields or parsed
            fields = [(_utf8(name), value) for name in names if (value := _bytes(parsed.get(name))) is not None]
            if not fields:
                raise ValueError("the row has none of the fields, or they are null")
            return fields
        if self._members:
            return _compact({name: parsed[name] for name in self._members if name in parsed})
        return row

    def _with_fields(
        self, block: Block, indices: list[int], bad: dict[int, str], contents: list[Any], keys: list[bytes | None]
    ) -> Prepared:
        from headrace_command.send.inputs import pyarrow_for

        pa = pyarrow_for("--fields")
        columns = {"fields": pa.array(contents, pa.map_(pa.string(), pa.binary()))}
        layout = {"fields_from": "fields"}
        if self._shard_key is not None:
            columns["key"] = pa.array(keys, pa.binary())
            layout["shard_key"] = "key"
        return Prepared(block, indices, bad, table=pa.table(columns), layout=layout)


def _bytes(value: object) -> bytes | None:
    """A value as bytes: text and numbers as they were written, objects and arrays as JSON; None for null."""
    if value is None:
        return None
    if isinstance(value, str):
        return _utf8(value)
    if isinstance(value, _Float):
        return value.text.encode()
    return _compact(value)


def _compact(value: object) -> bytes:
    return _utf8(json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False))


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        escape = f"\\u{ord(text[error.start]):04x}"
        raise ValueError(f"the row has half a surrogate pair, which is no character: {escape}") from None
