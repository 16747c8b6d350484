"""How the command ends: its exit codes, and the error of wrong arguments."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["ExitCode", "UsageError"]


class ExitCode(IntEnum):
    """The exit codes. If several apply, the one with the highest priority is used: see `worst`."""

    OK = 0
    #: Some rows or a check failed.
    FAILED = 1
    #: The arguments or the input are wrong; nothing was sent.
    USAGE = 2
    #: No connection, no TLS, or a missing right.
    NO_CONNECTION = 3
    #: It is unknown whether some rows were written.
    UNKNOWN = 4
    INTERRUPTED = 130
    CLOSED_PIPE = 141
    TERMINATED = 143

    @staticmethod
    def worst(first: ExitCode, second: ExitCode) -> ExitCode:
        """Return the one of two that is used: a signal, then 4, 3, 1; a usage error occurs before any row is sent."""
        order = [
            ExitCode.OK,
            ExitCode.FAILED,
            ExitCode.NO_CONNECTION,
            ExitCode.UNKNOWN,
            ExitCode.USAGE,
            ExitCode.CLOSED_PIPE,
            ExitCode.INTERRUPTED,
            ExitCode.TERMINATED,
        ]
        return max(first, second, key=order.index)


class UsageError(Exception):
    """The arguments or the input are wrong, and nothing has been sent. The command exits with 2."""
