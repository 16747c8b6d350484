"""Entries of at most 1 KiB whose rows are large, or claim to be."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

MOST = 16 << 20  # the `max_entry_bytes` that the sizes below are made for

_ROWS = 200_000  # few enough: their values make an entry too large, not their number
_TEXT = "x" * 2_000


@dataclass(frozen=True)
class Bomb:
    """An entry, and how it is read. `rows`: how many it becomes; None: it takes more than `MOST`."""

    unpack: Literal["payload", "json", "arrow_ipc"]
    schema: pa.Schema
    fields: dict[str, bytes]
    rows: int | None = None


def ipc(columns: dict[str, Any] | Iterable[Any], codec: str | None = "zstd", **options: Any) -> bytes:
    """An Arrow IPC stream of the columns, or of several record batches."""
    batches = [pa.record_batch(columns)] if isinstance(columns, dict) else list(columns)
    stream = pa.BufferOutputStream()
    options = {"compression": codec, **options}
    with pa.ipc.new_stream(stream, batches[0].schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for batch in batches:
            writer.write(batch)
    written: bytes = stream.getvalue().to_pybytes()
    return written


def bombs() -> dict[str, Bomb]:
    """The entries by name."""
    return {
        **_texts_of_dictionaries(),
        **_wider_types(),
        **_missing(),
        **_buffers(),
        **_claims(),
        **_json(),
        **_payloads(),
    }


def _arrow(requested: pa.DataType | pa.Schema, columns: Any, rows: int | None = None, **options: Any) -> Bomb:
    schema = requested if isinstance(requested, pa.Schema) else pa.schema({"n": requested})
    payload = columns if isinstance(columns, bytes) else ipc(columns, **options)
    return Bomb("arrow_ipc", schema, {"payload": payload}, rows)


def _dictionary(values: Any, rows: int = _ROWS, keys: pa.DataType | None = None) -> pa.Array:
    return pa.DictionaryArray.from_arrays(_zeros(rows, keys or pa.int8()), values)


def _zeros(rows: int, data_type: pa.DataType) -> pa.Array:
    width = data_type.bit_width
    return pa.Array.from_buffers(data_type, rows, [None, pa.py_buffer(bytes(rows * width // 8 + 1))])


def _texts_of_dictionaries() -> dict[str, Bomb]:
    """One text that each row repeats."""
    text = {"n": _dictionary(pa.array([_TEXT]))}
    kinds = (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view())
    return {
        **{f"dictionary to {kind}": _arrow(kind, text) for kind in kinds},
        "dictionary of 64-bit keys to string": _arrow(
            pa.string(), {"n": _dictionary(pa.array([_TEXT]), keys=pa.int64())}
        ),
        "dictionary of large_string to string": _arrow(
            pa.string(), {"n": _dictionary(pa.array([_TEXT], pa.large_string()))}
        ),
        "dictionary of binary to string": _arrow(pa.string(), {"n": _dictionary(pa.array([_TEXT.encode()]))}),
        "dictionary of fixed_size_binary to binary": _arrow(
            pa.binary(), {"n": _dictionary(pa.array([_TEXT.encode()], pa.binary(2_000)))}
        ),
        "dictionary of fixed_size_binary to itself": _arrow(
            pa.binary(2_000), {"n": _dictionary(pa.array([_TEXT.encode()], pa.binary(2_000)))}
        ),
        "dictionary to fixed_size_binary, of another size": _arrow(pa.binary(4_000), text),
        "dictionary of int64 to decimal256": _arrow(pa.decimal256(60), {"n": _dictionary(pa.array([7]), 400_000)}),
        "dictionary to a dictionary of wider keys": _arrow(
            pa.dictionary(pa.int64(), pa.string()), {"n": _dictionary(pa.array([_TEXT]), 600_000)}
        ),
        "dictionary to string, and a missing column, each of which fits": _arrow(
            pa.schema({"n": pa.string(), "m": pa.binary(4_000)}), {"n": _dictionary(pa.array([_TEXT * 2]), 3_000)}
        ),
        "views of one text to string": _arrow(pa.string(), {"n": _views(_ROWS)}),
        "views of one text": _arrow(pa.string_view(), {"n": _views(_ROWS)}, _ROWS),
    }


def _views(rows: int) -> pa.Array:
    """Views that share one text."""
    view = struct.pack("<i4sii", len(_TEXT), _TEXT[:4].encode(), 0, 0)
    buffers = [None, pa.py_buffer(view * rows), pa.py_buffer(_TEXT.encode())]
    return pa.Array.from_buffers(pa.string_view(), rows, buffers)


def _wider_types() -> dict[str, Bomb]:
    """Columns of a type that takes more than that of the entry."""
    bits, bytes_ = {"n": _zeros(600_000, pa.bool_())}, {"n": _zeros(600_000, pa.int8())}
    return {
        "bool to int64, which it does not fit": _arrow(pa.int64(), {"n": _zeros(400_000, pa.bool_())}, 400_000),
        "bool to string": _arrow(pa.string(), bits),
        "bool to string_view": _arrow(pa.string_view(), bits),
        "int8 to large_string": _arrow(pa.large_string(), bytes_),
        "int8 to string_view, few rows": _arrow(pa.string_view(), {"n": _zeros(_ROWS, pa.int8())}, _ROWS),
        "int8 to decimal256": _arrow(pa.decimal256(60), bytes_),
        "int8 to month_day_nano_interval, which it does not fit": _arrow(pa.month_day_nano_interval(), bytes_),
        "int8 to fixed_size_binary, which it does not fit": _arrow(pa.binary(2_000), bytes_),
        "int8 to a list of fixed size, which it has no text for": _arrow(pa.list_(pa.int64(), 100), bytes_),
        "run ends to int64, which they have no text for": _arrow(pa.int64(), {"n": _runs(_ROWS)}, _ROWS),
        "run ends to a list of fixed size": _arrow(pa.list_(pa.int64(), 100), {"n": _runs(_ROWS)}),
        "run ends of 2,000,000,000 rows": _arrow(pa.int64(), {"n": _runs(2_000_000_000)}),
        "a union of nulls": _arrow(pa.int64(), {"n": _union(600_000)}),
    }


def _runs(rows: int) -> pa.Array:
    return pa.RunEndEncodedArray.from_arrays(pa.array([rows], pa.int32()), pa.array([7]))


def _union(rows: int) -> pa.Array:
    return pa.UnionArray.from_sparse(_zeros(rows, pa.int8()), [pa.nulls(rows)] * 4)


def _missing() -> dict[str, Bomb]:
    """Rows whose columns are not in the entry."""
    rows = {"other": pa.nulls(_ROWS)}
    wide = pa.struct([(f"m{number}", pa.int64()) for number in range(100)])
    return {
        "a missing fixed_size_binary": _arrow(pa.binary(2_000), rows),
        "a missing list of fixed size": _arrow(pa.list_(pa.int64(), 250), rows),
        "a missing struct": _arrow(wide, rows),
        "a missing dictionary": _arrow(pa.dictionary(pa.int64(), pa.string()), {"other": pa.nulls(600_000)}),
        "40 missing columns": _arrow(pa.schema({f"c{number}": pa.int64() for number in range(40)}), rows),
        "nulls to string": _arrow(pa.string(), {"n": pa.nulls(600_000)}),
    }


def _buffers() -> dict[str, Bomb]:
    """Buffers that are large after decompression."""
    ten = pa.array([b"\0" * (10 << 20)], pa.binary(10 << 20))
    text = pa.array([b"\0" * (9 << 20)])
    batches = [pa.record_batch({"n": pa.array([b"\0" * (5 << 20)])})] * 2
    small = [pa.record_batch({"n": pa.array([b"\0" * (3 << 20)])})] * 2
    return {
        "one value of 10 MiB": _arrow(ten.type, {"n": ten}, 1),
        "one value of 10 MiB, to binary": _arrow(pa.binary(), {"n": ten}),
        "one text of 9 MiB, to string_view": _arrow(pa.string_view(), {"n": text}),
        "two texts of 9 MiB": _arrow(pa.binary(), {"n": pa.concat_arrays([text, text])}),
        "a list of 10,000,000 int8": _arrow(
            pa.list_(pa.int8()), {"n": pa.ListArray.from_arrays([0, 10_000_000], _zeros(10_000_000, pa.int8()))}, 1
        ),
        "two record batches of 5 MiB": _arrow(pa.binary(), batches),
        "two record batches of 3 MiB": _arrow(pa.binary(), small, 2),
    }


def _claims() -> dict[str, Bomb]:
    """Lengths that nothing stands behind."""
    nulls = ipc({"n": pa.nulls(1_001)})
    bombs = {
        "a schema of 69,906 fields": _arrow(pa.int64(), _schema_of_shared_fields()),
        "2**40 nulls": _arrow(pa.null(), nulls.replace(struct.pack("<q", 1_001), struct.pack("<q", 2**40))),
        "1,000,000 nulls": _arrow(pa.null(), nulls.replace(struct.pack("<q", 1_001), struct.pack("<q", 1_000_000))),
    }
    for codec in ("zstd", "lz4"):
        stream = ipc({"n": pa.array([7] * 1_000)}, codec)
        for name, claim in (("2**40", 2**40), ("15 MiB", 15 << 20)):
            lying = stream.replace(struct.pack("<q", 8_000), struct.pack("<q", claim), 1)
            bombs[f"a buffer of {codec} that claims {name}"] = _arrow(pa.int64(), lying)
    return bombs


def _schema_of_shared_fields() -> bytes:
    """A schema in which the 16 members of each struct are the same bytes, 4 levels deep."""
    parts: list[bytes | tuple[str, int | str]] = []
    places: dict[str, int] = {}
    size = 0

    def add(*items: bytes | str, name: str = "") -> None:
        nonlocal size
        places[name] = size
        for item in items:
            parts.append(item if isinstance(item, bytes) else (item, size))
            size += len(item) if isinstance(item, bytes) else 4

    def table(name: str, kind: str, *items: bytes | str) -> None:
        add(struct.pack("<i", size - places[kind]), *items, name=name)

    def vtable(name: str, *places: int, width: int) -> None:
        add(struct.pack(f"<{len(places) + 2}H", 4 + 2 * len(places), width, *places), name=name)

    # The tables of Message.fbs and Schema.fbs: where a table of each kind has its members.
    add("message")
    vtable("vmessage", 4, 6, 8, width=12)
    vtable("vschema", 0, 4, width=8)
    vtable("vstruct", 4, 0, 16, 8, 0, 12, width=20)
    vtable("vnull", 4, 0, 16, 8, 0, 0, width=20)
    vtable("vempty", width=4)
    add(bytes(-size % 4))
    table("message", "vmessage", struct.pack("<hBx", 4, 1), "schema")
    table("schema", "vschema", "fields 0")
    for level in range(5):
        members = 16 if level > 0 else 1
        add(struct.pack("<i", members), *[f"field {level}"] * members, name=f"fields {level}")
        of_null = level == 4
        children = () if of_null else (f"fields {level + 1}",)
        kind, code = ("vnull", 1) if of_null else ("vstruct", 13)
        empty = (b"\0" * 4,) if of_null else children
        table(f"field {level}", kind, "name", "type", *empty, struct.pack("<B3x", code))
    table("type", "vempty")
    add(struct.pack("<i4s", 1, b"n"), name="name")
    add(bytes(-size % 8))
    body = b"".join(
        part if isinstance(part, bytes) else struct.pack("<i", places[part[0]] - int(part[1])) for part in parts
    )
    return b"\xff\xff\xff\xff" + struct.pack("<i", len(body)) + body + b"\xff\xff\xff\xff\0\0\0\0"


def _json() -> dict[str, Bomb]:
    """Elements that take more in a column than in JSON."""
    wide = pa.struct([(f"m{number}", pa.list_(pa.int64(), 1_000)) for number in range(20)])
    fixed = pa.list_(pa.int64(), 100_000)
    nulls = "[" + ",".join(["null"] * 190) + "]"
    objects, few = ("[" + ",".join(["{}"] * count) + "]" for count in (300, 60))

    def of(data_type: pa.DataType, value: str, rows: int | None = None) -> Bomb:
        return Bomb("json", pa.schema({"n": data_type}), {"payload": f'{{"n":{value}}}'.encode()}, rows)

    pairs = "{" + ",".join(f'"{number}":{{}}' for number in range(100)) + "}"
    many = {f"payload:{number}": b"{}" for number in range(50)}
    return {
        "JSON: a list of structs": of(pa.list_(wide), objects),
        "JSON: a list of lists of structs": of(pa.list_(pa.list_(wide)), f"[{objects}]"),
        "JSON: a list of lists of fixed size": of(pa.list_(fixed), nulls),
        "JSON: a large list of fixed_size_binary": of(pa.large_list(pa.binary(1 << 20)), nulls),
        "JSON: a map of structs": of(pa.map_(pa.string(), wide), pairs),
        "JSON: a map of lists of fixed size": of(pa.map_(pa.string(), fixed), pairs.replace("{}", "null")),
        "JSON: a list of fixed size of structs": of(pa.list_(wide, 2), objects),
        "JSON: a struct of lists of structs": of(pa.struct({"a": pa.list_(wide)}), f'{{"a":{objects}}}'),
        "JSON: a name that is repeated": of(pa.list_(wide), f'{few},"n":{few}'),
        "JSON: empty objects": Bomb("json", pa.schema({"n": pa.binary(1 << 20)}), many),
        "JSON: broken objects": Bomb("json", pa.schema({"n": pa.binary(1 << 20)}), dict.fromkeys(many, b"{")),
        "JSON: 500 levels": of(pa.list_(pa.list_(pa.string())), "[" * 500 + "]" * 500, 1),
    }


def _payloads() -> dict[str, Bomb]:
    many = {f"payload:{number}": b"x" for number in range(50)}
    return {
        "payloads that do not fit a fixed_size_binary": Bomb("payload", pa.schema({"n": pa.binary(1 << 20)}), many),
        "payloads that fit": Bomb("payload", pa.schema({"n": pa.binary(1)}), many, 50),
    }
