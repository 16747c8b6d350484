"""One field of an ArrowArray, spoiled. Functions return False where there is nothing to spoil."""

from __future__ import annotations

import random
from collections.abc import Callable

from .layout import FIXED_LIST, STRUCT, VIEWS, has_validity
from .model import SPARE, ArrayNode, Buffer

_Random = random.Random
_MAX = (1 << 63) - 1


def length(random: _Random, node: ArrayNode) -> bool:
    """Lengths that no one can check are small enough for the padding."""
    lengths = [-1, -(1 << 63), -_MAX, 0, node.length - 1, node.length + 1, node.length + 8, node.length + 500]
    if _children_limit(node):
        lengths += [1 << 31, 1 << 40, 1 << 62, _MAX]
    node.length = random.choice(lengths)
    return True


def offset(random: _Random, node: ArrayNode) -> bool:
    offsets = [-1, -(1 << 63), node.offset + 1, node.offset + 8, node.offset + 500, 0]
    if _children_limit(node):
        offsets += [1 << 31, 1 << 40, 1 << 62]
    if _children_limit(node) or node.length > 0:
        offsets += [_MAX, _MAX - node.length + 1]  # their sum does not fit 64 bits
    node.offset = random.choice(offsets)
    return True


def null_count(random: _Random, node: ArrayNode) -> bool:
    node.null_count = random.choice([-1, -2, -(1 << 63), 0, 1, node.length + 1, _MAX])
    return True


def buffer_count(random: _Random, node: ArrayNode) -> bool:
    real = len(node.buffers)
    counts = [-1, -(1 << 63), 0, real - 1, *range(real + 1, real + SPARE)]
    if node.format not in VIEWS:
        counts += [1 << 40, _MAX]  # the format determines the number
    node.n_buffers = random.choice(counts)
    return True


def child_count(random: _Random, node: ArrayNode) -> bool:
    real = len(node.children)
    node.n_children = random.choice([-1, -(1 << 63), 0, real - 1, real + 1, real + 5, 1 << 40, _MAX])
    return True


def no_buffers(random: _Random, node: ArrayNode) -> bool:
    node.no_buffers = True
    return bool(node.buffers)


def null_buffer(random: _Random, node: ArrayNode) -> bool:
    if node.buffers:
        node.buffers[random.randrange(len(node.buffers))] = None
    return bool(node.buffers)


def surplus_nulls(random: _Random, node: ArrayNode) -> bool:
    """Nulls where there were none: in a record batch there are no null rows."""
    if not has_validity(node.format):
        return False
    node.buffers[0] = Buffer(random.randbytes(max(node.offset + node.length, 0) // 8 + 1))
    node.null_count = random.choice([-1, 0, 1, max(node.length, 0)])
    return True


def no_children(random: _Random, node: ArrayNode) -> bool:
    node.no_children = True
    return bool(node.children)


def null_child(random: _Random, node: ArrayNode) -> bool:
    if node.children:
        node.children[random.randrange(len(node.children))] = None
    return bool(node.children)


def no_dictionary(random: _Random, node: ArrayNode) -> bool:
    had, node.dictionary = node.dictionary, None
    return had is not None


def surplus_dictionary(random: _Random, node: ArrayNode) -> bool:
    if node.dictionary is not None:
        return False
    node.dictionary = (next((child for child in node.children if child is not None), None) or node).copy()
    return True


def released(random: _Random, node: ArrayNode) -> bool:
    node.no_release = True
    return True


def _children_limit(node: ArrayNode) -> bool:
    """Whether a wrong length can be seen by the children's."""
    is_list = node.format.startswith(FIXED_LIST) and node.format != b"+w:0"
    return bool(node.children) and (node.format == STRUCT or is_list)


SPOILS: list[Callable[[_Random, ArrayNode], bool]] = [
    length,
    length,
    offset,
    null_count,
    buffer_count,
    child_count,
    no_buffers,
    null_buffer,
    surplus_nulls,
    no_children,
    null_child,
    no_dictionary,
    surplus_dictionary,
    released,
]
