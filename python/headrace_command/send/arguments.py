"""The arguments of `headrace send`."""

from __future__ import annotations

from headrace_command.command_parser import CommandParser
from headrace_command.option_groups import add_producer
from headrace_command.send.form import FORMATS

__all__ = ["add"]

_EXAMPLES = (
    "headrace send orders orders.csv --types total=double --json",
    "journalctl -f -o json | headrace send logs --format jsonl --maxlen 1000000",
    "headrace send orders history.parquet --exactly-once history-2026 --retry",
)


def add(parser: CommandParser) -> None:
    """Add the arguments."""
    parser.examples = _EXAMPLES
    parser.add_argument("stream", metavar="STREAM", help="The key of the stream.")
    parser.add_argument(
        "files", metavar="FILE", nargs="*", default=[], help="Files, in this order; none, or '-': stdin."
    )
    _add_input(parser)
    _add_rows(parser)
    _add_outcomes(parser)
    add_producer(parser)


def _add_input(parser: CommandParser) -> None:
    group = parser.add_argument_group("input")
    text = (
        "Format of the input. By default from the extensions of the files, before .gz, .bz2, .xz or .zst; "
        "stdin has lines."
    )
    group.add_argument("-f", "--format", choices=FORMATS, help=text)
    text = "CSV and TSV: types of columns, such as 'id=int64,price=double'. All others stay text, as they are written."
    group.add_argument("--types", metavar="NAME=TYPE,…", help=text)
    text = "CSV and TSV: names of the columns, for files without a header."
    group.add_argument("--header", metavar="NAME,…", help=text)
    text = "Maximum number of bytes of a row: 1 to 512m. A longer one is a bad row. Default: %(default)s."
    group.add_argument("--max-row-bytes", metavar="BYTES", default="64m", help=text)
    text = "Seconds after which rows from a pipe or a terminal are sent. Default: %(default)s."
    group.add_argument("--linger", metavar="SECONDS", type=float, default=0.1, help=text)


def _add_rows(parser: CommandParser) -> None:
    group = parser.add_argument_group(
        "rows", "Which part of a row becomes the entry. For lines and jsonl: the line, unchanged."
    )
    text = "The column, or member of a JSON object, that is the payload."
    content = group.add_mutually_exclusive_group()
    content.add_argument("--payload", metavar="NAME", help=text)
    text = "Columns that become fields, or '*' for all: the default except for lines and jsonl."
    content.add_argument("--fields", metavar="NAME,…", help=text)
    text = "The payload is the row as JSON: all columns, or those in NAME,…. For jsonl the line, if it is valid."
    content.add_argument("--json", metavar="NAME,…", nargs="?", const="*", help=text)
    text = "The column, or member, that decides the shard of a row. Needs --shards."
    group.add_argument("--shard-key", metavar="NAME", help=text)
    text = "Name of the field with the payload. Default: payload."
    group.add_argument("--payload-field", metavar="NAME", help=text)
    text = "Name of the field with the time of dispatch. An empty name leaves it out. Default: ts."
    group.add_argument("--ts-field", metavar="NAME", help=text)


def _add_outcomes(parser: CommandParser) -> None:
    group = parser.add_argument_group("outcomes")
    text = "What happens to a row that cannot be read or that the server refuses. Default: %(default)s."
    choices = ("stop", "skip", "dead-letter")
    group.add_argument("--on-bad-row", choices=choices, default="stop", help=text)
    text = "The stream of dead letters. Default: STREAM:dead."
    group.add_argument("--dead-letters", metavar="STREAM", help=text)
    text = "Resend rows whose failure may pass: for 120 s, unless --retry-deadline says otherwise."
    group.add_argument("--retry", action="store_true", help=text)
    text = "Each row once: a run with the same name and input continues where the last one ended."
    group.add_argument("--exactly-once", metavar="NAME", help=text)
    text = "Progress on stderr: by default on a terminal."
    group.add_argument("--progress", choices=("auto", "always", "never"), default="auto", help=text)
