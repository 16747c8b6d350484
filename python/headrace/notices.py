"""Logs what a program probably did not expect, although nothing failed."""

__all__ = ["notice"]


def notice(text: str) -> None:
    """Log a warning; without a handler Python writes it to stderr."""
    import logging

    logging.getLogger("headrace").warning("%s", text)
