"""The keyword arguments that `write` and `xadd` take: those of a layout, and those of a dispatcher."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from headrace.dispatcher import DispatcherOptions
from headrace.errors import ConfigError
from headrace.spark.options import nearest
from headrace.tables import DISPATCHER, LAYOUT

if TYPE_CHECKING:
    from headrace._headrace import _Layout

    class Keywords(_Layout, DispatcherOptions, total=False):
        """The keyword arguments of `Dispatcher.produce_batch` and of `Dispatcher`."""


__all__ = ["split"]


def split(given: Keywords) -> tuple[_Layout, DispatcherOptions]:
    """Separate the keyword arguments of `Dispatcher.produce_batch` from those of `Dispatcher`.

    Raises:
        ConfigError: One of them belongs to neither.
    """
    for name in given:
        if name not in LAYOUT and name not in DISPATCHER:
            near = nearest(name, [*LAYOUT, *DispatcherOptions.__annotations__])
            raise ConfigError(f"unknown option {name!r}; did you mean {near!r}?", option=name)
    layout = {name: _pickled(value) for name, value in given.items() if name in LAYOUT}
    options = {name: value for name, value in given.items() if name not in LAYOUT}
    return cast("_Layout", layout), cast("DispatcherOptions", options)


def _pickled(value: object) -> object:
    """The value as the executors get it: column names may come from any iterable."""
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str | bytes) else value
