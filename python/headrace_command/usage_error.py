"""An error in the arguments or the input."""

__all__ = ["UsageError"]


class UsageError(Exception):
    """The arguments are wrong, or the input is, before anything was sent. The command ends with 2."""
