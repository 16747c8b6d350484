"""The arguments of `headrace dead-letters`."""

from __future__ import annotations

from headrace_command.command_parser import CommandParser
from headrace_command.option_groups import add_rows
from headrace_command.option_rows import PRODUCER

__all__ = ["LAYOUT_ROWS", "add"]

#: The options of XADD.
LAYOUT_ROWS = tuple(row for row in PRODUCER if row[0] in ("maxlen", "maxlen_approximate", "minid", "nomkstream"))

_EXAMPLES = (
    "headrace dead-letters list orders:dead",
    "headrace dead-letters replay orders:dead --all --to orders --dry-run",
    "headrace dead-letters drop orders:dead --all --only-code WRONGTYPE",
)


def add(parser: CommandParser) -> None:
    """Add the arguments."""
    parser.examples = _EXAMPLES
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
    add_rows(replay, LAYOUT_ROWS)
