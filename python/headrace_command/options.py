"""The options of endpoints and writers: adds them to parsers, and makes the endpoint that the given ones describe."""

from __future__ import annotations

import os
import re
import warnings
from argparse import SUPPRESS, BooleanOptionalAction, Namespace, _ArgumentGroup

from headrace_command.exit_code import UsageError
from headrace_command.option_rows import DISPATCHER, PRODUCER, SERVER, STREAM
from headrace_command.parser import CommandParser

TYPE_CHECKING = False  # typing takes as long to import as all of this
if TYPE_CHECKING:
    from headrace import Endpoint
    from headrace_command.output import Messages

__all__ = [
    "add_connection",
    "add_producer",
    "add_rows",
    "connection_options",
    "endpoint_of",
    "producer_options",
    "with_flags",
]

#: The options of the server that the short help shows.
_USUAL = ("password_env",)
_NAMES = {name for name, *_ in (*SERVER, *STREAM, *PRODUCER, *DISPATCHER)}
#: The variables with the URL of the server. The second is that of other clients.
_URL, _OTHERS_URL = "HEADRACE_URL", "REDIS_URL"
_LOCAL = "redis://localhost"
#: An endpoint must have a stream; a command without one concerns only the server.
_NO_STREAM = "headrace"


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


def endpoint_of(
    arguments: Namespace, stream: bytes | None, messages: Messages, options: dict[str, str] | None = None
) -> Endpoint:
    """Build the endpoint: options override the URL, which overrides the environment, which overrides a defaults file.

    If an option names another server, the environment is ignored, because its credentials are not for that server.
    `REDIS_URL` counts where `HEADRACE_URL` is not set, and a message says so. Without any of these the server is
    `localhost`.

    Args:
        arguments: The parsed arguments, with the options of `add_connection`.
        stream: The key of the stream.
        messages: Where warnings go.
        options: Further options of the endpoint.

    Raises:
        ConfigError: An option is wrong.
        UsageError: A terminal is needed and there is none, or the arguments contain a secret.
    """
    from headrace import ConfigError
    from headrace.admin import endpoint_from_text

    given: dict[str, str | bytes] = {**connection_options(arguments), **(options or {})}
    given["stream_key"] = _NO_STREAM.encode() if stream is None else stream
    url, variable = _url(arguments, given, messages)
    for name in ("tls_key", "sentinel_tls_key"):
        if "-----BEGIN" in str(given.get(name, "")):
            raise UsageError(f"--{name.replace('_', '-')} takes the path of a file: other users can see the arguments")
    if arguments.ask_password:
        given["password"] = _ask()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            endpoint = endpoint_from_text(given, url)
    except ConfigError as error:
        if error.option != "url":
            raise
        raise ConfigError(f"{f'${variable}: ' if variable else ''}{error}{_hint(url)}", option="url") from None
    finally:
        del given, url  # not for tracebacks with locals
    if variable == _OTHERS_URL:
        messages.say(f"the server is that of ${variable}, because ${_URL} is not set: {endpoint}")
    for warning in caught:
        messages.warn(str(warning.message))
    return endpoint


def _url(arguments: Namespace, given: dict[str, str | bytes], messages: Messages) -> tuple[str | None, str | None]:
    """The URL of the server, and the variable that it is from."""
    if arguments.url is not None:
        if "@" in arguments.url and ":" in arguments.url.partition("://")[2].rpartition("@")[0]:
            messages.warn(
                f"the URL contains a password, which other users can see: give it in ${_URL}, or --password-env"
            )
        return arguments.url, None
    if {"host", "unix_socket", "nodes"} & given.keys():
        return None, None
    for variable in (_URL, _OTHERS_URL):
        if url := os.environ.get(variable):
            return url, variable
    return _LOCAL, None


def _hint(url: str | None) -> str:
    """How to write a URL that is only a host and a port; it shows nothing that may be a secret."""
    is_host = url is not None and re.fullmatch(r"[\w.-]+(:\d{1,5})?", url)
    return f": write redis://{url}" if is_host else ""


def _ask() -> str:
    import getpass

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", getpass.GetPassWarning)
            return getpass.getpass("Password: ")
    except (EOFError, getpass.GetPassWarning):
        raise UsageError("--ask-password needs a terminal; give --password-env or --password-file") from None
