"""The arguments of `headrace completion`."""

from __future__ import annotations

from argparse import ArgumentParser

__all__ = ["add"]


def add(parser: ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
