"""Signal handling: the first signal ends the work in an orderly way, the second ends the process."""

from __future__ import annotations

import signal
from types import FrameType

from headrace_command.exit_code import ExitCode

__all__ = ["Signals"]


class Signals:
    """SIGINT and SIGTERM, which both raise KeyboardInterrupt.

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
