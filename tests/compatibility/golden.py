"""Golden files: JSON, one folder for each version of what is stored."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

__all__ = ["FOLDERS", "NEWEST", "bytes_of", "read", "show", "write"]

_ROOT = Path(__file__).parent / "golden"
#: From the oldest version to the newest, which is what this version writes.
FOLDERS = sorted(_ROOT.iterdir(), key=lambda folder: [int(part) for part in folder.name.split(".")])
NEWEST = FOLDERS[-1]

_HEX = "hex "
_TIME = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
#: In the place of the time of a dispatch.
_NOW = "<time of the dispatch>"


def show(value: bytes) -> str:
    """Bytes as text; those that are no printable ASCII, or would read as such, in hexadecimal digits."""
    text = value.decode("latin-1")
    plain = text.isascii() and text.isprintable() and not text.startswith((_HEX, _NOW))
    return text if plain else _HEX + value.hex()


def show_fields(fields: dict[bytes, bytes]) -> list[list[str]]:
    """The fields of an entry, in their order, without the time at which it was written."""
    shown = []
    for name, value in fields.items():
        is_now = name == b"ts" and _TIME.fullmatch(value)
        shown.append([show(name), _NOW if is_now else show(value)])
    return shown


def bytes_of(text: str) -> bytes:
    """The bytes that `show` has made readable."""
    if text == _NOW:
        return b"2026-11-25T12:00:00.000Z"
    return bytes.fromhex(text.removeprefix(_HEX)) if text.startswith(_HEX) else text.encode()


def read(folder: Path, name: str) -> Any:
    """Read a golden file."""
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


def write(folder: Path, name: str, content: object) -> None:
    """Write a golden file."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, indent=1, ensure_ascii=False)
    (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
