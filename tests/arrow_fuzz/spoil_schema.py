"""One field of an ArrowSchema, spoiled."""

from __future__ import annotations

import random
from collections.abc import Callable

from .model import SPARE, SchemaNode

_Random = random.Random

_FORMATS = [
    *(b"n b c C s S i I l L e f g z Z vz u U vu tdD tdm tts ttm ttu ttn tDs tDm tDu tDn tiM tiD tin".split()),
    *(b"tss: tsm: tsu:UTC tsn:+01:30 w:3 w:0 w:64 d:9,2 d:9,2,32 d:9,2,64 d:20,3 d:50,5,256".split()),
    *(b"+s +l +L +m +w:0 +w:1 +w:3 +vl +vL +r +us: +us:0 +ud:0,1".split()),
]
_GARBAGE = [
    *(b" ? + +? ++l w w: w:x w:-1 w:99999999999999999999 +w +w: +w:x +w:-1 +w:9223372036854775807".split(b" ")),
    *(b"d: d:x d:1 d:0,0 d:39,0 d:99,1 d:-1,2 d:10,-200 d:10,2,17 d:10,2,x d:10,2,256,1 t ts tsx:".split()),
    *(b"tsu:Nowhere/City tiX tdX +ud:x +ud: +us:-1 cc int8 \xff\xfe u\xff vx v".split()),
    b"g" * 10_000,
]


def other_format(random: _Random, node: SchemaNode) -> bool:
    node.format = random.choice(_FORMATS)
    return True


def garbage_format(random: _Random, node: SchemaNode) -> bool:
    node.format = random.choice(_GARBAGE)
    return True


def no_format(random: _Random, node: SchemaNode) -> bool:
    node.format = None
    return True


def child_count(random: _Random, node: SchemaNode) -> bool:
    real = len(node.children)
    counts = [-1, -(1 << 63), 0, real - 1, *range(real + 1, real + SPARE)]
    if node.format != b"+s":
        counts += [1 << 40, (1 << 63) - 1]  # the format determines the number
    node.n_children = random.choice(counts)
    return True


def no_children(random: _Random, node: SchemaNode) -> bool:
    node.no_children = True
    return bool(node.children)


def null_child(random: _Random, node: SchemaNode) -> bool:
    if node.children:
        node.children[random.randrange(len(node.children))] = None
    return bool(node.children)


def swapped_children(random: _Random, node: SchemaNode) -> bool:
    random.shuffle(node.children)
    return len(node.children) > 1


def flags(random: _Random, node: SchemaNode) -> bool:
    node.flags = random.choice([0, 1, 2, 4, 7, 8, 255, -1, random.getrandbits(63)])
    return True


def no_name(random: _Random, node: SchemaNode) -> bool:
    node.name = None
    return True


def other_name(random: _Random, node: SchemaNode) -> bool:
    node.name = random.choice([b"", b"column0", b"\xff\xfe", b"a\xc3", b"n" * 70_000])
    return True


def no_dictionary(random: _Random, node: SchemaNode) -> bool:
    had, node.dictionary = node.dictionary, None
    return had is not None


def surplus_dictionary(random: _Random, node: SchemaNode) -> bool:
    if node.dictionary is not None:
        return False
    node.dictionary = (next((child for child in node.children if child is not None), None) or node).copy()
    return True


def released(random: _Random, node: SchemaNode) -> bool:
    node.no_release = True
    return True


SPOILS: list[Callable[[_Random, SchemaNode], bool]] = [
    other_format,
    other_format,
    garbage_format,
    no_format,
    child_count,
    no_children,
    null_child,
    swapped_children,
    flags,
    no_name,
    other_name,
    no_dictionary,
    surplus_dictionary,
    released,
]
#: The changes after which an error may contain another name.
NAMES = (no_name, other_name)
