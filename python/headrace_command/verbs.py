"""The verbs of the command."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable
from typing import NamedTuple

from headrace_command.completion import arguments as completion
from headrace_command.send import arguments as send

__all__ = ["VERBS", "Verb"]


class Verb(NamedTuple):
    """A verb. Its package has the modules `arguments`, and `run` with a function of that name, imported late."""

    name: str
    text: str
    add_arguments: Callable[[ArgumentParser], None]
    aliases: tuple[str, ...] = ()
    connects: bool = True


VERBS = (
    Verb("send", "Send rows of stdin or files to a stream, with an outcome for each.", send.add),
    Verb("completion", "Print the completion script of a shell.", completion.add, connects=False),
)
