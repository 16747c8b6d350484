"""The tables of options, codes and counters: what is made of them agrees with them."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import re
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest

import headrace.consumer
from headrace import AsyncDispatcher, ConfigError, Dispatcher, Endpoint, ReadReport, RetryPolicy
from headrace.dispatcher import DispatcherOptions
from headrace.metrics import ConsumerStats, NodeStats, ReaderStats, Stats
from headrace.spark import write, xadd, xadd_udf
from headrace.spark.settings import COLUMN_OPTIONS, FailurePolicy, known
from headrace.tables import (
    AWAY_CODES,
    CODES,
    CONNECTION_CODES,
    COUNTERS,
    DATASOURCE,
    DATASOURCE_READ,
    DISPATCHER,
    ENDPOINT,
    LAYOUT,
    OWN_CODES,
    RETRY,
)
from support.paths import ROOT


def test_documentation_tables_match_the_code() -> None:
    command = [sys.executable, str(ROOT / "tools" / "write_tables.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_groups_of_codes() -> None:
    assert len(OWN_CODES) >= 25
    assert {"OOM", "WRONGTYPE"} <= CODES.keys() - set(OWN_CODES)
    assert {"CONNECT", "DNS", "TIMEOUT", "RESET", "EOF", "NO_MASTER", "SWITCHED", "NO_SLOT"} == AWAY_CODES
    assert {"TLS", "PROTOCOL"} == CONNECTION_CODES - AWAY_CODES
    assert CODES["OOM"].kinds == {"default": "permanent", "failover": "retryable", "strict": "permanent"}


def test_tables_of_counters() -> None:
    units = {"bool": {"1"}, "float": {"s"}, "float | None": {"s"}}
    for table in COUNTERS.values():
        assert len(table) >= 7
        for row in table:
            assert row.text.endswith("."), row.name
            assert row.help is None or not row.help.endswith("."), row.name
            assert row.help is None or row.unit in units.get(row.type, {row.unit}), row.name
            assert (row.age is not None) == (row.type == "float | None"), row.name


@pytest.mark.parametrize("cls", [Stats, NodeStats, ReaderStats, ConsumerStats, ReadReport])
def test_the_docstring_of_a_class_of_counters_describes_its_attributes(cls: type[Any]) -> None:
    own = [name for name in cls.__annotations__ if not name.startswith("_")]
    assert re.findall(r"^    (\w+): ", inspect.getdoc(cls) or "", re.MULTILINE) == own


def test_a_report_is_a_tuple_and_its_new_counts_come_last() -> None:
    first = "handed_over redelivered reclaimed acked stale unknown released dead lost pending"
    assert ReadReport._fields == tuple(row.name for row in COUNTERS["report"])
    assert ReadReport._fields[:10] == tuple(first.split())
    report = ReadReport(*range(1, 11))
    assert report[:10] == tuple(range(1, 11))
    assert report == (*range(1, 11), *[0] * (len(report) - 10))
    assert repr(report).startswith("ReadReport(handed_over=1, redelivered=2, ")
    assert pickle.loads(pickle.dumps(report)) == report
    assert ReadReport(**report._asdict() | {"acked": 0}) == report._replace(acked=0)
    assert headrace.consumer.ReadReport is ReadReport


# --- options ----------------------------------------------------------------------------------------------------------

KEYWORDS = {name: option for name, option in DISPATCHER.items() if not name.startswith("retry_")}


def test_tables_of_options() -> None:
    for table in (ENDPOINT, DISPATCHER, LAYOUT, DATASOURCE, RETRY):
        assert len(table) >= 7
        for option in table.values():
            assert option.text.endswith("."), option.name


@pytest.mark.parametrize("dispatcher", [Dispatcher, AsyncDispatcher])
def test_signature_and_docstring_of_the_dispatchers(dispatcher: type[object]) -> None:
    parameters = inspect.signature(dispatcher).parameters
    assert set(parameters) == {"endpoint", "trace_context", *KEYWORDS}
    assert set(DispatcherOptions.__annotations__) == set(KEYWORDS)
    doc = inspect.getdoc(dispatcher) or ""
    described = re.findall(r"^    (\w+): ", doc, re.MULTILINE)
    assert sorted(described) == sorted([*parameters, "ConfigError"])
    for name, option in KEYWORDS.items():
        assert parameters[name].default == (None if name == "retry" else option.keyword_default), name


def test_the_fields_of_a_retry_policy() -> None:
    assert [(field.name, field.default) for field in dataclasses.fields(RetryPolicy)] == [
        (name, option.default) for name, option in RETRY.items()
    ]
    assert dataclasses.asdict(RetryPolicy()) == {
        "max_attempts": None,
        "initial_backoff": 0.05,
        "max_backoff": 0.5,
        "multiplier": 2.0,
        "jitter": 0.5,
        "deadline": 120.0,
        "retry_unknown": False,
    }
    assert set(RetryPolicy()._options()) == DISPATCHER.keys() - KEYWORDS.keys() | {"retry"}


def test_the_docstring_of_a_retry_policy_describes_its_fields() -> None:
    doc = inspect.getdoc(RetryPolicy) or ""
    assert re.findall(r"^    (\w+): ", doc, re.MULTILINE) == list(RETRY)
    assert "{options}" not in doc


def test_the_keyword_arguments_of_produce_batch() -> None:
    parameters = list(inspect.signature(Dispatcher.produce_batch).parameters.values())
    keywords = {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}
    assert keywords.keys() == LAYOUT.keys()
    for name, default in keywords.items():
        # False and None are the same for `json`.
        assert (default or None) == (LAYOUT[name].keyword_default or None), name


def test_the_options_of_the_data_source() -> None:
    of_writes = ["url", *ENDPOINT, *DISPATCHER, *DATASOURCE]
    assert known()[: len(of_writes)] == of_writes
    assert set(known()) == {"url", *ENDPOINT, *DISPATCHER, *DATASOURCE, *DATASOURCE_READ}
    layout = {COLUMN_OPTIONS.get(name, name) for name in LAYOUT}
    policy = {field.name for field in dataclasses.fields(FailurePolicy)}
    assert layout | policy | {"ignore_columns", "txn_app_id", "txn_version"} == DATASOURCE.keys()


@pytest.mark.parametrize("function", [write, xadd])
def test_spark_functions_document_the_keyword_arguments_of_produce_batch(function: object) -> None:
    assert callable(function)
    parameters = inspect.signature(function).parameters
    described = re.findall(r"^    (\w+): ", inspect.getdoc(function) or "", re.MULTILINE)
    for name, option in LAYOUT.items():
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[name].default == option.keyword_default, name
        assert described.count(name) == 1, name


@pytest.mark.parametrize("name", ["retry_deadline", "max_attempts"])
def test_retry_options_are_refused_outside_the_policy(name: str) -> None:
    endpoint = Endpoint(host="h", stream_key="s")
    with pytest.raises(ConfigError, match=f"unknown option '{name}'; did you mean"):
        Dispatcher(endpoint, **{name: 1})  # type: ignore[arg-type]


def test_type_checkers_and_the_runtime_reject_a_misspelt_option() -> None:
    """Mypy is strict about comments that ignore nothing, so `make lint` fails where it accepts one of these lines."""
    endpoint = Endpoint(host="h", stream_key="s")
    no_frame: Any = None  # it is not looked at
    with pytest.raises(ConfigError, match="unknown option 'stream_kye'; did you mean 'stream_key'"):
        Endpoint(host="h", stream_kye="s")  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="unknown option 'maxlenn'; did you mean 'maxlen'"):
        Endpoint.from_url("redis://h?stream_key=s", maxlenn=1)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="unknown option 'window_max_entires'; did you mean 'window_max_entries'"):
        Dispatcher(endpoint, window_max_entires=5)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="wait_replicas must be an integer of at least 0, or 'all', got '2'"):
        Dispatcher(endpoint, wait_replicas="2")  # type: ignore[arg-type]
    with Dispatcher(endpoint) as dispatcher, pytest.raises(TypeError, match="rows_per_entyr"):
        dispatcher.produce_batch(pa.record_batch({"payload": ["x"]}), rows_per_entyr=2)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="unknown option 'rows_per_entyr'; did you mean 'rows_per_entry'"):
        xadd(endpoint, rows_per_entyr=2)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="unknown option 'rows_per_entyr'; did you mean 'rows_per_entry'"):
        write(no_frame, endpoint, rows_per_entyr=2)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="unknown option 'orderd'; did you mean 'ordered'"):
        xadd_udf(endpoint, orderd=True)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="dedline"):
        RetryPolicy(dedline=3)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        endpoint.prot  # type: ignore[attr-defined]  # noqa: B018
