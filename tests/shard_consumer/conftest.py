"""The event loops of these tests."""

from support.loops import new_loop, run

__all__ = ["new_loop", "run"]
