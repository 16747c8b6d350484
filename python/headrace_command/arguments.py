"""The arguments of each verb, apart from those of its endpoint."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError

from headrace_command.option_rows import PRODUCER
from headrace_command.options import add_producer, add_rows
from headrace_command.parser import CommandParser

__all__ = ["FORMATS", "MODES", "add_arguments"]

#: The formats of the input of `send`, and the extensions of their files.
FORMATS = {
    "lines": ("", ".txt", ".log"),
    "jsonl": (".jsonl", ".ndjson", ".json"),
    "csv": (".csv",),
    "tsv": (".tsv",),
    "parquet": (".parquet", ".pq", ".parq"),
    "arrow": (".arrow", ".arrows", ".feather"),
}
#: What a program may need to do, for `check`.
MODES = ("plain", "trimming", "script", "idmp", "wait_replicas", "wait_aof", "reader", "consumer", "inspect")
#: The options of XADD, for `dead-letters`.
_LAYOUT_ROWS = tuple(row for row in PRODUCER if row[0] in ("maxlen", "maxlen_approximate", "minid", "nomkstream"))
#: A part of a duration, and the seconds in its units.
_PART = r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|w|)"
_UNITS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


def add_arguments(verb: str, parser: CommandParser) -> None:
    """Add the arguments of a verb to its parser."""
    {
        "send": _send,
        "read": _read,
        "inspect": _inspect,
        "check": _check,
        "dead-letters": _dead_letters,
        "shards": _shards,
        "completion": _completion,
    }[verb](parser)


def _send(parser: CommandParser) -> None:
    parser.examples = (
        "headrace send orders orders.csv --types total=double --json",
        "journalctl -f -o json | headrace send logs --format jsonl --maxlen 1000000",
        "headrace send orders history.parquet --exactly-once history-2026 --retry",
    )
    parser.add_argument("stream", metavar="STREAM", help="The key of the stream.")
    parser.add_argument(
        "files", metavar="FILE", nargs="*", default=[], help="Files, in this order; none, or '-': stdin."
    )
    _send_input(parser)
    _send_rows(parser)
    _send_outcomes(parser)
    add_producer(parser)


def _send_input(parser: CommandParser) -> None:
    group = parser.add_argument_group("input")
    text = (
        "Format of the input. By default from the extensions of the files, before .gz, .bz2, .xz or .zst; "
        "stdin has lines."
    )
    group.add_argument("-f", "--format", choices=tuple(FORMATS), help=text)
    text = "CSV and TSV: types of columns, such as 'id=int64,price=double'. All others stay text, as they are written."
    group.add_argument("--types", metavar="NAME=TYPE,…", help=text)
    text = "CSV and TSV: names of the columns, for files without a header."
    group.add_argument("--header", metavar="NAME,…", help=text)
    text = "Maximum number of bytes of a row: 1 to 512m. A longer one is a bad row. Default: %(default)s."
    group.add_argument("--max-row-bytes", metavar="BYTES", default="64m", help=text)
    text = "Seconds after which rows from a pipe or a terminal are sent. Default: %(default)s."
    group.add_argument("--linger", metavar="SECONDS", type=float, default=0.1, help=text)


def _send_rows(parser: CommandParser) -> None:
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


def _send_outcomes(parser: CommandParser) -> None:
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


def _read(parser: CommandParser) -> None:
    parser.examples = (
        "headrace read orders --last 10 --follow",
        "headrace read orders --since 1h -o jsonl",
        "headrace read orders --payload | headrace send copy-of-orders",
    )
    parser.add_argument("streams", metavar="STREAM", nargs="+", help="The keys of the streams.")
    _read_range(parser)
    _read_content(parser)


def _read_range(parser: CommandParser) -> None:
    group = parser.add_argument_group(
        "range",
        "A time is written as 2026-11-24, 2026-11-24T13:05 (in the local time zone) or 2026-11-24T13:05Z; an entry ID "
        "is included, but '(ID' is not.",
    )
    start = group.add_mutually_exclusive_group()
    text = "Where to begin: earliest, latest, an entry ID or a time. Default: earliest; with --follow latest."
    start.add_argument("--from", dest="start", metavar="WHERE", help=text)
    text = "Begin this long before now, by the clock of the server: 90s, 15m, 1h30m, 2d."
    start.add_argument("--since", metavar="DURATION", type=_seconds, help=text)
    text = "Begin with the last N entries; for one stream only."
    start.add_argument("--last", metavar="N", help=text)
    text = "Where to end: latest, an entry ID or a time. Default: the current newest entry."
    group.add_argument("--to", dest="end", metavar="WHERE", help=text)
    group.add_argument("-n", "--count", metavar="N", help="Maximum number of entries to read.")
    text = "Continue with new entries as they arrive, even after the server was unreachable."
    group.add_argument("-f", "--follow", action="store_true", help=text)
    group.add_argument("--reverse", action="store_true", help="From new entries to old ones: --from is the newest.")


def _read_content(parser: CommandParser) -> None:
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


def _inspect(parser: CommandParser) -> None:
    parser.examples = (
        "headrace inspect orders",
        "headrace inspect orders --group billing --watch",
    )
    parser.add_argument("stream", metavar="STREAM", help="The key of the stream.")
    group = parser.add_argument_group("look", "Changes nothing. Exits with 1 if there is an alarm.")
    group.add_argument("--group", metavar="NAME", help="Only this consumer group.")
    text = "Look again after each DURATION, until interrupted. Default: 2s."
    group.add_argument("--watch", metavar="DURATION", nargs="?", type=_seconds, const=2.0, help=text)
    text = "The time between the two samples from which rates are computed; 0: one sample, no rates. Default: 1s."
    group.add_argument("--sample", metavar="DURATION", type=_seconds, default=1.0, help=text)
    text = "A pending entry, or a consumer that asks for nothing, is stuck after this time. Default: 60s."
    group.add_argument("--stuck-after", metavar="DURATION", type=_seconds, default=60.0, help=text)
    text = "The stream of dead letters. Default: STREAM:dead, if it exists."
    group.add_argument("--dead-letters", metavar="KEY", help=text)


class _Lists(tuple[str, ...]):
    """The words allowed in an argument that is a list."""

    __slots__ = ()

    def __contains__(self, words: object) -> bool:
        return isinstance(words, list) and all(tuple.__contains__(self, word) for word in words)


def _check(parser: CommandParser) -> None:
    parser.examples = (
        "headrace check",
        "headrace check orders -u rediss://producer@db1 --password-env REDIS_PASSWORD --for script",
        "headrace check orders --for plain,consumer --wait 60s",
    )
    parser.add_argument("stream", metavar="STREAM", nargs="?", help="Key of the stream for which rights are checked.")
    parser.add_argument(
        "--for",
        dest="modes",
        metavar="MODE",
        action="extend",
        type=lambda text: text.split(","),
        choices=_Lists(MODES),
        default=[],
        help=f"What must be possible, or the command exits with 3: {', '.join(MODES)}; several separated by commas. "
        "Without it only the connection must succeed.",
    )
    parser.add_argument(
        "--strict", action="store_true", help="With --for: a mode that cannot be checked also exits with 3."
    )
    parser.add_argument(
        "--wait",
        metavar="DURATION",
        type=_seconds,
        default=0.0,
        help="Repeat the checks for up to this long, such as 60s, until everything required holds. A failure that does "
        "not pass by itself, such as a wrong password, ends the wait immediately.",
    )
    parser.add_argument("--replicas", metavar="N", type=int, default=1, help="Replicas for wait_replicas. Default: 1.")


def _dead_letters(parser: CommandParser) -> None:
    parser.examples = (
        "headrace dead-letters list orders:dead",
        "headrace dead-letters replay orders:dead --all --to orders --dry-run",
        "headrace dead-letters drop orders:dead --all --only-code WRONGTYPE",
    )
    actions = ("list", "show", "replay", "drop")
    parser.add_argument("action", metavar="|".join(actions), choices=actions, help="What to do.")
    parser.add_argument("stream", metavar="STREAM", help="Key of the stream of dead letters.")
    parser.add_argument("ids", metavar="ID", nargs="*", default=[], help="Entry IDs of letters, directly after STREAM.")
    chosen = parser.add_argument_group("which letters")
    chosen.add_argument("--all", action="store_true", help="replay, drop: all letters currently in the stream.")
    chosen.add_argument("--only-code", metavar="CODE", help="Only letters of the Spark writer with this error code.")
    chosen.add_argument("--limit", metavar="N", type=int, help="list: at most this many letters.")
    chosen.add_argument("--dry-run", action="store_true", help="replay, drop: say what would be done, and do nothing.")
    chosen.add_argument("-y", "--yes", action="store_true", help="replay, drop: do not ask for confirmation.")
    replay = parser.add_argument_group("replay")
    replay.add_argument("--to", metavar="STREAM", help="The stream that gets the entries.")
    replay.add_argument(
        "--allow-stream",
        metavar="STREAM",
        action="append",
        default=[],
        help="Letters of this stream go back to it; may be given several times. Letters of other streams stay: what "
        "a letter says about its stream is not trusted.",
    )
    replay.add_argument(
        "--include-unknown",
        action="store_true",
        help="Also letters with written: unknown, whose entry may be in the stream already.",
    )
    rows = replay.add_mutually_exclusive_group()
    rows.add_argument("--payload", metavar="COLUMN", help="Rows of Spark: the column that is the payload.")
    rows.add_argument("--fields", metavar="COLUMNS", help="Rows of Spark: a field for each of these columns, or 'all'.")
    rows.add_argument("--json", action="store_true", help="Rows of Spark: the payload is the row as a JSON object.")
    replay.add_argument(
        "--payload-field", metavar="NAME", default="payload", help="Field of the payload of Spark letters."
    )
    replay.add_argument("--ts-field", metavar="NAME", help="Field with the time, after the others; by default none.")
    add_rows(replay, _LAYOUT_ROWS)


def _shards(parser: CommandParser) -> None:
    parser.examples = (
        "headrace shards assign payments --group billing 3=pod-1 7=pod-1",
        "headrace shards assign payments --group billing --free 3 7",
    )
    parser.add_argument("action", metavar="assign", choices=("assign",), help="What to do.")
    parser.add_argument("stream", metavar="STREAM", help="The key of the stream, without the number of a shard.")
    text = "The number of a shard, and the member that alone may own it; with --free the number alone."
    parser.add_argument("pins", metavar="SHARD=MEMBER", nargs="+", help=text)
    group = parser.add_argument_group("assign")
    text = "The group of the shard consumers."
    group.add_argument("--group", metavar="NAME", required=True, help=text)
    group.add_argument("--free", action="store_true", help="Let any member own these shards.")


def _completion(parser: CommandParser) -> None:
    parser.examples = ("source <(headrace completion bash)",)
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


def _seconds(text: str) -> float:
    """The seconds in a text such as `90`, `500ms` or `1h30m`."""
    parts = re.findall(_PART, text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ArgumentTypeError(f"must be a duration such as 90s, 15m, 1h30m or 2d, got {text!r}")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)
