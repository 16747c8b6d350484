"""The options of the data source: all text, as Spark hands them over, checked before any task starts."""

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

__all__ = ["FailurePolicy", "Hidden", "LayoutOptions", "Settings", "Transaction", "hide_secrets", "known", "read"]

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
class LayoutOptions:
    """What the options say of the columns; `headrace.spark.layout` makes a layout of it and a schema."""

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
    """What becomes of rows that cannot be written."""

    on_failure: Literal["fail", "report", "dead_letter"] = "fail"
    dead_letter_key: str | None = None
    max_failed_rows: int | None = None
    max_failed_ratio: float | None = None


@dataclass(frozen=True)
class Transaction:
    """The name of a batch write: the same again writes nothing twice."""

    app_id: str
    version: int


@dataclass(frozen=True)
class Settings:
    """All that the options say."""

    endpoint: Endpoint
    dispatcher: dict[str, str | None]
    layout: LayoutOptions
    failure: FailurePolicy
    transaction: Transaction | None

    @property
    def exactly_once(self) -> bool:
        """Whether a row that was written by an earlier try is deduplicated."""
        return self.dispatcher.get("exactly_once", "off") != "off"

    @property
    def by_message_id(self) -> bool:
        """Whether that goes by message IDs, not by the numbers of rows."""
        return self.dispatcher.get("exactly_once_key") == "message_id"

    @property
    def retries(self) -> bool:
        """Whether a server that is away is waited for."""
        return self.dispatcher["retry"] == "true"

    def make_dispatcher(self) -> Dispatcher:
        """A dispatcher with these options."""
        return Dispatcher._from_text(self.endpoint, self.dispatcher)

    @property
    def dead_letters(self) -> Endpoint:
        """The same server, but the stream of dead letters."""
        state, inherited = self.endpoint._state()
        options = {name: value for name, value in state.items() if name not in NOT_OF_DEAD_LETTERS}
        try:
            return _restore(type(self.endpoint), {**options, "stream_key": self.failure.dead_letter_key}, inherited)
        finally:
            del state, options  # not for tracebacks with locals


def read(given: Mapping[str, str], *, streaming: bool) -> Settings:
    """Check the options that Spark hands over, with names in lower case.

    Raises:
        ConfigError: An option is unknown, wrong, or contradicts another one.
    """
    _check_names(given, streaming)
    transaction = _transaction(given, streaming)
    exactly_once = given.get("exactly_once", "auto" if streaming or transaction else "off")
    if exactly_once != "off" and not (streaming or transaction):
        raise _wrong("exactly_once", "needs txn_app_id and txn_version in a batch write: they name its rows")
    if exactly_once == "off" and transaction:
        raise _wrong("exactly_once", "'off' and txn_app_id exclude each other: give one of them")
    dispatcher = _dispatcher(given, exactly_once)
    settings = Settings(_endpoint(given), dispatcher, _layout(given), _failure(given), transaction)
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
    app_id, version = (given.get(name) for name in TRANSACTION)
    if app_id is None and version is None:
        return None
    if streaming:
        name = "txn_version" if app_id is None else "txn_app_id"
        raise _wrong(name, "is for batch writes: a streaming query has the ID of its checkpoint")
    if app_id is None:
        raise _wrong("txn_version", "needs txn_app_id: both name the batch")
    if version is None:
        raise _wrong("txn_app_id", "needs txn_version: both name the batch")
    if not app_id:
        raise _wrong("txn_app_id", "must be text that is not empty")
    return Transaction(app_id, _integer("txn_version", version))


def _layout(given: Mapping[str, str]) -> LayoutOptions:
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
    return LayoutOptions(**options)


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
