"""Adds the options of the tables to the parser of a verb."""

from __future__ import annotations

import re
from argparse import SUPPRESS, BooleanOptionalAction, Namespace, _ArgumentGroup

from headrace_command.command_parser import CommandParser
from headrace_command.option_rows import DISPATCHER, PRODUCER, SERVER, STREAM

__all__ = ["add_connection", "add_producer", "add_rows", "connection_options", "producer_options", "with_flags"]

#: The options of the server that the short help shows.
_USUAL = ("password_env",)
_NAMES = {name for name, *_ in (*SERVER, *STREAM, *PRODUCER, *DISPATCHER)}


def add_connection(parser: CommandParser) -> None:
    """Add the URL and the options of the server."""
    group = parser.add_argument_group(
        "server", "An option takes precedence over the URL, and the URL over the environment."
    )
    text = "redis://[user@]host[:port][/db], or rediss:// for TLS; by default $HEADRACE_URL, else $REDIS_URL"
    group.add_argument("-u", "--url", metavar="URL", help=text)
    rows = SERVER + STREAM
    add_rows(group, tuple(row for row in rows if row[0] in _USUAL))
    group.add_argument("--ask-password", action="store_true", help="Ask for the password on the terminal.")
    add_rows(parser.add_rare_group("connection"), tuple(row for row in rows if row[0] not in _USUAL))


def add_producer(parser: CommandParser) -> None:
    """Add the options of a writer: trimming, the window, retries, copies."""
    add_rows(parser.add_argument_group("stream"), PRODUCER)
    add_rows(parser.add_rare_group("delivery"), DISPATCHER)


def connection_options(arguments: Namespace) -> dict[str, str]:
    """Return the options of the server that were given, as text."""
    return _given(arguments, SERVER + STREAM)


def producer_options(arguments: Namespace) -> tuple[dict[str, str], dict[str, str]]:
    """Return the options of a writer that were given: those of the endpoint, and those of the dispatcher."""
    return _given(arguments, PRODUCER), _given(arguments, DISPATCHER)


def add_rows(group: _ArgumentGroup, rows: tuple[tuple[str, bool, str | None, str], ...]) -> None:
    """Add these options from the tables."""
    for name, is_boolean, default, text in rows:
        shown = text if default is None or is_boolean else f"{text} Default: {default}."
        if is_boolean:
            group.add_argument(_flag(name), action=BooleanOptionalAction, default=SUPPRESS, help=_help(shown))
        else:
            group.add_argument(_flag(name), metavar=_metavar(name), default=SUPPRESS, help=_help(shown))


def _given(arguments: Namespace, rows: tuple[tuple[str, bool, str | None, str], ...]) -> dict[str, str]:
    given = vars(arguments)
    values = {name: given[name] for name, _, _, _ in rows if name in given}
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in values.items()}


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _metavar(name: str) -> str:
    if name.endswith(("_file", "_cert", "_key", "_socket")):
        return "PATH"
    if name.endswith(("_timeout", "_poll", "_ttl", "_backoff", "_deadline")):
        return "SECONDS"
    return {"host": "HOST", "port": "PORT", "nodes": "HOST:PORT,…", "db": "N", "shards": "N"}.get(name, "VALUE")


def with_flags(text: str) -> str:
    """Turn the names of options in a text, written as in the library, into flags."""
    return re.sub(
        r"\b(?:tls|username|[a-z]+(?:_[a-z]+)+)\b",
        lambda found: _flag(found[0]) if found[0] in _NAMES else found[0],
        text,
    )


def _help(text: str) -> str:
    return with_flags(text).replace("%", "%%")
