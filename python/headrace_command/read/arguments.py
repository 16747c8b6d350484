"""The arguments of `headrace read`."""

from __future__ import annotations

from headrace_command.command_parser import CommandParser
from headrace_command.duration import seconds

__all__ = ["add"]

_EXAMPLES = (
    "headrace read orders --last 10 --follow",
    "headrace read orders --since 1h -o jsonl",
    "headrace read orders --payload | headrace send copy-of-orders",
)


def add(parser: CommandParser) -> None:
    """Add the arguments."""
    parser.examples = _EXAMPLES
    parser.add_argument("streams", metavar="STREAM", nargs="+", help="The keys of the streams.")
    _add_range(parser)
    _add_content(parser)


def _add_range(parser: CommandParser) -> None:
    group = parser.add_argument_group(
        "range",
        "A time is written as 2026-11-24, 2026-11-24T13:05 (in the local time zone) or 2026-11-24T13:05Z; an entry ID "
        "is included, but '(ID' is not.",
    )
    start = group.add_mutually_exclusive_group()
    text = "Where to begin: earliest, latest, an entry ID or a time. Default: earliest; with --follow latest."
    start.add_argument("--from", dest="start", metavar="WHERE", help=text)
    text = "Begin this long before now, by the clock of the server: 90s, 15m, 1h30m, 2d."
    start.add_argument("--since", metavar="DURATION", type=seconds, help=text)
    text = "Begin with the last N entries; for one stream only."
    start.add_argument("--last", metavar="N", help=text)
    text = "Where to end: latest, an entry ID or a time. Default: the current newest entry."
    group.add_argument("--to", dest="end", metavar="WHERE", help=text)
    group.add_argument("-n", "--count", metavar="N", help="Maximum number of entries to read.")
    text = "Continue with new entries as they arrive, even after the server was unreachable."
    group.add_argument("-f", "--follow", action="store_true", help=text)
    group.add_argument("--reverse", action="store_true", help="From new entries to old ones: --from is the newest.")


def _add_content(parser: CommandParser) -> None:
    group = parser.add_argument_group("content", "Text is for people; -o jsonl has an object per entry, or per row.")
    text = "Only these fields; with --unpack json or arrow_ipc only these members or columns."
    group.add_argument("--fields", metavar="NAME,…", help=text)
    text = (
        "Print the rows of each entry, according to how they were written: one or several payloads, JSON, "
        "an Arrow IPC stream."
    )
    group.add_argument("--unpack", choices=("payload", "json", "arrow_ipc"), help=text)
    text = "Print only the payloads, one per line, for 'headrace send'. With --unpack arrow_ipc: each row as JSON."
    group.add_argument("--payload", action="store_true", help=text)
    text = "Name of the field with the payload. Default: %(default)s."
    group.add_argument("--payload-field", metavar="NAME", default="payload", help=text)
