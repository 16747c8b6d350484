"""Divides streams into ranges of entry IDs. A server does not report ranks, so time stands in for them."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.spark.source.entry_ids import Id

__all__ = ["borders", "cut", "share"]


def cut(first: Id, last: Id, parts: int) -> list[Id]:
    """Return the inner borders of a range that includes both ends: the first ID of each part except the first.

    The range is cut by time, or by sequence number within one millisecond. With fewer milliseconds than parts, each is
    a part.
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
    """Return how many parts each stream gets: one, and more by weight; `parts` in all, or as many as streams."""
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
    """Return the first entry of a stream, and those with which its other parts begin.

    `found` has the first entry of each part. A part without entries joins the one before it, because it would cost a
    task.
    """
    entries = [entry for entry in found if entry is not None]
    return (entries[0], entries[1:]) if entries else (None, [])
