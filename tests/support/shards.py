"""Shards as found by a reader who has only the documentation."""

from __future__ import annotations

import binascii
import zlib


def murmur2(key: bytes) -> int:
    """The 31-bit hash of Kafka's Java client."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    state = 0x9747B28C ^ len(key)
    whole = len(key) // 4 * 4
    for at in range(0, whole, 4):
        word = int.from_bytes(key[at : at + 4], "little") * m & mask
        state = state * m & mask ^ (word ^ word >> 24) * m & mask
    if rest := key[whole:]:
        state = (state ^ int.from_bytes(rest, "little")) * m & mask
    state = (state ^ state >> 13) * m & mask
    return (state ^ state >> 15) & 0x7FFFFFFF


def shard_of(key: bytes, shards: int, hashed: str = "murmur2") -> int:
    return (murmur2(key) if hashed == "murmur2" else zlib.crc32(key)) % shards


def key_of(shard: int, shards: int) -> str:
    """A key that belongs to this shard."""
    return next(key for key in map(str, range(1_000_000)) if shard_of(key.encode(), shards) == shard)


def slot(tag: str) -> int:
    """The slot of a key without braces, by Python's CRC-16/XMODEM."""
    return binascii.crc_hqx(tag.encode(), 0) % 16_384


def spread_tag(shard: int, shards: int) -> str:
    """The smallest hexadecimal number whose slot is the middle one of the shard's range."""
    middle = (2 * shard + 1) * 16_384 // (2 * shards)
    return next(tag for number in range(1 << 20) if slot(tag := f"{number:x}") == middle)
