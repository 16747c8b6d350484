"""The endpoint that the arguments of a command describe."""

from __future__ import annotations

import os
import re
import warnings
from argparse import Namespace
from typing import TYPE_CHECKING

from headrace_command.messages import Messages
from headrace_command.option_groups import connection_options
from headrace_command.usage_error import UsageError

if TYPE_CHECKING:
    from headrace import Endpoint

__all__ = ["endpoint_of"]

#: The variables with the URL of the server. The second is that of other clients.
_URL, _OTHERS_URL = "HEADRACE_URL", "REDIS_URL"
_LOCAL = "redis://localhost"
#: An endpoint must have a stream; a command without one concerns only the server.
_NO_STREAM = "headrace"


def endpoint_of(
    arguments: Namespace, stream: bytes | None, messages: Messages, options: dict[str, str] | None = None
) -> Endpoint:
    """Build the endpoint: options override the URL, which overrides the environment, which overrides a defaults file.

    If an option names another server, the environment is ignored, because its credentials are not for that server.
    `REDIS_URL` counts where `HEADRACE_URL` is not set, and a message says so. Without any of these the server is
    `localhost`.

    Args:
        arguments: The parsed arguments, with the options of `option_groups`.
        stream: The key of the stream.
        messages: Where warnings go.
        options: Further options of the endpoint.

    Raises:
        ConfigError: An option is wrong.
        UsageError: A terminal is needed and there is none, or the arguments contain a secret.
    """
    from headrace import ConfigError, Endpoint

    given: dict[str, object] = {**connection_options(arguments), **(options or {})}
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
            endpoint = Endpoint._from_text_over(given, url)
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


def _url(arguments: Namespace, given: dict[str, object], messages: Messages) -> tuple[str | None, str | None]:
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
