"""The verbs of the command."""

from __future__ import annotations

TYPE_CHECKING = False  # typing takes as long to import as all of this
if TYPE_CHECKING:
    from headrace_command.command_parser import CommandParser

__all__ = ["VERBS", "Verb", "spelled_out", "verb_of"]


class Verb:
    """A verb. Its package has the modules `arguments` and `run`, which are imported when needed.

    Args:
        name: The word.
        text: What it does.
        aliases: Other words for it.
        connects: Whether it has the options of an endpoint.
    """

    def __init__(self, name: str, text: str, aliases: tuple[str, ...] = (), *, connects: bool = True) -> None:
        self.name = name
        self.text = text
        self.aliases = aliases
        self.connects = connects

    @property
    def package(self) -> str:
        """The name of its package."""
        return f"headrace_command.{self.name.replace('-', '_')}"

    def add_arguments(self, parser: CommandParser) -> None:
        """Add its arguments to its parser."""
        from importlib import import_module

        from headrace_command.option_groups import add_connection

        import_module(f"{self.package}.arguments").add(parser)
        if self.connects:
            add_connection(parser)


VERBS = (
    Verb("send", "Send rows from stdin or files to a stream, with an outcome for each."),
    Verb("read", "Print the entries of streams; no group is touched.", ("tail",)),
    Verb("inspect", "Say why a consumer is stuck, and what helps."),
    Verb("check", "Check the connection, the rights and the server, and change nothing."),
    Verb("dead-letters", "List dead letters, show them, write them again, or delete them."),
    Verb("completion", "Print the completion script of a shell.", connects=False),
)


def spelled_out(words: list[str]) -> list[str]:
    """Return a command line in which `help VERB` is `VERB --help`."""
    return [*words[1:], "--help"] if words[:1] == ["help"] else words


def verb_of(words: list[str]) -> str | None:
    """Return the verb of a command line, if it comes before any other word."""
    first = next((word for word in words if not word.startswith("-")), None)
    return next((verb.name for verb in VERBS if first in (verb.name, *verb.aliases)), None)
