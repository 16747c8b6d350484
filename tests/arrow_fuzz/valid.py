"""Other structures for the same values, which the standard allows and pyarrow does not export by itself."""

from __future__ import annotations

import random
from collections.abc import Callable

from .layout import FIXED_LIST, STRUCT, VIEWS, has_validity, offset_width, width
from .model import ArrayNode, Buffer, Dangling

_Random = random.Random


def vary(random: _Random, root: ArrayNode, to_spoil: bool = False) -> list[str]:
    """Change some nodes; the values stay. Returns what was done.

    Args:
        random: The chance.
        root: The record batch.
        to_spoil: What comes of it is spoiled then, so all of its memory must be there.
    """
    done = []
    changes = [change for change in CHANGES if not (to_spoil and change is drop_empty_buffers)]
    for _ in range(random.choice([0, 1, 1, 2, 4])):
        change = random.choice(changes)
        nodes = list(root.walk())
        if change(random, random.choice(nodes[1:]) if len(nodes) > 1 and random.random() < 0.9 else root):
            done.append(change.__name__)
    return done


def shift(random: _Random, node: ArrayNode) -> bool:
    """Put slots in front and skip them by the offset."""
    count = random.choice([1, 2, 7, 8, 9, 64])
    if _is_fixed(node):
        return False
    _insert(random, node, node.offset, count)
    node.offset += count
    return True


def lengthen(random: _Random, node: ArrayNode) -> bool:
    """Append slots that the parent does not use."""
    if not node.children or _is_fixed(node):
        return False
    for child in node.children:
        if child is not None:
            count = random.choice([0, 1, 3, 8])
            _insert(random, child, child.offset + child.length, count)
            child.length += count
    return True


def lengthen_dictionary(random: _Random, node: ArrayNode) -> bool:
    """Append values to a dictionary that no key refers to."""
    values = node.dictionary
    if values is None or _is_fixed(values):
        return False
    _insert(random, values, values.offset + values.length, 2)
    values.length += 2
    return True


def leave_nulls_uncounted(random: _Random, node: ArrayNode) -> bool:
    """-1 is for nulls that were not counted."""
    node.null_count = -1
    return True


def spell_validity_out(random: _Random, node: ArrayNode) -> bool:
    """A bitmap for an array without nulls."""
    if not has_validity(node.format) or node.buffers[0] is not None or node.null_count:
        return False
    node.buffers[0] = Buffer(b"\xff" * ((node.offset + node.length + 7) // 8))
    return True


def drop_empty_buffers(random: _Random, node: ArrayNode) -> bool:
    """No memory where there is nothing to read: NULL, or an address of no meaning."""
    if node.length or node.offset or node.format in VIEWS:
        return False
    node.buffers = [random.choice([None, Dangling(random.choice([1, 8, 64, 1 << 40]))]) for _ in node.buffers]
    return True


def misalign(random: _Random, node: ArrayNode) -> bool:
    """Buffers at odd addresses, as they are in a file that was mapped."""
    node.buffers = [
        Buffer(buffer.data, random.randrange(1, 8)) if isinstance(buffer, Buffer) else buffer for buffer in node.buffers
    ]
    return bool(node.buffers)


def give_null_a_buffer(random: _Random, node: ArrayNode) -> bool:
    """A validity bitmap for the type null, as polars exports it: beside the standard, and readable."""
    if has_validity(node.format):
        return False
    node.buffers = [random.choice([None, Buffer(bytes((node.offset + node.length + 7) // 8))])]
    return True


CHANGES: list[Callable[[_Random, ArrayNode], bool]] = [
    shift,
    shift,
    lengthen,
    lengthen_dictionary,
    leave_nulls_uncounted,
    spell_validity_out,
    drop_empty_buffers,
    misalign,
    give_null_a_buffer,
]


def _is_fixed(node: ArrayNode) -> bool:
    """Whether the node takes no more slots: it has no memory, or an empty dictionary, which no key fits."""
    return any(
        any(isinstance(buffer, Dangling) for buffer in below.buffers)
        or (below.dictionary is not None and not below.dictionary.length)
        for below in node.walk()
    )


def _insert(random: _Random, node: ArrayNode, at: int, count: int) -> None:
    """Put slots of any content before slot `at`, counted from the start of the buffers; the length stays."""
    if node.format.startswith(FIXED_LIST) or node.format == STRUCT:
        each = 1 if node.format == STRUCT else int(node.format[len(FIXED_LIST) :])
        for child in node.children:
            assert child is not None
            _insert(random, child, child.offset + at * each, count * each)
            child.length += count * each
    buffers, slots = node.buffers, node.offset + node.length
    if buffers and buffers[0] is not None:
        buffers[0] = Buffer(_insert_bits(random, _data(buffers[0]), at, count, slots))
    if node.null_count > 0 and has_validity(node.format):
        node.null_count = -1  # a slot that was put in, and that counts, may be null
    if node.format == b"b":
        buffers[1] = Buffer(_insert_bits(random, _data(buffers[1]), at, count, slots))
    elif (size := offset_width(node.format)) is not None:
        offsets = _data(buffers[1]) or bytes(size)
        start = at * size
        buffers[1] = Buffer(offsets[:start] + offsets[start : start + size] * count + offsets[start:])
    elif (size := 16 if node.format in VIEWS else width(node.format)) is not None:
        data = _data(buffers[1])
        # Any bytes are an integer or fixed-size binary; keys, views, times and decimals have rules.
        is_free = node.dictionary is None and (len(node.format) == 1 or node.format.startswith(b"w:"))
        new = random.randbytes(count * size) if is_free else bytes(count * size)
        buffers[1] = Buffer(data[: at * size] + new + data[at * size :])


def _data(buffer: Buffer | Dangling | None) -> bytes:
    return b"" if buffer is None else buffer.data


def _insert_bits(random: _Random, data: bytes, at: int, count: int, slots: int) -> bytes:
    bits = int.from_bytes(data, "little") & ((1 << slots) - 1)
    low, high = bits & ((1 << at) - 1), bits >> at
    new = low | random.getrandbits(count) << at | high << (at + count)
    return new.to_bytes((slots + count + 7) // 8, "little")
