"""The arguments of `headrace inspect`."""

from __future__ import annotations

from headrace_command.command_parser import CommandParser
from headrace_command.duration import seconds

__all__ = ["add"]

_EXAMPLES = (
    "headrace inspect orders",
    "headrace inspect orders --group billing --watch",
)


def add(parser: CommandParser) -> None:
    """Add the arguments."""
    parser.examples = _EXAMPLES
    parser.add_argument("stream", metavar="STREAM", help="The key of the stream.")
    group = parser.add_argument_group("look", "Changes nothing. Exits with 1 if there is an alarm.")
    group.add_argument("--group", metavar="NAME", help="Only this consumer group.")
    text = "Look again after each DURATION, until interrupted. Default: 2s."
    group.add_argument("--watch", metavar="DURATION", nargs="?", type=seconds, const=2.0, help=text)
    text = "The time between the two samples from which rates are computed; 0: one sample, no rates. Default: 1s."
    group.add_argument("--sample", metavar="DURATION", type=seconds, default=1.0, help=text)
    text = "A pending entry, or a consumer that asks for nothing, is stuck after this time. Default: 60s."
    group.add_argument("--stuck-after", metavar="DURATION", type=seconds, default=60.0, help=text)
    text = "The stream of dead letters. Default: STREAM:dead, if it exists."
    group.add_argument("--dead-letters", metavar="KEY", help=text)
