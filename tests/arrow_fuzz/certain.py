"""Record batches that every consumer must refuse: a slow check of the top-level columns."""

from __future__ import annotations

import struct

from .layout import LISTS, VIEWS, offset_width, width
from .model import ArrayNode, SchemaNode

#: The maximum rows of a record batch; one that claims more is refused, because its columns are shorter.
_MOST_ROWS = 1_000


def is_broken(schema: SchemaNode, root: ArrayNode, column: int) -> bool:
    """Whether this column is too short, or an offset, a key or a view of its rows is impossible.

    False where other fields are spoiled, so that the rows mean nothing.
    """
    field, array = schema.children[column], root.children[column]
    if field is None or array is None or field.format != array.format or root.length < 1 or root.offset < 0:
        return False
    if array.offset < 0 or array.length < 0 or array.n_buffers is not None or array.no_buffers:
        return False
    if array.length < root.offset + root.length:
        return True
    if len(array.buffers) < 2 or array.buffers[1] is None or root.length > _MOST_ROWS:
        return False
    try:
        return _is_content_broken(field, array, array.offset + root.offset, root.length)
    except IndexError:  # beyond the memory: zeros, which are not judged
        return False


def _is_content_broken(field: SchemaNode, array: ArrayNode, start: int, length: int) -> bool:
    rows = range(start, start + length)
    data = b"" if array.buffers[1] is None else array.buffers[1].data
    if (size := offset_width(array.format)) is not None:
        offsets = [_number(data, at, size, True) for at in range(rows.start, rows.stop + 1)]
        elements = array.children[0] if array.format in LISTS and array.children else None
        beyond = elements is not None and elements.length < offsets[-1]
        return offsets[0] < 0 or offsets != sorted(offsets) or beyond
    valid = [row for row in rows if not _is_null(array, row)]
    if array.format in VIEWS:
        return any(_is_wrong_view(array, _piece(data, row, 16)) for row in valid)
    if array.dictionary is not None and field.dictionary is not None and (size := width(array.format)):
        signed = array.format in (b"c", b"s", b"i", b"l")
        count = array.dictionary.length
        return count >= 0 and any(not 0 <= _number(data, row, size, signed) < count for row in valid)
    return False


def _number(data: bytes, at: int, size: int, signed: bool) -> int:
    return int.from_bytes(_piece(data, at, size), "little", signed=signed)


def _piece(data: bytes, at: int, size: int) -> bytes:
    if (at + 1) * size > len(data):
        raise IndexError
    return data[at * size : (at + 1) * size]


def _is_null(array: ArrayNode, row: int) -> bool:
    bits = array.buffers[0]
    return array.null_count != 0 and bits is not None and not bits.data[row // 8] >> row % 8 & 1


def _is_wrong_view(array: ArrayNode, view: bytes) -> bool:
    length, buffer, offset = struct.unpack("<i4xii", view)
    if length < 0 or length <= 12:
        return bool(length < 0)
    sizes = array.buffers[-1]
    count = len(array.buffers) - 3
    if sizes is None or not 0 <= buffer < count or offset < 0:
        return True
    return bool(offset + length > _number(sizes.data, buffer, 8, True))
