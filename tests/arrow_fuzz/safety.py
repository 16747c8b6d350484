"""Whether a consumer that checks what it can reads no foreign memory, where schema and array do not fit each other."""

from __future__ import annotations

from .layout import LARGE, SMALL, offset_width, width
from .model import PADDING, ArrayNode, SchemaNode


def is_safe(schema: SchemaNode | None, array: ArrayNode | None) -> bool:
    """Offsets of text and bytes are all that nothing bounds: so only what holds such offsets may be read as text."""
    if schema is None or array is None or schema.format is None:
        return True
    reads, holds = schema.format, array.format
    buffers = len(array.buffers) if array.n_buffers is None else array.n_buffers
    if buffers == 3 and (size := offset_width(reads)) is not None and reads in (*SMALL, *LARGE):
        held = offset_width(holds) if holds in (*SMALL, *LARGE) else None
        if held is None or held < size:
            return False
    if reads != holds and _values(reads) * abs(array.offset + array.length) > PADDING:
        return False
    return is_safe(schema.dictionary, array.dictionary) and all(
        map(is_safe, schema.children, array.children)  # those without a counterpart are refused
    )


def _values(kind: bytes) -> int:
    try:
        return width(kind) or 0
    except ValueError:
        return 0
