"""The tables of options, error codes and counters, read from the native core so that Python does not repeat them."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Container, Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple

from headrace import _headrace
from headrace._headrace import advice, advised

__all__ = [
    "AWAY_CODES",
    "CODES",
    "CONNECTION_CODES",
    "CONSUMER",
    "COUNTERS",
    "DATASOURCE",
    "DATASOURCE_READ",
    "DISPATCHER",
    "ENDPOINT",
    "LAYOUT",
    "OWN_CODES",
    "READER",
    "RETRY",
    "ROW_CODES",
    "SHARD_CONSUMER",
    "Code",
    "Counter",
    "Option",
    "advice",
    "advised",
    "documented",
    "signature",
]


class Code(NamedTuple):
    """An error code.

    Attributes:
        name: The code.
        is_own: Whether it is headrace's own. All others are the first word of a server's error reply.
        kinds: Whether it is permanent or retryable, by mode of `classify`.
        passes: Whether it passes by itself, so that a `RetryPolicy` tries again.
        is_of_connection: Whether the server was not reached, or the connection to it was lost.
        is_of_row: Whether the row is at fault, and not the server: it can never be written.
        written: The possible values of `Failure.written`, except in batches with a token.
        advice: What to do about it.
        text: When it occurs.
    """

    name: str
    is_own: bool
    kinds: dict[str, Literal["permanent", "retryable"]]
    passes: bool
    is_of_connection: bool
    is_of_row: bool
    written: list[Literal["no", "unknown"]]
    advice: str | None
    text: str


#: Every code that headrace knows. A server's code that is not listed is retryable, and does not pass by itself.
CODES: Final = {row[0]: Code(*row) for row in _headrace.code_table()}

#: headrace's own codes, which no reply of a server can have.
OWN_CODES: Final = [code.name for code in CODES.values() if code.is_own]

#: The server was not reached, or the connection to it was lost.
CONNECTION_CODES: Final = frozenset(code.name for code in CODES.values() if code.is_of_connection)

#: The row is at fault, and not the server.
ROW_CODES: Final = frozenset(code.name for code in CODES.values() if code.is_of_row)

#: The server was not reached, or the connection to it was lost, and it may be back soon.
AWAY_CODES: Final = frozenset(name for name in CONNECTION_CODES if CODES[name].passes)


class Counter(NamedTuple):
    """A counter.

    Attributes:
        name: The name of the attribute.
        type: The type of the attribute, as an annotation.
        zero: Its value before anything was counted.
        is_gauge: Whether the value may decrease. If not, it only grows.
        unit: The unit, in the notation of OpenTelemetry.
        help: The description of the exported metric. None: the counter is not exported.
        age: For a time, the attribute with the seconds since then, which are exported in its place.
        text: What it counts.
    """

    name: str
    type: str
    zero: Any
    is_gauge: bool
    unit: str
    help: str | None
    age: str | None
    text: str

    @property
    def is_sum(self) -> bool:
        """Whether the values of several objects are added up."""
        return self.type in ("int", "float")


#: The counters of `Stats`, `NodeStats`, `ReaderStats`, those that only `ConsumerStats` or `ShardStats` has, and those
#: of `ReadReport` and `ShardReport`.
COUNTERS: Final = {
    table: [Counter(*row) for row in _headrace.counter_table(table)]
    for table in ("dispatcher", "node", "reader", "consumer", "shard_consumer", "report", "shard_report")
}


class Option(NamedTuple):
    """An option.

    Attributes:
        name: Its name: Python keyword, Spark option, JSON key.
        allowed: The type and range of its values, in words.
        default: The value if the option is not given; None for no value.
        depends: Whether the default differs in some cases, so that passing it is not the same as omitting the option.
        is_secret: Whether its value must not be shown.
        text: What the option does.
    """

    name: str
    allowed: str
    default: object
    depends: bool
    is_secret: bool
    text: str

    @property
    def keyword_default(self) -> object:
        """The default of the keyword argument: None where the option's default depends on something."""
        return None if self.depends else self.default

    @property
    def shown_default(self) -> str:
        """The default in words."""
        default = self.default
        if isinstance(default, float):
            return f"{default:.10g}"
        if isinstance(default, str):
            return f'"{default}"'
        return "none" if default is None else str(default).lower() if isinstance(default, bool) else str(default)


def _options(table: str) -> dict[str, Option]:
    return {row[0]: Option(*row) for row in _headrace.option_table(table)}


def _keywords(table: str) -> dict[str, Option]:
    """The table without the options that are the fields of a `RetryPolicy`."""
    return {name: option for name, option in _options(table).items() if not name.startswith("retry_")}


ENDPOINT: Final = _options("endpoint")
#: With the options of the retry, under their Spark names.
DISPATCHER: Final = _options("dispatcher")
LAYOUT: Final = _options("layout")
READER: Final = _keywords("reader")
CONSUMER: Final = _keywords("consumer")
SHARD_CONSUMER: Final = _keywords("shard_consumer")
#: In addition to the options of the endpoint and of the dispatcher.
DATASOURCE: Final = _options("datasource")
#: Options of a read of the data source, in addition to those of the endpoint.
DATASOURCE_READ: Final = _options("datasource_read")

#: The fields of a `RetryPolicy`.
RETRY: Final = {
    field: DISPATCHER[name]._replace(name=field)
    for name in DISPATCHER
    if (field := name if name == "retry_unknown" else name.removeprefix("retry_")) != name or name == "retry_unknown"
}


def documented(docstring: str | None, options: Mapping[str, Option]) -> str | None:
    """Return the docstring with a paragraph for each option in place of `{options}`, except those that it describes.

    Returns None under -OO, which removes docstrings.
    """
    if docstring is None:
        return None
    text = inspect.cleandoc(docstring)
    left = [option for name, option in options.items() if f"\n    {name}: " not in text]
    return f"{text}\n".replace("    {options}\n", "".join(map(_paragraph, left))).rstrip("\n")


def _paragraph(option: Option) -> str:
    default = "" if option.default is None else f" Default: {option.shown_default}."
    text = f"{option.name}: {option.text} Takes {option.allowed}.{default}"
    return textwrap.indent(textwrap.fill(text, 112, subsequent_indent="    ", break_on_hyphens=False), " " * 4) + "\n"


def signature(
    function: object, options: Iterable[Option], *, more: bool = False, required: Container[str] = ()
) -> inspect.Signature:
    """Return the signature of a function with a keyword argument for each option in place of its `**options`.

    With `more` they come before its `**options`, which accepts others too. Those that are `required` have no default.
    """
    made = inspect.signature(function)  # type: ignore[arg-type]
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    own = [parameter for parameter in made.parameters.values() if parameter.kind not in variadic]
    rest = [parameter for parameter in made.parameters.values() if more and parameter.kind is parameter.VAR_KEYWORD]
    keywords = [
        inspect.Parameter(
            option.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if option.name in required else option.keyword_default,
        )
        for option in options
    ]
    return made.replace(parameters=[*own, *keywords, *rest])
