"""The options of the data source: all text, as Spark passes them, checked before any task starts."""

from __future__ import annotations

import difflib
import inspect
import json
import re
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from headrace.dispatcher import Dispatcher
from headrace.endpoint import Endpoint, _restore
from headrace.errors import ConfigError
from headrace.retry import RetryPolicy
from headrace.spark.transaction import Transaction

__all__ = ["ColumnOptions", "FailurePolicy", "Hidden", "WriteSettings", "hide_secrets", "known", "read"]

LAYOUT = (
    *("payload", "fields", "json", "message_id", "stream_key_column", "entry_id"),
    *("ignore_columns", "rows_per_entry", "arrow_ipc", "codec"),
)
FAILURE = ("on_failure", "dead_letter_key", "max_failed_rows", "max_failed_ratio")
TRANSACTION = ("txn_app_id", "txn_version")

BOOLEANS = {"true": True, "false": False}

#: What Spark makes of a function that is given where it takes text.
OBJECT = re.compile(r"<(function|bound method|built-in \w+|class) .+>|<.+ object at 0x[0-9a-f]+>")

#: What Spark itself puts among the options of a streaming query.
OF_SPARK = frozenset(
    {
        *("checkpointlocation", "queryname"),
        *("asyncprogresstrackingenabled", "asyncprogresstrackingcheckpointintervalms"),
    }
)

#: Trimming is the stream's own business: dead letters are all kept.
NOT_OF_DEAD_LETTERS = ("maxlen", "maxlen_approximate", "minid", "trim_every", "nomkstream", "consumer_group")


