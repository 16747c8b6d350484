"""The endpoint that the arguments of a command describe."""

from __future__ import annotations

import os
import warnings
from argparse import Namespace
from typing import TYPE_CHECKING

from headrace_command.messages import Messages
from headrace_command.option_groups import connection_options
from headrace_command.usage_error import UsageError

if TYPE_CHECKING:
    from headrace import Endpoint

__all__ = ["endpoint_of"]

_URL = "HEADRACE_URL"
_LOCAL = "redis://localhost"
#: An endpoint must have a stream; a command without one concerns only the server.
_NO_STREAM = "headrace"


def endpoint_of(
    arguments: Namespace, stream: bytes | None, messages: Messages, options: dict[str, str] | None = None
) -> Endpoint:
    """Build the endpoint: options override the URL, which overrides the environment, which overrides a defaults file.

    If an option names another server, `HEADRACE_URL` is ignored, because its credentials are not for that server.
    Without any of these the server is `localhost`.

    Args:
        arguments: The parsed arguments, with the options of `option_groups`.
        stream: The key of the stream.
        messages: Where warnings go.
        options: Further options of the endpoint.

    Raises:
        ConfigError: An option is wrong.
        UsageError: A terminal is needed and there is none, or the arguments contain a secret.
    """
    from headrace import Endpoint

    given: dict[str, object] = {**connection_options(arguments), **(options or {})}
    given["stream_key"] = _NO_STREAM.encode() if stream is None else stream
    url = _url(arguments, given, messages)
    for name in ("tls_key", "sentinel_tls_key"):
        if "-----BEGIN" in str(given.get(name, "")):
            raise UsageError(f"--{name.replace('_', '-')} takes the path of a file: other users can see the arguments")
    if arguments.ask_password:
        given["password"] = _ask()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            endpoint = Endpoint._from_text_over(given, url)
    finally:
        del given, url  # not for tracebacks with locals
    for warning in caught:
        messages.warn(str(warning.message))
    return endpoint


def _url(arguments: Namespace, given: dict[str, object], messages: Messages) -> str | None:
    if arguments.url is not None:
        if "@" in arguments.url and ":" in arguments.url.partition("://")[2].rpartition("@")[0]:
            messages.warn(
                f"the URL contains a password, which other users can see: give it in ${_URL}, or --password-env"
            )
        url: str = arguments.url
        return url
    if {"host", "unix_socket", "nodes"} & given.keys():
        return None
    return os.environ.get(_URL) or _LOCAL


def _ask() -> str:
    import getpass

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", getpass.GetPassWarning)
            return getpass.getpass("Password: ")
    except (EOFError, getpass.GetPassWarning):
        raise UsageError("--ask-password needs a terminal; give --password-env or --password-file") from None
