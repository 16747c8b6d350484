"""A record batch with one or two spoiled fields, and the columns that they belong to."""

from __future__ import annotations

import random
from dataclasses import dataclass

from . import spoil_array, spoil_content, spoil_schema
from .model import ArrayNode, SchemaNode
from .safety import is_safe

_Random = random.Random


@dataclass(frozen=True)
class Spoilt:
    """What was done: the names of the spoils, and the columns; None stands for the record batch itself."""

    schema: SchemaNode
    array: ArrayNode
    spoils: tuple[str, ...]
    columns: frozenset[str | None]


def spoil_batch(random: _Random, schema: SchemaNode, array: ArrayNode) -> Spoilt:
    """Spoil something that a consumer can see, or that lies within the padding."""
    while True:
        new_schema, new_array = schema.copy(), array.copy()
        done: dict[int, tuple[str, str | None]] = {}
        for _ in range(1 if random.random() < 0.8 else 2):
            column = random.randrange(-1, len(array.children)) if random.random() < 0.9 else -1
            nodes = _nodes(new_schema, new_array, column)
            place = random.randrange(len(nodes))
            of_schema, of_array = nodes[place]
            name = None if column < 0 else f"column{column}"
            key = id(of_array)
            if key in done:
                continue
            if random.random() < 0.3:
                spoil = random.choice(spoil_schema.SPOILS)
                if spoil(random, of_schema):
                    # By another name a column is not known.
                    done[key] = (f"schema.{spoil.__name__}", None if spoil in spoil_schema.NAMES else name)
            elif random.random() < 0.5:
                change = random.choice(spoil_array.SPOILS)
                if change(random, of_array):
                    done[key] = (f"array.{change.__name__}", name)
            else:
                change = random.choice(spoil_content.SPOILS)
                if change(random, of_array):
                    done[key] = (f"content.{change.__name__}", name)
        if done and is_safe(new_schema, new_array):
            spoils, columns = zip(*done.values(), strict=True)
            return Spoilt(new_schema, new_array, tuple(sorted(spoils)), frozenset(columns))


def _nodes(schema: SchemaNode, array: ArrayNode, column: int) -> list[tuple[SchemaNode, ArrayNode]]:
    """The root for -1, else the nodes of a column, as far as earlier spoils left both."""
    if column < 0:
        return [(schema, array)]
    found: list[tuple[SchemaNode, ArrayNode]] = []

    def walk(of_schema: SchemaNode | None, of_array: ArrayNode | None) -> None:
        if of_schema is not None and of_array is not None:
            found.append((of_schema, of_array))
            for pair in zip(of_schema.children, of_array.children, strict=False):
                walk(*pair)
            walk(of_schema.dictionary, of_array.dictionary)

    if column < len(schema.children):
        walk(schema.children[column], array.children[column])
    return found or [(schema, array)]
