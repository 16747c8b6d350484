"""Text that comes from a server or a file, in a form that is safe to show and that can be read back."""

from __future__ import annotations

import base64
import unicodedata

__all__ = ["json_bytes", "printable"]

#: Control characters, formats such as those that turn the direction of text, lone surrogates, separators of lines.
_UNSAFE = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


def printable(text: str | bytes) -> str:
    r"""Text without a character that changes a terminal: `\x1b`, `\u202e`, `\n`; a byte that is no UTF-8 is `\xNN`."""
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
    """A value for JSON: its text, or `{"base64": "…"}` if it is no UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
