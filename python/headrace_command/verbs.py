"""The verbs of the command, and the parser that knows them."""

from __future__ import annotations

from headrace_command.parser import CommandParser

__all__ = ["VERBS", "Verb", "make_parser", "spelled_out", "verb_of"]

_DESCRIPTION = "Redis Streams from the command line: data on stdout, messages on stderr."
_EXIT_CODES = (
    "exit codes: 0 all delivered, 1 some failed, 2 usage, 3 no connection, TLS or rights, 4 unknown whether some were "
    "written, 130 and 143 interrupted"
)
_EXAMPLES = (
    "headrace send orders < orders.jsonl",
    "headrace read orders --last 10 --follow",
    "headrace help send",
)


class Verb:
    """A verb. What runs it is imported when needed.

    Args:
        name: The word.
        module: The module with its function `run`.
        text: What it does.
        aliases: Other words for it.
        connects: Whether it has the options of an endpoint.
    """

    def __init__(
        self, name: str, module: str, text: str, aliases: tuple[str, ...] = (), *, connects: bool = True
    ) -> None:
        self.name = name
        self.module = f"headrace_command.{module}"
        self.text = text
        self.aliases = aliases
        self.connects = connects

    def add_arguments(self, parser: CommandParser) -> None:
        """Add its arguments to its parser."""
        from headrace_command.arguments import add_arguments
        from headrace_command.options import add_connection

        add_arguments(self.name, parser)
        if self.connects:
            add_connection(parser)


VERBS = (
    Verb("send", "send.run", "Send rows from stdin or files to a stream, with an outcome for each."),
    Verb("read", "read.run", "Print the entries of streams; no group is touched.", ("tail",)),
    Verb("inspect", "inspect.run", "Say why a consumer is stuck, and what helps."),
    Verb("check", "check.run", "Check the connection, the rights and the server, and change nothing."),
    Verb("dead-letters", "dead_letters.run", "List dead letters, show them, write them again, or delete them."),
    Verb("shards", "shards", "Pin the shards of a stream to members of a group, or free them."),
    Verb("completion", "completion", "Print the completion script of a shell.", connects=False),
)


def spelled_out(words: list[str]) -> list[str]:
    """Return a command line in which `help VERB` is `VERB --help`."""
    return [*words[1:], "--help"] if words[:1] == ["help"] else words


def verb_of(words: list[str]) -> str | None:
    """Return the verb of a command line, if it comes before any other word."""
    first = next((word for word in words if not word.startswith("-")), None)
    return next((verb.name for verb in VERBS if first in (verb.name, *verb.aliases)), None)


def make_parser(only: str | None = None) -> CommandParser:
    """Make the parser of all verbs. With `only`, the others get no arguments: adding them takes longer than parsing."""
    parser = CommandParser("headrace", description=_DESCRIPTION, epilog=_EXIT_CODES)
    parser.examples = _EXAMPLES
    parser.add_argument("--version", action="store_true", help="Print the version.")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs")
    for verb in VERBS:
        text, aliases = verb.text, verb.aliases
        own = verbs.add_parser(verb.name, aliases=aliases, help=text, description=text)
        own.set_defaults(verb=verb.name)
        if only is None or verb.name == only:
            verb.add_arguments(own)
            own.verbs_with = _verbs_with
            _add_common(own)
            own.usage = " ".join([f"headrace {verb.name} [OPTION…]", *_positionals(own)])
    return parser


def _verbs_with(flag: str) -> list[str]:
    found = []
    for verb in VERBS:
        parser = CommandParser()
        verb.add_arguments(parser)
        if flag in parser.flags():
            found.append(verb.name)
    return found


def _positionals(parser: CommandParser) -> list[str]:
    """The arguments without a flag, as the usage line shows them: all options would fill a screen."""
    shown = []
    for action in parser._actions:
        if not action.option_strings:
            name = str(action.metavar or "|".join(map(str, action.choices or [action.dest])))
            shown.append({"*": f"[{name}…]", "+": f"{name}…", "?": f"[{name}]"}.get(str(action.nargs), name))
    return shown


def _add_common(parser: CommandParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("-o", "--output", choices=("text", "json", "jsonl"), default="text", help="Format of the data.")
    group.add_argument("-q", "--quiet", action="store_true", help="Print no messages except errors.")
    group.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="Colors on stderr.")
    group.add_argument("--debug", action="store_true", help="Show the traceback of an error, and the endpoint.")
