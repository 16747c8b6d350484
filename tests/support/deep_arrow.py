"""Arrow C structures of any depth. Their release callbacks count how deeply those of a real producer would recurse."""

from __future__ import annotations

import ctypes
from ctypes import addressof, c_void_p
from typing import Any

import numpy as np

from support.c_arrow import ArrowArray, ArrowSchema, capsule_of

#: The name of the only column.
COLUMN = "deep"

#: Formats of nested levels, and how often they repeat; a map is two levels.
LAYOUTS: dict[str, tuple[bytes, ...]] = {
    "list": (b"+l",),
    "large list": (b"+L",),
    "fixed-size list": (b"+w:1",),
    "struct": (b"+s",),
    "map": (b"+m", b"+s"),
    "list of struct": (b"+l", b"+s"),
    "dictionary": (b"c",),
    "dictionary of struct": (b"c", b"+s"),
}
_LEAF = b"c"


def formats(layout: str, levels: int) -> list[bytes]:
    """The formats from the record batch down to the leaf; `levels` counts those of the column, including the leaf."""
    cycle = LAYOUTS[layout]
    odd = (levels - 1) % len(cycle)  # a map needs both of its levels, so lists come first
    nested = [b"+l"] * odd + list(cycle) * ((levels - 1) // len(cycle))
    return [b"+s", *nested, _LEAF]


class Chain:
    """Structures each of which holds the next one, as a child or as a dictionary; the entries of maps also hold a key.

    A real producer's callback calls those of its children recursively. Here a loop does the same work, and `deepest` is
    the number of stack frames that a producer would use.
    """

    def __init__(self, kind: type[ArrowSchema | ArrowArray], levels: list[bytes]) -> None:
        self._kind = kind
        is_schema = kind is ArrowSchema
        count = len(levels)
        fields = [name for name, _ in kind._fields_]
        self._at = {name: fields.index(name) for name in fields}
        #: After the chain itself, a key for each level, used by the entries of maps.
        self._nodes = np.zeros((2 * count, len(fields)), np.int64)
        start, size = self._nodes.ctypes.data, ctypes.sizeof(kind)
        below = start + size * np.arange(1, count + 1)
        has_key = np.array(
            [here == b"+s" and above == b"+m" for above, here in zip([b"", *levels], levels, strict=False)]
        )
        self._pointers = np.zeros((count, 2), np.int64)
        self._pointers[:, 0] = np.where(has_key, start + size * (count + np.arange(count)), below)
        self._pointers[:, 1] = np.where(has_key, below, 0)
        leaf = np.arange(count) == count - 1
        by_dictionary = np.array([level == _LEAF for level in levels]) & ~leaf
        children = np.where(leaf | by_dictionary, 0, 1 + has_key)
        chain = self._nodes[:count]
        chain[:, self._at["n_children"]] = children
        chain[:, self._at["children"]] = np.where(children > 0, self._pointers.ctypes.data + 16 * np.arange(count), 0)
        chain[:, self._at["dictionary"]] = np.where(by_dictionary, below, 0)
        self._memory: list[Any] = []
        (self._fill_schema if is_schema else self._fill_array)([*levels, *[_LEAF] * count])
        self._callback = ctypes.CFUNCTYPE(None, c_void_p)(self._release)
        self._nodes[:, self._at["release"]] = ctypes.cast(self._callback, c_void_p).value or 0
        self._nodes[:, self._at["private_data"]] = np.arange(1, 2 * count + 1)
        self._nodes[count:][~has_key] = 0  # keys that belong to no map
        self._exists = self._nodes[:, self._at["release"]] != 0
        self._released = np.zeros(2 * count, np.int64)
        self._count = count
        self.deepest = 0
        self.root = kind.from_address(start)

    @property
    def released_once(self) -> bool:
        """Whether each structure was released, and none twice."""
        return bool((self._released == self._exists).all())

    def give_up(self) -> None:
        """Release what was not moved out of the root, as a capsule's destructor does."""
        if self.root.release:
            self._release(addressof(self.root))

    def _text(self, text: bytes) -> int:
        buffer = ctypes.create_string_buffer(text)
        self._memory.append(buffer)
        return addressof(buffer)

    def _fill_schema(self, levels: list[bytes]) -> None:
        known = {level: self._text(level) for level in set(levels)}
        self._nodes[:, self._at["format"]] = [known[level] for level in levels]
        self._nodes[:, self._at["name"]] = self._text(b"a")
        self._nodes[1, self._at["name"]] = self._text(COLUMN.encode())
        self._nodes[:, self._at["flags"]] = 2  # nullable

    def _fill_array(self, levels: list[bytes]) -> None:
        offsets32, offsets64, byte = (np.array([0, 1], kind) for kind in (np.int32, np.int64, np.int8))
        second = {b"+l": offsets32, b"+m": offsets32, b"+L": offsets64, _LEAF: byte}
        known = {}
        for level in set(levels):
            data = second.get(level)
            buffers = np.array([0] if data is None else [0, data.ctypes.data], np.int64)
            self._memory += [data, buffers]
            known[level] = (len(buffers), buffers.ctypes.data)
        self._nodes[:, self._at["length"]] = 1
        self._nodes[:, self._at["n_buffers"]] = [known[level][0] for level in levels]
        self._nodes[:, self._at["buffers"]] = [known[level][1] for level in levels]

    def _release(self, address: int) -> None:
        node = self._kind.from_address(address)
        at = node.private_data - 1
        node.release = None
        self._released[at] += 1
        frames = 1
        while at < self._count:
            if key := self._nodes[self._count + at, self._at["release"]]:
                del key
                self._end(self._count + at)
            at += 1
            if at == self._count or not self._nodes[at, self._at["release"]]:
                break
            self._end(at)
            frames += 1
        self.deepest = max(self.deepest, frames)

    def _end(self, at: int) -> None:
        self._nodes[at, self._at["release"]] = 0
        self._released[at] += 1


class Deep:
    """A record batch of two chains, as `__arrow_c_array__` returns it."""

    def __init__(self, schema: list[bytes], array: list[bytes]) -> None:
        self.chains = Chain(ArrowSchema, schema), Chain(ArrowArray, array)

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        schema, array = self.chains
        return capsule_of(schema.root), capsule_of(array.root)

    def give_up(self) -> None:
        """Release what was not taken."""
        for chain in self.chains:
            chain.give_up()
