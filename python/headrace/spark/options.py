"""The options of the data source: all text, as Spark hands them over, checked before any task starts."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar

from headrace._headrace import read_options
from headrace.dispatcher import Dispatcher
from headrace.endpoint import Endpoint, _restore
from headrace.errors import ConfigError
from headrace.tables import DATASOURCE, DISPATCHER, ENDPOINT

__all__ = ["FailurePolicy", "Hidden", "LayoutOptions", "Settings", "Transaction", "hide_secrets", "known", "read"]

_Made = TypeVar("_Made", "LayoutOptions", "FailurePolicy")

#: What Spark makes of a function that is given where it takes text.
OBJECT = re.compile(r"<(function|bound method|built-in \w+|class) .+>|<.+ object at 0x[0-9a-f]+>")

#: What Spark itself puts among the options of a streaming query.
OF_SPARK = frozenset(
    {
        *("checkpointlocation", "queryname"),
        *("asyncprogresstrackingenabled", "asyncprogresstrackingcheckpointintervalms"),
    }
)

#: Options of the stream that the stream of dead letters does not share: all of these are kept.
NOT_OF_DEAD_LETTERS = ("maxlen", "maxlen_approximate", "minid", "trim_every", "nomkstream", "consumer_group")


class Hidden(str):
    """Text that is not shown: Spark can print the local variables of a traceback."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


def _default(name: str) -> Any:
    return DATASOURCE[name].default


@dataclass(frozen=True)
class LayoutOptions:
    """What the options say of the columns; `headrace.spark.layout` makes a layout of it and a schema."""

    payload: str | None
    fields: tuple[str, ...] | None
    json: bool | tuple[str, ...]
    message_id: str | None
    stream_key_column: str | None
    entry_id: str | None
    ignore_columns: tuple[str, ...]
    rows_per_entry: int | None
    arrow_ipc: bool
    codec: str | None


@dataclass(frozen=True)
class FailurePolicy:
    """What becomes of rows that cannot be written."""

    on_failure: Literal["fail", "report", "dead_letter"] = _default("on_failure")
    dead_letter_key: str | None = _default("dead_letter_key")
    max_failed_rows: int | None = _default("max_failed_rows")
    max_failed_ratio: float | None = _default("max_failed_ratio")


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
    own = _own(given)
    transaction = _transaction(own, streaming)
    exactly_once = given.get("exactly_once", "auto" if streaming or transaction else "off")
    if exactly_once != "off" and not (streaming or transaction):
        raise _wrong("exactly_once", "needs txn_app_id and txn_version in a batch write: they name its rows")
    if exactly_once == "off" and transaction:
        raise _wrong("exactly_once", "'off' and txn_app_id are mutually exclusive")
    dispatcher = _dispatcher(given, exactly_once)
    settings = Settings(_endpoint(given), dispatcher, _made(LayoutOptions, own), _failure(given, own), transaction)
    settings.make_dispatcher()  # opens no connection, and checks its options
    return settings


def known() -> list[str]:
    """The names of all options."""
    return ["url", *ENDPOINT, *DISPATCHER, *DATASOURCE]


def hide_secrets(options: MutableMapping[str, str]) -> None:
    """Keep the values that are secret, or may hold a secret, out of any traceback that shows `options`."""
    for name in ("password", "url", "tls_key"):
        if name in options:
            options[name] = Hidden(options[name])


def _check_names(given: Mapping[str, str], streaming: bool) -> None:
    if "path" in given:
        raise ConfigError("save() and start() take no path: the option stream_key names the stream", option="path")
    allowed = known()
    for name in given:
        if name not in allowed and not (streaming and name in OF_SPARK):
            text = f"unknown option {name!r}; did you mean {nearest(name, allowed)!r}?"
            raise ConfigError(text, option=name)


def nearest(name: str, others: Iterable[str]) -> str:
    """The one of `others` that looks most like `name`. A part of a name means more than letters in common."""

    def likeness(other: str) -> float:
        return difflib.SequenceMatcher(None, other, name.lower()).ratio() + (len(name) > 2 and name.lower() in other)

    return max(others, key=likeness)


# --- the endpoint -----------------------------------------------------------------------------------------------------


def _endpoint(given: Mapping[str, str]) -> Endpoint:
    options = {name: given[name] for name in ENDPOINT if name in given}
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


def _dispatcher(given: Mapping[str, str], exactly_once: str) -> dict[str, str | None]:
    """The options of `Dispatcher._from_text`. Retry is on unless it is said otherwise."""
    options: dict[str, str | None] = {name: given[name] for name in DISPATCHER if name in given}
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


def _own(given: Mapping[str, str]) -> dict[str, Any]:
    """The options of the table `DATASOURCE`, with their types; lists of names are tuples."""
    own = read_options("datasource", {name: given[name] for name in DATASOURCE if name in given})
    return own | {"ignore_columns": own["ignore_columns"] or ()}


def _made(of: type[_Made], options: Mapping[str, Any]) -> _Made:
    return of(**{field.name: options[field.name] for field in fields(of)})


def _transaction(own: Mapping[str, Any], streaming: bool) -> Transaction | None:
    app_id, version = own["txn_app_id"], own["txn_version"]
    if app_id is None and version is None:
        return None
    if streaming:
        name = "txn_version" if app_id is None else "txn_app_id"
        raise _wrong(name, "is for batch writes: a streaming query has the ID of its checkpoint")
    if app_id is None:
        raise _wrong("txn_version", "needs txn_app_id: both name the batch")
    if version is None:
        raise _wrong("txn_app_id", "needs txn_version: both name the batch")
    return Transaction(app_id, version)


def _failure(given: Mapping[str, str], own: Mapping[str, Any]) -> FailurePolicy:
    policy = _made(FailurePolicy, own)
    on_failure, dead_letter_key = policy.on_failure, policy.dead_letter_key
    if on_failure == "dead_letter" and dead_letter_key is None:
        raise _wrong("dead_letter_key", "is missing: it names the stream of the rows that cannot be written")
    if on_failure != "dead_letter" and dead_letter_key is not None:
        raise _wrong("dead_letter_key", f"is for on_failure='dead_letter', got on_failure={on_failure!r}")
    if on_failure == "dead_letter" and dead_letter_key == given.get("stream_key"):
        raise _wrong("dead_letter_key", f"must be another stream than stream_key, got {given['stream_key']!r} for both")
    for name in ("max_failed_rows", "max_failed_ratio"):
        if own[name] is not None and on_failure == "fail":
            raise _wrong(name, "is for on_failure='report' or 'dead_letter': 'fail' takes no failed row")
    return policy


def _wrong(option: str, why: str) -> ConfigError:
    return ConfigError(f"{option} {why}", option=option)
