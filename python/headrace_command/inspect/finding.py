"""One result of the diagnosis."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Finding", "Remedy"]


class Remedy(NamedTuple):
    """What helps: words, and the command for it.

    Attributes:
        text: What to do.
        program: `redis-cli` or `headrace`; None where no command helps.
        words: The words of the command, without the program and its connection.
        more: A redis-cli command that follows if the first one succeeds.
    """

    text: str
    program: str | None = None
    words: tuple[bytes, ...] = ()
    more: tuple[bytes, ...] = ()


class Finding(NamedTuple):
    """What is wrong, or worth a note.

    Attributes:
        code: Its name for programs.
        is_alarm: Whether something is wrong.
        group: The consumer group, if it is about one.
        text: A sentence.
        remedy: What helps.
    """

    code: str
    is_alarm: bool
    group: bytes | None
    text: str
    remedy: Remedy | None = None
