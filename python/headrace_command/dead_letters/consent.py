"""Asks for consent before a change."""

from __future__ import annotations

import sys

from headrace_command.messages import Messages
from headrace_command.usage_error import UsageError

__all__ = ["consents"]


def consents(question: str, messages: Messages, *, is_given: bool) -> bool:
    """Return whether the user agrees, on the terminal or by `--yes`.

    Raises:
        UsageError: There is no terminal to ask on.
    """
    if is_given:
        messages.say(question)
        return True
    if not (sys.stdin.isatty() and messages.is_terminal):
        raise UsageError(f"{question}: without a terminal this needs --yes")
    messages.ask(f"{question}? [y/N]")
    answer = sys.stdin.readline().strip().lower()
    return answer in ("y", "yes")
