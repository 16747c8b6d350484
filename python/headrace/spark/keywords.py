"""The keyword arguments that `write` and `xadd` take: those of a layout, and those of a dispatcher."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, cast

from headrace.dispatcher import DispatcherOptions
from headrace.spark.names import refuse_unknown
from headrace.tables import DISPATCHER, ENDPOINT, LAYOUT

if TYPE_CHECKING:
    from headrace._headrace import _Layout

    class Keywords(_Layout, DispatcherOptions, total=False):
        """The keyword arguments of `Dispatcher.produce_batch` and of `Dispatcher`."""


__all__ = ["split"]

#: What to say about an option of the endpoint.
OF_ENDPOINT: Final = dict.fromkeys(ENDPOINT, "it belongs to Endpoint")


def split(given: Keywords) -> tuple[_Layout, DispatcherOptions]:
    """Separate the keyword arguments of `Dispatcher.produce_batch` from those of `Dispatcher`.

    Raises:
        ConfigError: One of them belongs to neither.
    """
    # The dispatcher refuses the options of a retry policy, and names the policy.
    others = [name for name in given if name not in DISPATCHER]
    known = [*LAYOUT, *DispatcherOptions.__annotations__]
    refuse_unknown(others, known, OF_ENDPOINT, listing="help(headrace.spark.write)")
    layout = {name: _pickled(value) for name, value in given.items() if name in LAYOUT}
    options = {name: value for name, value in given.items() if name not in LAYOUT}
    return cast("_Layout", layout), cast("DispatcherOptions", options)


def _pickled(value: object) -> object:
    """The value as the executors get it: column names may come from any iterable."""
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str | bytes) else value
