"""What the buffers of a format hold: <https://arrow.apache.org/docs/format/CDataInterface.html>."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence

#: Bytes of a value; the formats of decimals and of timestamps begin so.
_WIDTHS = {
    **dict.fromkeys((b"c", b"C"), 1),
    **dict.fromkeys((b"s", b"S", b"e"), 2),
    **dict.fromkeys((b"i", b"I", b"f", b"tdD", b"tts", b"ttm", b"tiM"), 4),
    **dict.fromkeys((b"l", b"L", b"g", b"tdm", b"ttu", b"ttn", b"tiD", b"tDs", b"tDm", b"tDu", b"tDn"), 8),
    b"tin": 16,
}
SMALL, LARGE, VIEWS = (b"u", b"z"), (b"U", b"Z"), (b"vu", b"vz")
LISTS = (b"+l", b"+m", b"+L")
STRUCT, FIXED_LIST = b"+s", b"+w:"
#: Those of list views, unions and run-end encoded arrays are not read by any layout.


def width(kind: bytes) -> int | None:
    """Bytes of a value of fixed width; None: bits, offsets, views, nested or null."""
    if kind.startswith(b"ts"):
        return 8
    if kind.startswith(b"w:"):
        return int(kind[2:])
    if kind.startswith(b"d:"):
        parts = kind[2:].split(b",")
        return int(parts[2]) // 8 if len(parts) == 3 else 16
    return _WIDTHS.get(kind)


def offset_width(kind: bytes) -> int | None:
    """Bytes of an offset; None: the format has none."""
    if kind in (*SMALL, b"+l", b"+m"):
        return 4
    return 8 if kind in (*LARGE, b"+L") else None


def has_validity(kind: bytes) -> bool:
    """Whether the first buffer is a validity bitmap."""
    return kind != b"n"


def sizes(kind: bytes, slots: int, addresses: Sequence[int | None]) -> list[int]:
    """Bytes of each buffer of an array with this many slots, from its start to its last one."""
    bits = (slots + 7) // 8
    if not addresses:
        return []
    if (size := width(kind)) is not None:
        return [bits, size * slots]
    if (size := offset_width(kind)) is not None:
        offsets = size * (slots + 1) if slots else 0
        if kind in LISTS:
            return [bits, offsets]
        end = 0
        if slots and addresses[1]:
            last = ctypes.string_at(addresses[1] + size * slots, size)
            end = int.from_bytes(last, "little", signed=True)
        return [bits, offsets, end]
    if kind == b"b":
        return [bits, bits]
    if kind in VIEWS:
        count = len(addresses) - 3
        data: tuple[int, ...] = ()
        if count:
            assert addresses[-1]
            data = struct.unpack(f"<{count}q", ctypes.string_at(addresses[-1], 8 * count))
        return [bits, 16 * slots, *data, 8 * count]
    assert kind == STRUCT or kind.startswith(FIXED_LIST), kind
    return [bits]
