"""Escapes text from a server or a file, so that it is safe to show and can be read back."""

from __future__ import annotations

import base64
import unicodedata

__all__ = ["json_bytes", "printable"]

#: Control and format characters (such as those that reverse the text direction), lone surrogates, line separators.
_UNSAFE = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


def printable(text: str | bytes) -> str:
    r"""Escape characters that affect a terminal: `\x1b`, `\u202e`, `\n`. A byte that is not UTF-8 becomes `\xNN`."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogateescape")
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(character) for character in text)


def _escaped(character: str) -> str:
    if 0xDC80 <= ord(character) <= 0xDCFF:
        return f"\\x{ord(character) - 0xDC00:02x}"
    if unicodedata.category(character) in _UNSAFE:
        return character.encode("unicode_escape").decode()
    return character


def json_bytes(value: bytes) -> str | dict[str, str]:
    """Return a value for JSON: its text, or `{"base64": "…"}` if it is not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
