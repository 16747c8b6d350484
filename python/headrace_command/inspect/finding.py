"""One result of the diagnosis."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Finding", "Remedy"]


class Remedy(NamedTuple):
    """A remedy: advice, and the command for it.

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
    """A problem, or a fact worth a note.

    Attributes:
        code: Its name for programs.
        is_alarm: Whether something is wrong.
        group: The consumer group that it concerns, if any.
        text: A sentence.
        remedy: What to do about it.
    """

    code: str
    is_alarm: bool
    group: bytes | None
    text: str
    remedy: Remedy | None = None
