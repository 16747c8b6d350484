"""The structures of a record batch as Python objects, which can be copied and spoiled before they are handed over."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from ctypes import addressof, c_void_p
from typing import Any

import pyarrow as pa

from support.c_arrow import ArrowArray, ArrowSchema, Held, in_capsule

from .layout import sizes

#: Zero bytes behind each buffer, so that a wrong length reads nothing foreign.
PADDING = 1 << 16
#: NULL pointers behind each array of pointers, likewise.
SPARE = 12


class Buffer:
    """Bytes at an address that is aligned to 64, or off by `shift`."""

    __slots__ = ("_memory", "address", "size")

    def __init__(self, data: bytes, shift: int = 0) -> None:
        self._memory = ctypes.create_string_buffer(len(data) + PADDING + 128)
        self.address = (addressof(self._memory) + 127) // 64 * 64 + shift
        self.size = len(data)
        ctypes.memmove(self.address, data, len(data))

    @property
    def data(self) -> bytes:
        return ctypes.string_at(self.address, self.size)


class Dangling:
    """An address behind which there is nothing, as an empty buffer may have one."""

    __slots__ = ("address", "size")

    def __init__(self, address: int = 64) -> None:
        self.address, self.size = address, 0

    @property
    def data(self) -> bytes:
        return b""


class SchemaNode:
    """An ArrowSchema. `n_children` overrides the number of children; `None` among them is a NULL pointer."""

    __slots__ = ("children", "dictionary", "flags", "format", "n_children", "name", "no_children", "no_release")

    def __init__(self, structure: ArrowSchema) -> None:
        self.format: bytes | None = ctypes.string_at(structure.format)
        self.name: bytes | None = ctypes.string_at(structure.name) if structure.name else None
        self.flags: int = structure.flags
        self.n_children: int | None = None
        self.no_children = self.no_release = False
        self.children: list[SchemaNode | None] = [
            SchemaNode(ArrowSchema.from_address(at)) for at in _pointers(structure.children, structure.n_children)
        ]
        self.dictionary: SchemaNode | None = (
            SchemaNode(ArrowSchema.from_address(structure.dictionary)) if structure.dictionary else None
        )

    def copy(self) -> SchemaNode:
        """A copy of the tree."""
        copy: SchemaNode = _copy(self)
        return copy

    def walk(self) -> Iterator[SchemaNode]:
        """This node and those below it."""
        return _walk(self)

    def build(self) -> Held:
        """The structures; each is to be released once."""
        structure = ArrowSchema()
        structure.flags = self.flags
        structure.n_children = len(self.children) if self.n_children is None else self.n_children
        texts = [None if text is None else ctypes.create_string_buffer(text) for text in (self.format, self.name)]
        structure.format, structure.name = (None if text is None else addressof(text) for text in texts)
        return _finish(self, structure, [texts])


class ArrayNode:
    """An ArrowArray. `n_buffers` and `n_children` override what is counted; `format` is what its memory holds."""

    __slots__ = (
        "buffers",
        "children",
        "dictionary",
        "format",
        "length",
        "n_buffers",
        "n_children",
        "no_buffers",
        "no_children",
        "no_release",
        "null_count",
        "offset",
    )

    def __init__(self, structure: ArrowArray, schema: SchemaNode) -> None:
        assert schema.format is not None
        self.format: bytes = schema.format
        self.length: int = structure.length
        self.null_count: int = structure.null_count
        self.offset: int = structure.offset
        self.n_buffers: int | None = None
        self.n_children: int | None = None
        self.no_buffers = self.no_children = self.no_release = False
        addresses = list(_pointers(structure.buffers, structure.n_buffers))
        counted = sizes(self.format, self.offset + self.length, addresses)
        self.buffers: list[Buffer | Dangling | None] = [
            Buffer(ctypes.string_at(address, size)) if address else None
            for address, size in zip(addresses, counted, strict=True)
        ]
        children = [ArrowArray.from_address(at) for at in _pointers(structure.children, structure.n_children)]
        self.children: list[ArrayNode | None] = [
            ArrayNode(child, of) for child, of in zip(children, schema.children, strict=True) if of is not None
        ]
        self.dictionary: ArrayNode | None = None
        if structure.dictionary:
            assert schema.dictionary is not None
            self.dictionary = ArrayNode(ArrowArray.from_address(structure.dictionary), schema.dictionary)

    def copy(self) -> ArrayNode:
        """A copy of the tree, with the same buffers."""
        copy: ArrayNode = _copy(self)
        copy.buffers = list(self.buffers)
        return copy

    def walk(self) -> Iterator[ArrayNode]:
        """This node and those below it."""
        return _walk(self)

    def build(self) -> Held:
        """The structures; each is to be released once."""
        structure = ArrowArray()
        structure.length, structure.null_count, structure.offset = self.length, self.null_count, self.offset
        structure.n_buffers = len(self.buffers) if self.n_buffers is None else self.n_buffers
        structure.n_children = len(self.children) if self.n_children is None else self.n_children
        buffers = (c_void_p * (len(self.buffers) + SPARE))(
            *(None if buffer is None else buffer.address for buffer in self.buffers)
        )
        if not self.no_buffers:
            structure.buffers = addressof(buffers)
        return _finish(self, structure, [buffers, self.buffers])


def model_of(batch: pa.RecordBatch) -> tuple[SchemaNode, ArrayNode]:
    """The structures that pyarrow exports for a record batch; its buffers are copied."""
    schema, array = batch.__arrow_c_array__()
    root = SchemaNode(in_capsule(schema, ArrowSchema))
    return root, ArrayNode(in_capsule(array, ArrowArray), root)


def _pointers(address: int | None, count: int) -> list[int]:
    return list((c_void_p * count).from_address(address)) if address and count else []


def _copy(node: Any) -> Any:
    copy = object.__new__(type(node))
    for name in node.__slots__:
        setattr(copy, name, getattr(node, name))
    copy.children = [child and child.copy() for child in node.children]
    copy.dictionary = node.dictionary and node.dictionary.copy()
    return copy


def _walk(node: Any) -> Iterator[Any]:
    yield node
    for child in (*node.children, node.dictionary):
        if child is not None:
            yield from _walk(child)


def _finish(node: Any, structure: Any, memory: list[object]) -> Held:
    """Build what is below the node and hang it into its structure."""
    children = [None if child is None else child.build() for child in node.children]
    dictionary = None if node.dictionary is None else node.dictionary.build()
    pointers = (c_void_p * (len(children) + SPARE))(
        *(None if child is None else addressof(child.structure) for child in children)
    )
    if not node.no_children:
        structure.children = addressof(pointers)
    if dictionary is not None:
        structure.dictionary = addressof(dictionary.structure)
    held = Held(structure, [*memory, pointers], [child for child in (*children, dictionary) if child is not None])
    if node.no_release:
        held.give_up()
    return held
