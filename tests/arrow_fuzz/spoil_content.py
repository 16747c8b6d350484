"""The content of an array's buffers, spoiled: offsets, keys, views and text."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

from .layout import LARGE, LISTS, SMALL, VIEWS, offset_width, width
from .model import ArrayNode, Buffer

_Random = random.Random


def decreasing_offsets(random: _Random, node: ArrayNode) -> bool:
    """One that is larger than the last one; the last one stays."""
    size = offset_width(node.format)
    if size is None or node.length < 1:
        return False
    at = node.offset + random.randrange(node.length)
    last = _read(node, 1, node.offset + node.length, size)
    above = [1, 2, 100, 1000]
    if node.format in LISTS:  # of text a parent may use the rows up to here alone
        above += [1 << 20, (1 << (8 * size - 1)) - 1 - last]
    return _write(node, 1, at, size, last + random.choice(above))


def negative_offset(random: _Random, node: ArrayNode) -> bool:
    size = offset_width(node.format)
    if size is None or node.length < 1:
        return False
    at = node.offset + random.randrange(node.length + 1)
    return _write(node, 1, at, size, random.choice([-1, -8, -(1 << (8 * size - 1))]))


def offset_beyond(random: _Random, node: ArrayNode) -> bool:
    """The last one: beyond the child of a list; of text only by what the padding allows."""
    size = offset_width(node.format)
    if size is None or node.length < 1:
        return False
    end = node.offset + node.length
    last = _read(node, 1, end, size)
    beyond = [1, 7, 1000]
    if node.format in LISTS:
        beyond += [1 << 20, (1 << (8 * size - 1)) - 1 - last]
    return _write(node, 1, end, size, last + random.choice(beyond))


def wrong_key(random: _Random, node: ArrayNode) -> bool:
    """A key of a dictionary: none of its values, or negative."""
    if node.dictionary is None or node.length < 1:
        return False
    size = width(node.format)
    assert size is not None
    count = node.dictionary.length
    largest = (1 << (8 * size)) - 1
    keys = [count, count + 1, largest, largest >> 1, (largest >> 1) + 1]
    at = node.offset + random.randrange(node.length)
    return _write_raw(node, 1, at * size, (random.choice(keys) & largest).to_bytes(size, "little"))


def wrong_view(random: _Random, node: ArrayNode) -> bool:
    """A view's length, prefix, buffer or offset."""
    if node.format not in VIEWS or node.length < 1:
        return False
    at = 16 * (node.offset + random.randrange(node.length))
    count = len(node.buffers) - 3
    which = random.randrange(4)
    numbers = [0, 1, -1, 12, 13, 41, 1000, 1 << 20, (1 << 31) - 1, -(1 << 31), count, count + 1]
    return _write_raw(node, 1, at + 4 * which, struct.pack("<i", random.choice(numbers)))


def long_view(random: _Random, node: ArrayNode) -> bool:
    """A view into a buffer, of any numbers."""
    if node.format not in VIEWS or node.length < 1:
        return False
    at = 16 * (node.offset + random.randrange(node.length))
    count = len(node.buffers) - 3
    length = random.choice([13, 40, 1000, (1 << 31) - 1])
    offset = random.choice([0, 1, -1, 40, 100, (1 << 31) - 1])
    buffer = random.choice([0, 0, -1, count, count - 1])
    if count and random.random() < 0.5:  # at the end of the first buffer, or a byte beyond
        length = random.choice([13, 20])
        offset = max(_read(node, len(node.buffers) - 1, 0, 8) - length, 0) + random.choice([0, 1])
    return _write_raw(node, 1, at, struct.pack("<i4sii", length, b"abcd", buffer, offset))


def wrong_sizes(random: _Random, node: ArrayNode) -> bool:
    """The size of a view's buffer: too small, or negative."""
    if node.format not in VIEWS or len(node.buffers) < 4:
        return False
    at = random.randrange(len(node.buffers) - 3)
    return _write(node, len(node.buffers) - 1, at, 8, random.choice([0, 1, -1, -(1 << 63)]))


def wrong_text(random: _Random, node: ArrayNode) -> bool:
    """Bytes that are not UTF-8."""
    which = 1 if node.format in VIEWS else 2
    if node.format not in (*SMALL, *LARGE, *VIEWS) or not node.length:
        return False
    buffer = node.buffers[which]
    if buffer is None or not buffer.size:
        return False
    at = random.randrange(buffer.size)
    if which == 1:  # within a short value, or the prefix of a long one
        at = 16 * (node.offset + random.randrange(node.length)) + 4 + random.randrange(4)
    return _write_raw(node, which, at, bytes([random.choice([0xFF, 0xC0, 0x80, 0xF5])]))


SPOILS: list[Callable[[_Random, ArrayNode], bool]] = [
    decreasing_offsets,
    negative_offset,
    offset_beyond,
    wrong_key,
    wrong_key,
    wrong_view,
    long_view,
    wrong_sizes,
    wrong_text,
]


def _read(node: ArrayNode, buffer: int, at: int, size: int) -> int:
    held = node.buffers[buffer]
    data = b"" if held is None else held.data
    return int.from_bytes(data[at * size : (at + 1) * size], "little", signed=True)


def _write(node: ArrayNode, buffer: int, at: int, size: int, number: int) -> bool:
    number = min(number, (1 << (8 * size - 1)) - 1)
    return _write_raw(node, buffer, at * size, number.to_bytes(size, "little", signed=True))


def _write_raw(node: ArrayNode, buffer: int, at: int, data: bytes) -> bool:
    held = node.buffers[buffer]
    if held is None or at + len(data) > held.size:
        return False
    before = held.data
    node.buffers[buffer] = Buffer(before[:at] + data + before[at + len(data) :])
    return True
