"""The arguments of `headrace check`."""

from __future__ import annotations

from headrace_command.command_parser import CommandParser
from headrace_command.duration import seconds

__all__ = ["MODES", "add"]

#: What a program may need to do.
MODES = ("plain", "trimming", "script", "idmp", "wait_replicas", "wait_aof", "reader", "consumer", "inspect")

_EXAMPLES = (
    "headrace check",
    "headrace check orders -u rediss://producer@db1 --password-env REDIS_PASSWORD --for script",
    "headrace check orders --for plain,consumer --wait 60s",
)


class _Lists(tuple[str, ...]):
    """The words allowed in an argument that is a list."""

    __slots__ = ()

    def __contains__(self, words: object) -> bool:
        return isinstance(words, list) and all(tuple.__contains__(self, word) for word in words)


def add(parser: CommandParser) -> None:
    """Add the arguments."""
    parser.examples = _EXAMPLES
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
        type=seconds,
        default=0.0,
        help="Repeat the checks for up to this long, such as 60s, until everything required holds. A failure that does "
        "not pass by itself, such as a wrong password, ends the wait immediately.",
    )
    parser.add_argument("--replicas", metavar="N", type=int, default=1, help="Replicas for wait_replicas. Default: 1.")
