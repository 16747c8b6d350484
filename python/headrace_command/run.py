"""One run of the command: the objects that a verb works with."""

from __future__ import annotations

import os
import signal
from argparse import Namespace
from types import FrameType
from typing import TYPE_CHECKING

from headrace_command.exit_code import ExitCode
from headrace_command.options import endpoint_of
from headrace_command.output import Messages, Output

if TYPE_CHECKING:
    from headrace import Endpoint

__all__ = ["Run", "Signals"]


class Signals:
    """SIGINT and SIGTERM. The first raises KeyboardInterrupt, which ends the work in order; the second the process.

    Attributes:
        received: The first signal, or None.
    """

    def __init__(self) -> None:
        self.received: int | None = None

    def install(self) -> None:
        """Handle the signals from now on. A signal that the parent process ignores stays ignored."""
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._take)

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of the signal."""
        return ExitCode.TERMINATED if self.received == signal.SIGTERM else ExitCode.INTERRUPTED

    def _take(self, number: int, _frame: FrameType | None) -> None:
        self.received = number
        for other in (signal.SIGINT, signal.SIGTERM):
            signal.signal(other, signal.SIG_DFL)
        raise KeyboardInterrupt


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
