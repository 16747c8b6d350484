"""The argument parser."""

from __future__ import annotations

from headrace_command.command_parser import CommandParser
from headrace_command.verbs import VERBS

__all__ = ["make_parser"]

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
