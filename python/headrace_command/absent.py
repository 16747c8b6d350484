"""Says that a stream does not exist."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.admin import Commands

__all__ = ["absent", "is_absent"]

#: How many keys one SCAN examines.
_EXAMINED = b"1000"
_MOST_NAMED = 3


def is_absent(reply: object) -> bool:
    """Whether the reply to XINFO STREAM says that there is no such key."""
    return str(reply) == "ERR no such key"


def absent(commands: Commands, key: bytes, *, names_similar: bool = True) -> str:
    """Say that there is no stream of this key, and name similar ones, if one SCAN is allowed and finds them."""
    from difflib import get_close_matches

    name = os.fsdecode(key)
    if not names_similar:
        return f"there is no stream {name!r}"
    is_pattern = not {b"*", b"?", b"["}.isdisjoint(key[at : at + 1] for at in range(len(key)))
    words = [b"SCAN", b"0", b"COUNT", _EXAMINED, b"TYPE", b"stream", b"MATCH", key if is_pattern else b"*"]
    (reply,) = commands.call([(key, words)], writes=False)
    keys: Any = reply[1] if isinstance(reply, list) else []
    found = sorted(os.fsdecode(other) for other in keys)
    named = found[:_MOST_NAMED] if is_pattern else get_close_matches(name, found, _MOST_NAMED)
    text = f"there is no stream {name!r}{', and a pattern is not taken' if is_pattern else ''}"
    return f"{text}; similar: {', '.join(map(repr, named))}" if named else text
