"""Reads the expiry of a certificate."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["not_after"]

_INTEGER, _SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x02, 0x30, 0xA0, 0x17, 0x18


def not_after(der: bytes) -> datetime | None:
    """Return the end of a certificate's validity (RFC 5280, 4.1); None if it cannot be read.

    The standard library reads certificates only from files and from its own connections.
    """
    try:
        certificate, _ = _take(der, _SEQUENCE)
        rest, _ = _take(certificate, _SEQUENCE)
        if rest[0] == _VERSION:
            _, rest = _take(rest, _VERSION)
        for tag in (_INTEGER, _SEQUENCE, _SEQUENCE):  # serial number, signature algorithm, issuer
            _, rest = _take(rest, tag)
        validity, _ = _take(rest, _SEQUENCE)
        _, rest = _take(validity, validity[0])
        tag = rest[0]
        text = _take(rest, tag)[0].decode("ascii")
        if tag == _UTC_TIME:  # two digits of a year from 1950 to 2049
            text = ("19" if text[:2] >= "50" else "20") + text
        elif tag != _GENERALIZED_TIME:
            return None
        return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
    except (IndexError, ValueError):
        return None


def _take(data: bytes, tag: int) -> tuple[bytes, bytes]:
    """The content of the first element, and what follows it."""
    if data[0] != tag:
        raise ValueError("another element")
    length, at = data[1], 2
    if length & 0x80:
        at += length & 0x7F
        length = int.from_bytes(data[2:at], "big")
    if at + length > len(data):
        raise ValueError("cut short")
    return data[at : at + length], data[at + length :]
