"""The trace context of messages: what OpenTelemetry's own propagator writes into a carrier is in the entries."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
import redis
from opentelemetry import context, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.trace.span import TraceState

from headrace import (
    AsyncDispatcher,
    ConfigError,
    DeliveryError,
    Dispatcher,
    Endpoint,
    MessageError,
    Reader,
    SchemaError,
)
from headrace import unpack as payloads_of
from headrace.testing import LocalServer
from support.modes import MODES
from support.paths import ROOT

Connect = Callable[..., redis.Redis]
Pairs = list[tuple[bytes, bytes]]

TRACER = TracerProvider().get_tracer("tests")
TABLE = pa.table({"payload": ["a", "b"], "n": [1, 2], "none": pa.array([None, 3])})


@pytest.fixture
def endpoint(any_server: LocalServer) -> Endpoint:
    return Endpoint.from_url(any_server.url, stream_key="s")


@pytest.fixture
def client(any_server: LocalServer, connect: Connect) -> redis.Redis:
    return connect(any_server)


@contextmanager
def remote_span(number: int = 1) -> Iterator[Pairs]:
    """Be in a span with a trace state, and return what the propagator writes."""
    state = TraceState([("vendor", f"value-{number}"), ("other", "ü" if number < 0 else "1")])
    span = NonRecordingSpan(SpanContext(number, number + 1, True, TraceFlags(TraceFlags.SAMPLED), state))
    token = context.attach(trace.set_span_in_context(span))
    try:
        yield injected()
    finally:
        context.detach(token)


def injected() -> Pairs:
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return [(name.encode(), value.encode()) for name, value in carrier.items()]


def entries(client: Any, stream: str = "s") -> list[Pairs]:
    """Return names and values of all entries, in order, without `ts`, which comes last."""
    # redis-py makes a dict of the fields, which loses those with equal names.
    client.set_response_callback("XRANGE", lambda reply, **_: reply)
    reply = client.execute_command("XRANGE", stream, "-", "+", NEVER_DECODE=True)
    read = [list(zip(fields[::2], fields[1::2], strict=True)) for _, fields in reply]
    assert all(name != b"ts" for entry in read for name, _ in entry[:-1])
    return [entry[:-1] if entry[-1][0] == b"ts" else entry for entry in read]


def test_messages_carry_the_context_of_the_span(endpoint: Endpoint, client: redis.Redis) -> None:
    with Dispatcher(endpoint, trace_context=True) as dispatcher, TRACER.start_as_current_span("outer"):
        outer = injected()
        dispatcher.produce(b"1", message_id="id")
        dispatcher.produce(fields=[("a", 1), (b"b", None), ("c", bytearray(b"c"))])
        with TRACER.start_as_current_span("inner"):
            inner = injected()
            dispatcher.produce("2", fields=[("a", 1), ("a", 2)])
            assert dispatcher.dispatch("3")
            assert dispatcher.dispatch(fields={"x": "y"}, stream_key="t", entry_id="9-9")
        assert [name for name, _ in outer] == [b"traceparent"]
        assert outer != inner
        report = dispatcher.flush()
    assert (report.delivered, report.failed) == (3, [])
    assert entries(client) == [
        [(b"payload", b"1"), *outer],
        [(b"a", b"1"), (b"c", b"c"), *outer],
        [(b"payload", b"2"), (b"a", b"1"), (b"a", b"2"), *inner],
        [(b"payload", b"3"), *inner],
    ]
    assert entries(client, "t") == [[(b"x", b"y"), *inner]]


LAYOUTS: dict[str, tuple[dict[str, Any], list[list[tuple[bytes, bytes]]]]] = {
    "payload": ({}, [[(b"payload", b"a")], [(b"payload", b"b")]]),
    "fields": ({"fields": ["n", "none"]}, [[(b"n", b"1")], [(b"n", b"2"), (b"none", b"3")]]),
    "both": (
        {"payload": "payload", "fields": ["n"]},
        [[(b"payload", b"a"), (b"n", b"1")], [(b"payload", b"b"), (b"n", b"2")]],
    ),
    "json": ({"json": ["n"]}, [[(b"payload", b'{"n":1}')], [(b"payload", b'{"n":2}')]]),
    "several": ({"rows_per_entry": 2}, [[(b"payload:0", b"a"), (b"payload:1", b"b")]]),
}


@pytest.mark.parametrize(
    ("mode", "layout"),
    # exactly_once excludes entries of several rows.
    [
        pytest.param(mode, layout, marks=[pytest.mark.needs("idmp")] if mode == "idmp" else [])
        for mode in MODES
        for layout in LAYOUTS
        if (mode, layout) == ("off", layout) or layout != "several"
    ],
)
def test_every_entry_of_a_batch_carries_the_context(
    endpoint: Endpoint, client: redis.Redis, layout: str, mode: Any
) -> None:
    keywords, expected = LAYOUTS[layout]
    with Dispatcher(endpoint, trace_context=True, exactly_once=mode) as dispatcher, remote_span() as carried:
        assert [name for name, _ in carried] == [b"traceparent", b"tracestate"]
        dispatcher.produce_batch(TABLE, **keywords)
        dispatcher.flush().raise_for_failures()
    assert entries(client) == [[*entry, *carried] for entry in expected]


def test_entries_of_several_rows_are_read_back(endpoint: Endpoint, client: redis.Redis) -> None:
    large = pa.table({"payload": ["x" * 20_000] * 3})
    with Dispatcher(endpoint, trace_context=True) as dispatcher, remote_span() as carried:
        dispatcher.produce_batch(TABLE, arrow_ipc=True)
        dispatcher.produce_batch(large, arrow_ipc=True)
        dispatcher.produce_batch(large)
        dispatcher.produce_batch(TABLE, rows_per_entry=5)
    read = entries(client)
    assert [entry[1:] if len(entry) == 3 else entry[2:] for entry in read] == [carried] * 6
    assert payloads_of(dict(read[-1])) == [b"a", b"b"]
    with Reader(endpoint, end="latest", unpack="arrow_ipc", limit=1) as reader:
        assert pa.table(reader).to_pylist() == TABLE.to_pylist()


def test_copied_entries_stream_keys_and_shards(
    endpoint: Endpoint, client: redis.Redis, any_server: LocalServer
) -> None:
    copied = pa.table(
        {"m": pa.array([[("a", "1"), ("b", "2")]], pa.map_(pa.string(), pa.string())), "to": ["t"], "id": ["5-5"]}
    )
    with Dispatcher(endpoint, trace_context=True) as dispatcher, remote_span() as carried:
        dispatcher.produce_batch(copied, fields_from="m", stream_key="to", entry_id="id")
    assert entries(client, "t") == [[(b"a", b"1"), (b"b", b"2"), *carried]]
    sharded = Endpoint.from_url(any_server.url, stream_key="u", shards=2, key_field="key")
    table = pa.table({"n": [1, 2], "key": pa.array(["k", None])})
    with Dispatcher(sharded, trace_context=True) as dispatcher, remote_span() as carried:
        dispatcher.produce_batch(table, fields=["n"], shard_key="key")
        dispatcher.produce("x", key="k")
    read = [entry for key in sharded.stream_keys for entry in entries(client, key.decode())]
    keyed = [(b"key", b"k")]
    expected = [[(b"n", b"1"), *carried, *keyed], [(b"n", b"2"), *carried], [(b"payload", b"x"), *carried, *keyed]]
    assert sorted(read) == sorted(expected)


def test_each_batch_has_the_context_of_its_call(endpoint: Endpoint, client: redis.Redis) -> None:
    table, carried = pa.table({"payload": ["x"] * 3_000}), []
    with Dispatcher(endpoint, trace_context=True) as dispatcher:
        for number in (1, 2):
            with remote_span(number) as pairs:
                dispatcher.produce_batch(table.to_reader(1_000))
            carried += [pairs] * 3_000
        dispatcher.produce_batch(table)
    assert [entry[1:] for entry in entries(client)] == [*carried, *[[]] * 3_000]


def test_without_a_span_entries_are_as_without_the_option(any_server: LocalServer, client: redis.Redis) -> None:
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("s", {"trace_context": True}),
        ("t", {}),
        ("u", {"trace_context": False}),
    ]
    for stream, options in kinds:
        to = Endpoint.from_url(any_server.url, stream_key=stream)
        with Dispatcher(to, **options) as dispatcher:
            dispatcher.produce("1")
            dispatcher.produce(fields={"a": 1})
            layouts: list[dict[str, Any]] = [{}, {"fields": ["n"]}, {"rows_per_entry": 2}, {"arrow_ipc": True}]
            for layout in layouts:
                dispatcher.produce_batch(TABLE, **layout)
    assert entries(client, "s") == entries(client, "t") == entries(client, "u")
    assert len(entries(client, "s")) == 8


def test_a_message_of_nothing_but_the_context_is_empty(endpoint: Endpoint, client: redis.Redis) -> None:
    with Dispatcher(endpoint, trace_context=True) as dispatcher, remote_span():
        for fields in (None, {}, {"a": None}):
            with pytest.raises(DeliveryError, match="EMPTY"):
                dispatcher.dispatch(fields=fields)
        dispatcher.produce_batch(pa.table({"n": pa.array([None], pa.int8())}), fields=["n"])
        assert [failure.code for failure in dispatcher.flush().failed] == ["EMPTY"]
    assert entries(client) == []


@pytest.mark.parametrize("name", ["traceparent", "tracestate", b"traceparent"])
@pytest.mark.parametrize("has_span", [True, False])
def test_a_field_with_one_of_the_names_is_refused(
    endpoint: Endpoint, client: redis.Redis, name: Any, has_span: bool
) -> None:
    text = name.decode() if isinstance(name, bytes) else name
    with Dispatcher(endpoint, trace_context=True) as dispatcher:
        calls: list[Callable[[], object]] = [
            lambda: dispatcher.produce("x", fields={name: "y"}),
            lambda: dispatcher.dispatch(fields=[("a", 1), (name, "y")]),
        ]
        for call in calls:
            with pytest.raises(
                MessageError, match=r"fields has b?'trace(parent|state)', which trace_context adds: leave it out"
            ):
                call()
        if has_span:
            items = pa.array([[(text, "1")], [("a", "1")]], pa.map_(pa.string(), pa.string()))
            with remote_span():
                with pytest.raises(SchemaError, match=f'column "{text}" cannot be a field: trace_context adds a field'):
                    dispatcher.produce_batch(pa.table({text: [1]}), fields=[text])
                dispatcher.produce_batch(pa.table({"m": items}), fields_from="m")
            report = dispatcher.flush()
            assert [(failure.code, failure.message) for failure in report.failed] == [
                ("BAD_VALUE", f'the row has a field "{text}", which trace_context adds to every row')
            ]
            assert report.delivered == 1
    assert len(entries(client)) == has_span


@pytest.mark.parametrize("kind", [Dispatcher, AsyncDispatcher])
def test_invalid_options(any_server: LocalServer, endpoint: Endpoint, kind: Any) -> None:
    with pytest.raises(ConfigError, match="trace_context must be True or False, got 'yes'"):
        kind(endpoint, trace_context="yes")
    for option in ("payload_field", "ts_field"):
        with pytest.raises(ConfigError, match=f"{option} must not be 'tracestate': trace_context adds this field"):
            kind(endpoint, trace_context=True, **{option: "tracestate"})
    keeps = Endpoint.from_url(any_server.url, stream_key="s", shards=2, key_field="traceparent")
    with pytest.raises(ConfigError, match="key_field must not be 'traceparent'"):
        kind(keeps, trace_context=True)
    with pytest.raises(ConfigError, match="unknown option 'trace'"):
        kind(endpoint, trace_context=True, trace=1)


def test_wrong_arguments_have_the_same_errors(endpoint: Endpoint) -> None:
    wrong: list[Any] = [5, "text", [("a",)], {"a": object()}, {1: 2}, [5]]
    for fields in wrong:
        texts = []
        for trace_context in (True, False):
            with Dispatcher(endpoint, trace_context=trace_context) as dispatcher, pytest.raises(MessageError) as caught:
                dispatcher.produce(fields=fields)
            texts.append(str(caught.value))
        assert texts[0] == texts[1]
    with Dispatcher(endpoint, trace_context=True) as dispatcher, pytest.raises(TypeError, match="argument 'zzz'"):
        dispatcher.produce_batch(TABLE, zzz=1)  # type: ignore[call-arg]


def test_tasks_have_their_own_contexts(endpoint: Endpoint, client: redis.Redis) -> None:
    async def send(dispatcher: AsyncDispatcher, number: int) -> None:
        with remote_span(number) as carried:
            if number % 2:
                await dispatcher.send(str(number), fields={"size": "x" * 500})
            else:
                await dispatcher.produce(fields={"n": number})
            assert injected() == carried

    async def main() -> None:
        # Most tasks wait for room, and their messages are taken in the turn of another task.
        async with AsyncDispatcher(endpoint, trace_context=True, window_max_entries=4) as dispatcher:
            assert isinstance(dispatcher, AsyncDispatcher)
            await asyncio.gather(*(send(dispatcher, number) for number in range(1, 201)))
            with remote_span(300):
                await dispatcher.produce_batch(TABLE, fields=["n"])
            with pytest.raises(MessageError, match="which trace_context adds"):
                await dispatcher.send("x", fields={"tracestate": 1})

    asyncio.run(main())
    contexts: dict[int, list[Pairs]] = {}
    for entry in entries(client):
        fields = dict(entry)
        named = fields.get(b"payload", fields.get(b"n", b""))
        contexts.setdefault(int(named), []).append(entry[-2:])
    for number in range(1, 201):
        with remote_span(number) as carried:
            assert carried in contexts[number], number
    with remote_span(300) as carried:
        assert carried in contexts[1]
        assert carried in contexts[2]


def test_a_reader_continues_the_trace(endpoint: Endpoint, client: redis.Redis) -> None:
    with Dispatcher(endpoint, trace_context=True) as dispatcher, TRACER.start_as_current_span("sender") as span:
        dispatcher.produce("x")
    with Reader(endpoint, end="latest") as reader:
        entry = next(reader)[0]
    carrier = {name: value.decode() for name, value in entry.fields.items()}
    found = trace.get_current_span(TraceContextTextMapPropagator().extract(carrier)).get_span_context()
    assert (found.trace_id, found.span_id) == (span.get_span_context().trace_id, span.get_span_context().span_id)


def test_a_subclass_keeps_its_methods(endpoint: Endpoint, client: redis.Redis) -> None:
    class Own(Dispatcher):
        def produce(self, payload: Any = None, *args: Any, **more: Any) -> None:
            super().produce(f"own {payload}", *args, **more)

    with Own(endpoint, trace_context=True) as dispatcher, remote_span() as carried:
        assert isinstance(dispatcher, Own)
        assert repr(dispatcher).startswith("<Own: ")
        dispatcher.produce("x", 5)
        assert dispatcher.flush().delivered == 1
    assert entries(client) == [[(b"payload", b"own x"), *carried]]
    assert type(Own(endpoint, trace_context=True)) is type(Own(endpoint, trace_context=True))
    assert type(Own(endpoint)) is Own


def test_opentelemetry_is_imported_only_with_the_option() -> None:
    code = """
import sys
from headrace import AsyncDispatcher, ConfigError, Dispatcher, Endpoint

endpoint = Endpoint(host="localhost", stream_key="s")
for kind in (Dispatcher, AsyncDispatcher):
    kind(endpoint)
    kind(endpoint, trace_context=False)
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
sys.modules["opentelemetry"] = None
for kind in (Dispatcher, AsyncDispatcher):
    try:
        kind(endpoint, trace_context=True)
    except ConfigError as error:
        print(error, error.option)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    text = "trace_context needs opentelemetry-api: pip install opentelemetry-api trace_context\n"
    assert (run.stdout, run.stderr) == (text * 2, "")