class Hidden(str):
    """Text that is not shown: Spark can print the local variables of a traceback."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


@dataclass(frozen=True)
class ColumnOptions:
    """The options about columns. `headrace.spark.layout` resolves them against a schema."""

    payload: str | None = None
    fields: tuple[str, ...] | None = None
    json: bool | tuple[str, ...] = False
    message_id: str | None = None
    stream_key_column: str | None = None
    entry_id: str | None = None
    ignore_columns: tuple[str, ...] = ()
    rows_per_entry: int | None = None
    arrow_ipc: bool = False
    codec: str | None = None


@dataclass(frozen=True)
class FailurePolicy:
    """How to handle rows that cannot be written. `"collect"` is for `headrace.spark.write` alone."""

    on_failure: Literal["fail", "report", "dead_letter", "collect"] = "fail"
    dead_letter_key: str | None = None
    max_failed_rows: int | None = None
    max_failed_ratio: float | None = None


@dataclass(frozen=True)
class WriteSettings:
    """All options of a write.

    Attributes:
        endpoint: Where entries are stored.
        dispatcher: Options of the dispatcher.
        columns: Options about columns.
        failure: How to handle rows that cannot be written.
        transaction: The name of a batch write, for exactly once.
        text: Whether the values of `dispatcher` are text, as Spark passes them to a data source.
    """

    endpoint: Endpoint
    dispatcher: Mapping[str, Any]
    columns: ColumnOptions
    failure: FailurePolicy
    transaction: Transaction | None
    text: bool = True

    @property
    def exactly_once(self) -> bool:
        """Whether rows that an earlier attempt wrote are deduplicated."""
        exactly_once: str = self.dispatcher.get("exactly_once", "off")
        return exactly_once != "off"

    @property
    def by_message_id(self) -> bool:
        """Whether rows are deduplicated by message ID rather than by number."""
        key: str | None = self.dispatcher.get("exactly_once_key")
        return key == "message_id"

    @property
    def retries(self) -> bool:
        """Whether the dispatcher waits for a server that it cannot reach."""
        retry: object = self.dispatcher.get("retry")
        return retry == "true" if self.text else retry is not None

    def make_dispatcher(self) -> Dispatcher:
        """Make a dispatcher with these options."""
        if self.text:
            return Dispatcher._from_text(self.endpoint, self.dispatcher)
        return Dispatcher(self.endpoint, **self.dispatcher)

    @property
    def dead_letters(self) -> Endpoint:
        """The endpoint of the dead letters: another stream of the same server."""
        state, inherited = self.endpoint._state()
        options = {name: value for name, value in state.items() if name not in NOT_OF_DEAD_LETTERS}
        try:
            return _restore(type(self.endpoint), {**options, "stream_key": self.failure.dead_letter_key}, inherited)
        finally:
            del state, options  # not for tracebacks with locals


def read(given: Mapping[str, str], *, streaming: bool) -> WriteSettings:
    """Check the options that Spark passes, with names in lower case.

    Raises:
        ConfigError: An option is unknown, wrong, or contradicts another one.
    """
    _check_names(given, streaming)
    transaction = _transaction(given, streaming)
    exactly_once = given.get("exactly_once", "auto" if streaming or transaction else "off")
    dispatcher = _dispatcher(given, exactly_once)
    settings = WriteSettings(_endpoint(given), dispatcher, _columns(given), _failure(given), transaction)
    settings.make_dispatcher()  # opens no connection, and checks its options
    return settings


def known() -> list[str]:
    """The names of all options."""
    return [*_endpoint_names(), *LAYOUT, *_dispatcher_names(), *FAILURE, *TRANSACTION]


def hide_secrets(options: MutableMapping[str, str]) -> None:
    """Keep the values that are secret, or may hold a secret, out of any traceback that shows `options`."""
    for name in ("password", "url", "tls_key"):
        if name in options:
            options[name] = Hidden(options[name])


def names(option: str, text: str) -> tuple[str, ...]:
    """Column names: `a, b`, or as JSON `["a", "b, c"]`."""
    found: object = [name.strip() for name in text.split(",")]
    if text.lstrip().startswith("["):
        try:
            found = json.loads(text)
        except ValueError:
            found = None
    if isinstance(found, list) and found and all(isinstance(name, str) and name for name in found):
        return tuple(found)
    raise _wrong(option, f"must be column names with commas between them, or a JSON array of names, got {text!r}")


def _check_names(given: Mapping[str, str], streaming: bool) -> None:
    if "path" in given:
        raise ConfigError("save() and start() take no path: the option stream_key names the stream", option="path")
    allowed = known()
    for name in given:
        if name not in allowed and not (streaming and name in OF_SPARK):
            text = f"there is no option {name!r}; the nearest one is {nearest(name, allowed)!r}"
            raise ConfigError(text, option=name)


def nearest(name: str, others: Iterable[str]) -> str:
    """The one of `others` that looks most like `name`. A part of a name means more than letters in common."""

    def likeness(other: str) -> float:
        return difflib.SequenceMatcher(None, other, name.lower()).ratio() + (len(name) > 2 and name.lower() in other)

    return max(others, key=likeness)


# --- the endpoint -----------------------------------------------------------------------------------------------------


@cache
def _endpoint_names() -> tuple[str, ...]:
    return ("url", *(name for name, *_ in Endpoint._options_table()))


def _endpoint(given: Mapping[str, str]) -> Endpoint:
    options = {name: given[name] for name in _endpoint_names() if name in given and name != "url"}
    state: dict[str, object] = {}
    try:
        if OBJECT.search(options.get("password", "")):
            why = "must be text, got a callable; give password_env or password_file, or take headrace.spark.write"
            raise _wrong("password", why)
        endpoint = Endpoint._from_text(options, given.get("url"))
        state, _ = endpoint._state()
        if "password" in state and "password" not in options:
            why = "must not hold a password, which Spark would show; give password_env or password_file"
            raise _wrong("url", why)
        if isinstance(state.get("tls_key"), bytes) or "\n" in str(state.get("tls_key", "")):
            raise _wrong("tls_key", "must be the path of a file on each executor: Spark would show a key itself")
        return endpoint
    finally:
        del options, state  # not for tracebacks with locals


# --- the dispatcher ---------------------------------------------------------------------------------------------------


@cache
def _dispatcher_names() -> tuple[str, ...]:
    """The dispatcher's options, as its signature has them; those of a `RetryPolicy` are options of their own."""
    parameters = inspect.signature(Dispatcher.__new__).parameters.values()
    keywords = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "retry"]
    return (*keywords, *RetryPolicy()._options())


