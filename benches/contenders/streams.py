"""The streams of the cluster benchmarks: 64, in a random but fixed order, on all nodes; and as many shards."""

from __future__ import annotations

from random import Random

from benches.turns import Target

STREAMS = 64


def stream_keys(target: Target) -> list[str]:
    # Longer than what the counting server compares, and all of the same length.
    return [f"{target.stream_key}:stream-{number:02d}" for number in range(STREAMS)]


def keys_of_rows(target: Target) -> list[str]:
    """The key of each row of a batch."""
    return Random(STREAMS).choices(stream_keys(target), k=target.batch)


def shard_keys_of_rows(target: Target) -> list[str]:
    """The shard key of each row of a batch: one of ten thousand customers."""
    return [f"customer-{number:04d}" for number in Random(STREAMS).choices(range(10_000), k=target.batch)]
