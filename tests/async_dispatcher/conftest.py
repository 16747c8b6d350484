"""The event loops of these tests."""

from support.loops import NewLoop, Run, new_loop, run

__all__ = ["NewLoop", "Run", "new_loop", "run"]
