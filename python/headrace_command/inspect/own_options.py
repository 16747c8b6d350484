"""The connection options, for other runs of this command."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from headrace_command.option_groups import connection_options
from headrace_command.option_rows import SERVER, STREAM

if TYPE_CHECKING:
    from headrace import Endpoint

__all__ = ["own_options"]


def own_options(arguments: Namespace, endpoint: Endpoint) -> list[str]:
    """Return the connection options that were given, for other runs of this command, without any password."""
    words = []
    given = connection_options(arguments)
    if arguments.url is not None:
        if "@" not in arguments.url and "?" not in arguments.url:
            words += ["-u", arguments.url]
        else:  # it may hold passwords, so its other parts become options
            state, _ = endpoint._state()
            given = {name: _text(state[name]) for name, _, _, _ in SERVER + STREAM if name in state}
    for name, value in given.items():
        flag = "--" + name.replace("_", "-")
        if "-----BEGIN" in value:
            continue
        if value in ("true", "false"):
            words.append(flag if value == "true" else "--no-" + name.replace("_", "-"))
        else:
            words += [flag, value]
    return words


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return ",".join(f"{key}={other}" for key, other in value.items())
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
