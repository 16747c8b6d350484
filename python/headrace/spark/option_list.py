"""The options of the data source as a table: `headrace.spark.options()`. Needs no pyspark."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import Final, Literal, NamedTuple

from headrace.errors import ConfigError
from headrace.tables import DATASOURCE, DATASOURCE_READ, DISPATCHER, ENDPOINT, Option

__all__ = ["OptionList", "SparkOption", "options"]

#: The defaults that are not those of the tables, because Spark runs tasks again.
DEFAULTS: Final = {
    "retry": "true",
    "retry_unknown": "true, unless exactly_once is on",
    "exactly_once": '"auto" in streaming queries and with txn_app_id, else "off"',
}

#: The widths of the columns with the values and with the meaning.
WIDTHS: Final = (38, 52)


class SparkOption(NamedTuple):
    """An option of the data source.

    Attributes:
        name: Its name.
        use: What has it: reads, writes, or both.
        allowed: The type and range of its values, in words.
        default: Its default, in words; `none` if there is none.
        text: What it does, in one sentence; docs/options.md has the rest.
    """

    name: str
    use: Literal["read", "write", "both"]
    allowed: str
    default: str
    text: str


class OptionList(tuple[SparkOption, ...]):
    """Options of the data source. The `repr` is a table."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        name_width = max((len(option.name) for option in self), default=0)
        for use, title in (("both", "Reads and writes"), ("write", "Writes"), ("read", "Reads")):
            group = [option for option in self if option.use == use]
            if group:
                yield f"{title}:"
            for option in group:
                default = "" if option.default == "none" else f"; default: {option.default}"
                value = textwrap.wrap(option.allowed + default, WIDTHS[0])
                text = textwrap.wrap(option.text, WIDTHS[1])
                for at in range(max(len(value), len(text))):
                    cells = (option.name if at == 0 else "", *("".join(one[at : at + 1]) for one in (value, text)))
                    yield f"  {cells[0]:{name_width}}  {cells[1]:{WIDTHS[0]}}  {cells[2]}".rstrip()


def options(use: Literal["read", "write"] | None = None) -> OptionList:
    """Return the options of the data source `redis_streams`: names, values, defaults, and what each does.

    ```python
    from headrace.spark import options

    print(options("read"))
    print([option.name for option in options() if "dead" in option.name])
    ```

    Args:
        use: `"read"` or `"write"`: only the options of that. None (default): all. A name can be there twice, with one
            meaning for reads and another one for writes.

    Raises:
        ConfigError: `use` is something else.
    """
    if use not in {None, "read", "write"}:
        raise ConfigError(f"use must be 'read' or 'write', got {use!r}", option="use")
    return OptionList(option for option in _all() if use is None or option.use in {use, "both"})


def _all() -> Iterator[SparkOption]:
    url = "Address and options of the server and the stream, instead of host; without a password."
    yield SparkOption("url", "both", "a URL such as redis://host:6379/0", "none", url)
    yield from _of("both", ENDPOINT.values())
    yield from _of("write", [*DISPATCHER.values(), *DATASOURCE.values()])
    yield from _of("read", DATASOURCE_READ.values())


def _of(use: Literal["read", "write", "both"], table: Iterable[Option]) -> Iterator[SparkOption]:
    for option in table:
        usual = f"usually {option.shown_default}" if option.depends else option.shown_default
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", option.text)  # links
        first = re.split(r"(?<=\.) ", text, maxsplit=1)[0]
        yield SparkOption(option.name, use, option.allowed, DEFAULTS.get(option.name, usual), first)
