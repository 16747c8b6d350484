"""Helpers for tests of the data source's reading half."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import redis


def add(client: redis.Redis, key: str, numbers: Iterable[int], ids: Callable[[int], str] | None = None) -> None:
    """Add an entry with the field `n` for each number; by default each has a millisecond of its own."""
    pipeline = client.pipeline(transaction=False)
    for number in numbers:
        pipeline.xadd(key, {"n": number}, id=ids(number) if ids else f"{1_795_324_724_029 + number}-0")
    pipeline.execute()
