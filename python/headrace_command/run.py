"""The objects that a verb works with."""

from __future__ import annotations

import os
from argparse import Namespace
from typing import TYPE_CHECKING

from headrace_command.connection import endpoint_of
from headrace_command.messages import Messages
from headrace_command.output import Output
from headrace_command.signals import Signals

if TYPE_CHECKING:
    from headrace import Endpoint

__all__ = ["Run"]


class Run:
    """One run of the command.

    Attributes:
        arguments: The parsed arguments.
        output: Data, on stdout.
        messages: Everything else, on stderr.
        signals: The signals received.
    """

    def __init__(self, arguments: Namespace, output: Output, messages: Messages, signals: Signals) -> None:
        self.arguments = arguments
        self.output = output
        self.messages = messages
        self.signals = signals

    @property
    def stream(self) -> bytes:
        """The stream key of the arguments, byte for byte."""
        return os.fsencode(self.arguments.stream)

    def endpoint(self, stream: bytes | None = None, options: dict[str, str] | None = None) -> Endpoint:
        """Return the endpoint of the arguments: see `endpoint_of`."""
        endpoint = endpoint_of(self.arguments, stream, self.messages, options)
        if self.arguments.debug:
            self.messages.say(repr(endpoint))
        return endpoint
