"""The arguments of `headrace completion`."""

from __future__ import annotations

from headrace_command.command_parser import CommandParser

__all__ = ["add"]

_EXAMPLES = ("source <(headrace completion bash)",)


def add(parser: CommandParser) -> None:
    """Add the arguments."""
    parser.examples = _EXAMPLES
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
