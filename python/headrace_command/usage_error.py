"""An error in the arguments or the input."""

__all__ = ["UsageError"]


class UsageError(Exception):
    """The arguments or the input are wrong, and nothing has been sent. The command exits with 2."""