def _dispatcher(given: Mapping[str, str], exactly_once: str) -> dict[str, str | None]:
    """The options of `Dispatcher._from_text`. Retry is on unless it is said otherwise."""
    options: dict[str, str | None] = {name: given[name] for name in _dispatcher_names() if name in given}
    if exactly_once != "off":
        options["exactly_once"] = exactly_once
    options.setdefault("retry", "true")
    if options["retry"] == "true":
        # At least once is what Spark gives anyway: it runs failed tasks again.
        options.setdefault("retry_unknown", "true" if exactly_once == "off" else "false")
    if options.get("ts_field") == "":
        options["ts_field"] = None
    return options


# --- what is the data source's own ------------------------------------------------------------------------------------


def _transaction(given: Mapping[str, str], streaming: bool) -> Transaction | None:
    if streaming:
        if name := next((name for name in TRANSACTION if name in given), None):
            raise _wrong(name, "is for batch writes: a streaming query is named by the ID in its checkpoint")
        return None
    app_id, version = (given.get(name) for name in TRANSACTION)
    # As a number, where it is one: the rule refuses any other text.
    number = int(version) if version is not None and re.fullmatch(r"[0-9]{1,19}", version) else version
    return Transaction.from_options(app_id, number, given.get("exactly_once"))


def _columns(given: Mapping[str, str]) -> ColumnOptions:
    options: dict[str, Any] = {name: given[name] for name in LAYOUT if name in given}
    for name in ("fields", "ignore_columns"):
        if name in options:
            options[name] = names(name, options[name])
    if "json" in options:
        asked = BOOLEANS.get(options["json"].lower())
        options["json"] = names("json", options["json"]) if asked is None else asked
    if "rows_per_entry" in options:
        options["rows_per_entry"] = _integer("rows_per_entry", options["rows_per_entry"], least=1)
    if "arrow_ipc" in options:
        options["arrow_ipc"] = _boolean("arrow_ipc", options["arrow_ipc"])
    return ColumnOptions(**options)


def _failure(given: Mapping[str, str]) -> FailurePolicy:
    options: dict[str, Any] = {name: given[name] for name in FAILURE if name in given}
    on_failure = options.get("on_failure", "fail")
    if on_failure not in ("fail", "report", "dead_letter"):
        raise _wrong("on_failure", f"must be one of 'fail', 'report', 'dead_letter', got {on_failure!r}")
    if on_failure == "dead_letter" and not options.get("dead_letter_key"):
        raise _wrong("dead_letter_key", "is missing: it names the stream of the rows that cannot be written")
    if on_failure != "dead_letter" and "dead_letter_key" in options:
        raise _wrong("dead_letter_key", f"is for on_failure='dead_letter', got on_failure={on_failure!r}")
    if options.get("dead_letter_key") == given.get("stream_key") and on_failure == "dead_letter":
        raise _wrong("dead_letter_key", f"must be another stream than stream_key, got {given['stream_key']!r} for both")
    for name in ("max_failed_rows", "max_failed_ratio"):
        if name in options and on_failure == "fail":
            raise _wrong(name, "is for on_failure='report' or 'dead_letter': 'fail' takes no failed row")
    if "max_failed_rows" in options:
        options["max_failed_rows"] = _integer("max_failed_rows", options["max_failed_rows"])
    if "max_failed_ratio" in options:
        ratio = options["max_failed_ratio"]
        if not re.fullmatch(r"[0-9]*\.?[0-9]+", ratio) or float(ratio) > 1:
            raise _wrong("max_failed_ratio", f"must be a number from 0 to 1, got {ratio!r}")
        options["max_failed_ratio"] = float(ratio)
    return FailurePolicy(**options)


def _integer(name: str, text: str, *, least: int = 0) -> int:
    if re.fullmatch(r"[0-9]{1,19}", text) and least <= int(text) < 2**63:
        return int(text)
    raise _wrong(name, f"must be an integer of at least {least}, got {text!r}")


def _boolean(name: str, text: str) -> bool:
    found = BOOLEANS.get(text.lower())
    if found is None:
        raise _wrong(name, f"must be a boolean (true or false), got {text!r}")
    return found


def _wrong(option: str, why: str) -> ConfigError:
    return ConfigError(f"{option} {why}", option=option)
