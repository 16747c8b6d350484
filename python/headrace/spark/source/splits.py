"""Divides streams into ranges of entry IDs. A server tells no ranks, so time stands for them."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.spark.source.entry_ids import Id

__all__ = ["borders", "cut", "share"]


def cut(first: Id, last: Id, parts: int) -> list[Id]:
    """The inner borders of a range with both ends included: the first ID of each part but the first one.

    By time; within one millisecond by sequence number. Where there are fewer milliseconds than parts, each is a part.
    """
    (first_ms, first_seq), (last_ms, last_seq) = first, last
    if first_ms == last_ms:
        size = last_seq + 1 - first_seq
        parts = min(parts, size)
        return [(first_ms, first_seq + number * size // parts) for number in range(1, parts)]
    size = last_ms + 1 - first_ms
    parts = min(parts, size)
    return [(first_ms + number * size // parts, 0) for number in range(1, parts)]


def share(parts: int, weights: Sequence[int]) -> list[int]:
    """How many parts each stream gets: one at least, the others by weight, and `parts` in all or as many as streams."""
    shares = [1] * len(weights)
    total, left = sum(weights), parts - len(weights)
    if left <= 0 or not total:
        return shares
    exact = [weight * left / total for weight in weights]
    shares = [1 + int(part) for part in exact]
    by_rest = sorted(range(len(weights)), key=lambda number: int(exact[number]) - exact[number])
    for number in by_rest[: parts - sum(shares)]:
        shares[number] += 1
    return shares


def borders(found: Sequence[Id | None]) -> tuple[Id | None, list[Id]]:
    """The first entry of a stream, and those that its other parts begin with.

    `found` has the first entry of each part. A part without entries joins the one before it: it would cost a task.
    """
    entries = [entry for entry in found if entry is not None]
    return (entries[0], entries[1:]) if entries else (None, [])
