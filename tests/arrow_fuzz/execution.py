"""One execution, drawn from a seed and a number: the record batch, its layout, and the allowed results."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from pyarrow import types

from support.c_arrow import EIO, Batch, Held, Reader, Stream

from .certain import is_broken
from .model import ArrayNode, SchemaNode
from .safety import is_safe
from .spoil import Spoilt, spoil_batch
from .tables import Made, make
from .valid import vary

_Random = random.Random

#: Executions that share record batches, and how many they share.
BLOCK, SHARED = 1_000, 50
_ERROR = b"the source failed here"
_BYTES = [types.is_string, types.is_large_string, types.is_string_view]
_BYTES += [types.is_binary, types.is_large_binary, types.is_binary_view]


@dataclass
class Execution:
    """What is handed over.

    Attributes:
        kind: Its sort, for counts.
        data: With `__arrow_c_array__` or `__arrow_c_stream__`.
        layout: Arguments of `produce_batch`.
        lengths: Rows of each record batch; those of a broken one as it says.
        broken: The index of the first record batch that is broken or not there; None: all is valid.
        spoils: What was done, for reports.
        columns: Where it was done; None among them: not to a column.
        values: The rows that delivered messages are to have; None: they are not compared.
        failed: How many rows have no message.
        text: What an error must say.
        twice: Hand it over a second time, which must be refused.
        certain: What is broken can be seen, so it must be refused.
    """

    kind: str
    data: Any
    layout: dict[str, Any]
    lengths: list[int]
    broken: int | None = None
    spoils: tuple[str, ...] = ()
    columns: frozenset[str | None] = frozenset((None,))
    values: list[Any] | None = None
    failed: int = 0
    text: str = ""
    twice: bool = False
    certain: bool = False
    structures: list[Held] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.kind}, {self.layout}: {', '.join(self.spoils) or 'as pyarrow exports it'}"

    def give_up(self) -> None:
        """Release what was not taken."""
        self.data.give_up()
        for held in self.structures:
            held.give_up()


@lru_cache(SHARED)
def _made(seed: int, block: int, number: int) -> Made:
    return make(random.Random(f"{seed}/{block}/{number}"))


def draw(seed: int, number: int) -> Execution:
    """The execution with this number."""
    chance = random.Random(f"{seed}/{number}")
    made = _made(seed, number // BLOCK, chance.randrange(SHARED))
    shape = chance.random()
    if shape < 0.25:
        return _valid_array(chance, made)
    if shape < 0.35:
        return _valid_stream(chance, made)
    if shape < 0.75:
        return _broken_array(chance, made)
    if shape < 0.90:
        return _broken_stream(chance, made)
    if shape < 0.94:
        return _failing_stream(chance, made)
    if shape < 0.98:
        return _other_type(chance, made, _made(seed, number // BLOCK, chance.randrange(SHARED)))
    return _odd_stream(chance, made)


def _layout(random: _Random, made: Made) -> dict[str, Any]:
    """A layout that takes the record batch."""
    layout: dict[str, Any] = {"json": True}
    draw = random.random()
    if made.fields and random.random() < 0.6:
        layout = {"fields_from": random.choice(made.fields)}
    elif not made.in_json or draw < 0.2:
        layout = {
            "arrow_ipc": True,
            "rows_per_entry": random.choice([1, 2, 7, 100]),
            "codec": random.choice([None, "lz4"]),
        }
    elif draw < 0.35:
        layout["rows_per_entry"] = random.choice([2, 7])
    elif draw < 0.6 and (columns := [one.name for one in made.batch.schema if any(of(one.type) for of in _BYTES)]):
        layout = {"payload": random.choice(columns)}
    return layout


def _expect(execution: Execution, made: Made, times: int) -> Execution:
    """Set what a valid execution is to bring."""
    layout = execution.layout
    values: list[Any]
    if "payload" in layout:
        column = made.batch.column(layout["payload"]).to_pylist()
        values = [_bytes(value) for value in column if value is not None]
        execution.failed = times * (len(column) - len(values))
    elif "fields_from" in layout:
        column = made.batch.column(layout["fields_from"]).to_pylist()
        values = [fields for row in column if (fields := _fields(row))]
        execution.failed = times * (len(column) - len(values))
    else:
        values = made.json if "json" in layout else made.rows
    execution.values = values * times
    return execution


def _fields(row: list[Any] | None) -> dict[bytes, bytes] | None:
    """The fields of an entry; empty or None if it has none, or one without a name."""
    items = [(item["name"], item["value"]) if isinstance(item, dict) else item for item in row or () if item]
    pairs = [(name, value) for name, value in items if value is not None]
    if any(name is None for name, _ in pairs):
        return None
    return {_bytes(name): _bytes(value) for name, value in pairs}


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _valid_array(random: _Random, made: Made) -> Execution:
    array = made.array.copy()
    spoils = tuple(vary(random, array))
    data = Batch(made.schema.build(), array.build())
    layout = _layout(random, made)
    twice = random.random() < 0.05
    execution = Execution("valid array", data, layout, [made.array.length], spoils=spoils, twice=twice)
    return _expect(execution, made, 1)


def _valid_stream(random: _Random, made: Made) -> Execution:
    count = random.randrange(4)
    arrays = [made.array.copy() for _ in range(count)]
    spoils = tuple(spoil for array in arrays for spoil in vary(random, array))
    layout = _layout(random, made)
    execution = _stream("valid stream", made.schema, arrays, layout, [made.array.length] * count)
    execution.spoils = spoils
    return _expect(execution, made, count)


def _spoil(random: _Random, made: Made) -> Spoilt:
    array = made.array.copy()
    vary(random, array, to_spoil=True)
    return spoil_batch(random, made.schema, array)


def _broken_array(random: _Random, made: Made) -> Execution:
    spoilt = _spoil(random, made)
    data = Batch(spoilt.schema.build(), spoilt.array.build())
    lengths, layout = [spoilt.array.length], _layout(random, made)
    execution = Execution("broken array", data, layout, lengths, 0, spoilt.spoils, spoilt.columns)
    execution.certain = _is_certain(spoilt, layout)
    return execution


def _is_certain(spoilt: Spoilt, layout: dict[str, Any]) -> bool:
    """Whether a column is broken that the layout reads."""
    names = [f"column{number}" for number in range(len(spoilt.array.children))]
    only = layout.get("payload", layout.get("fields_from"))
    read = [number for number, name in enumerate(names) if only in (None, name)]
    return len(spoilt.schema.children) == len(names) and any(
        is_broken(spoilt.schema, spoilt.array, number) for number in read
    )


def _broken_stream(random: _Random, made: Made) -> Execution:
    spoilt = _spoil(random, made)
    before = random.randrange(3) if all(spoil.startswith(("array", "content")) for spoil in spoilt.spoils) else 0
    arrays = [made.array] * before + [spoilt.array] + [made.array] * random.randrange(2)
    lengths = [array.length for array in arrays]
    if spoilt.array.no_release:  # the end of the stream
        lengths = lengths[:before]
    execution = _stream("broken stream", spoilt.schema, arrays, _layout(random, made), lengths)
    execution.broken, execution.spoils, execution.columns = before, spoilt.spoils, spoilt.columns
    execution.certain = _is_certain(spoilt, execution.layout) and not spoilt.array.no_release
    return execution


def _failing_stream(random: _Random, made: Made) -> Execution:
    """An error of the source: for its schema, or behind some record batches."""
    before = random.randrange(-1, 3)
    text = random.choice([None, b"", _ERROR, b"\xff\xfe"])
    error = (random.choice([EIO, 22, -1, 1 << 20]), text)
    lengths = [made.array.length] * max(before, 0)
    arrays = [made.array] * len(lengths)
    execution = _stream("failing stream", made.schema, arrays, _layout(random, made), lengths, error)
    if before < 0:
        execution.data.stream.schema = lambda: error
    execution.broken, execution.text = len(lengths), _ERROR.decode() if text == _ERROR else ""
    execution.spoils = ("error of get_schema" if before < 0 else "error of get_next",)
    return execution


def _other_type(random: _Random, made: Made, other: Made) -> Execution:
    """A reader whose record batches differ from its schema: pyarrow does not compare them."""
    if not is_safe(made.schema, other.array):
        return _broken_stream(random, made)
    before = random.randrange(3)
    arrays = [made.array] * before + [other.array]
    lengths = [array.length for array in arrays]
    execution = _stream("other type", made.schema, arrays, _layout(random, made), lengths)
    execution.broken, execution.spoils = before, ("another type than the schema",)
    return execution


def _odd_stream(random: _Random, made: Made) -> Execution:
    """Streams without a callback, and schemas that are no struct."""
    child = made.schema.children[0]
    assert child is not None
    what = random.choice(["get_schema", "get_next", "get_last_error", "released", "no struct"])
    schema = child if what == "no struct" else made.schema
    execution = _stream("odd stream", schema, [made.array], _layout(random, made), [made.array.length], (EIO, None))
    execution.broken, execution.spoils = 0, (what,)
    structure = execution.data.stream.held.structure
    if what == "released":
        execution.data.stream.held.give_up()
    elif what == "get_last_error":
        execution.broken = 1
        structure.get_last_error = None
    elif what != "no struct":
        setattr(structure, what, None)
    return execution


def _stream(
    kind: str,
    schema: SchemaNode,
    arrays: list[ArrayNode],
    layout: dict[str, Any],
    lengths: list[int],
    error: tuple[int, bytes | None] | None = None,
) -> Execution:
    """An execution by a stream; its structures are built when they are asked for."""
    execution = Execution(kind, None, layout, lengths)

    def batches() -> Iterator[Held | tuple[int, bytes | None]]:
        for array in arrays:
            held = array.build()
            execution.structures.append(held)
            yield held
        if error is not None:
            yield error

    def give_schema() -> Held:
        held = schema.build()
        execution.structures.append(held)
        return held

    execution.data = Reader(Stream(give_schema, batches()))
    return execution
