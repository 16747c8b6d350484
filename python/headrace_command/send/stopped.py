"""The end of sending at a bad row."""

__all__ = ["StoppedError"]


class StoppedError(Exception):
    """A row is bad, and the command must stop there. The tally includes the row."""
