"""The end of sending at a bad row."""

__all__ = ["StoppedError"]


class StoppedError(Exception):
    """A row is bad, and the command is to stop there. The tally has the row."""
