"""Messages with fields, and with a stream key or an entry ID of their own: redis-py's XADD is the oracle."""

from __future__ import annotations

import asyncio
import random
import re
import subprocess
import sys
import time as clock
import types
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from headrace import AsyncDispatcher, ConfigError, DeliveryError, Dispatcher, Endpoint, MessageError, SchemaError
from headrace.testing import LocalServer
from support.paths import ROOT
from support.pipelines import endpoint_to, outcomes

Connect = Callable[..., Any]


#: The entry IDs that messages ask for are above those of the clock.
FIRST_ID = 10**14


class Message(NamedTuple):
    """The arguments of a message."""

    payload: bytes | str | None
    fields: list[tuple[str | bytes, bytes]] | None
    stream_key: bytes | None
    entry_id: str | None

    @property
    def more(self) -> dict[str, Any]:
        return {"fields": self.fields, "stream_key": self.stream_key, "entry_id": self.entry_id}

    @property
    def pairs(self) -> list[bytes]:
        """Names and values, as XADD takes them."""
        payload = [] if self.payload is None else [b"payload", _bytes(self.payload)]
        return payload + [part for name, value in self.fields or [] for part in (_bytes(name), value)]


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def messages(count: int, seed: int) -> Iterator[Message]:
    """Messages of any content: binary, empty, large, with equal names, of several streams, with IDs of their own."""
    chance = random.Random(seed)

    def some(most: int) -> bytes:
        return chance.randbytes(min(int(chance.paretovariate(0.7)) - 1, most))

    def name() -> str | bytes:
        names: list[str | bytes] = ["a", "é", "", "\r\n$1\r\n*", b"a", some(40)]
        return chance.choice(names)

    for number in range(count):
        size = 1_000_000 if chance.random() < 0.001 else 100_000
        payload = chance.choice([None, some(size), some(9), "naïve"])
        fields = None
        if payload is None or chance.random() < 0.7:
            width = chance.choice([1, 1, 2, 3, 9, 300 if number % 50 == 0 else 4])
            given = [(name(), some(size)) for _ in range(width)]
            fields = [(name, value) for name, value in given if _bytes(name) not in (b"payload", b"ts")]
        stream_key = chance.choice([None, None, b"s", b"\x00\xff{x}", b"other"])
        # Each ID is above those before it, in whichever stream.
        entry_id = chance.choice([None, f"{FIRST_ID + number}-7", f"{FIRST_ID + number}"]) if number % 3 == 0 else None
        if fields or payload is not None:
            yield Message(payload, fields or None, stream_key, entry_id)


def stored(client: Any, key: bytes | str) -> list[tuple[bytes, list[bytes]]]:
    """The entries of a stream: the ID, names and values of each."""
    # redis-py makes a dict of the fields, which loses those with equal names.
    client.set_response_callback("XRANGE", lambda reply, **_: reply)
    reply = client.execute_command("XRANGE", key, "-", "+", NEVER_DECODE=True)
    return [(entry_id, fields) for entry_id, fields in reply]


def fields_of(client: Any, key: bytes | str = "s") -> list[list[bytes]]:
    return [fields for _, fields in stored(client, key)]


def entries(client: Any, key: bytes, prefix: bytes) -> list[Any]:
    """The entries in order, with the IDs that messages asked for."""
    asked = str(FIRST_ID)[:8].encode()
    found = stored(client, prefix + key)
    return [(entry_id if entry_id.startswith(asked) else None, fields) for entry_id, fields in found]


KEYS = [b"s", b"\x00\xff{x}", b"other"]


def produce(endpoint: Endpoint, given: list[Message], prefix: bytes, **options: Any) -> None:
    with Dispatcher(endpoint, ts_field=None, **options) as dispatcher:
        for message in given:
            more = {**message.more, "stream_key": prefix + (message.stream_key or b"s")}
            if not message.stream_key:
                del more["stream_key"]
            dispatcher.produce(message.payload, **more)
        assert dispatcher.flush().raise_for_failures().delivered == len(given)


def dispatch(endpoint: Endpoint, given: list[Message], prefix: bytes) -> None:
    with Dispatcher(endpoint, ts_field=None) as dispatcher:
        for message in given:
            stream_key = message.stream_key and prefix + message.stream_key
            written = dispatcher.dispatch(message.payload, **{**message.more, "stream_key": stream_key})
            if message.entry_id is not None:
                assert written.partition("-")[0] == message.entry_id.partition("-")[0]


def send(endpoint: Endpoint, given: list[Message], prefix: bytes) -> None:
    async def run() -> None:
        async with AsyncDispatcher(endpoint, ts_field=None, window_max_entries=16) as dispatcher:
            calls = []
            for number, message in enumerate(given):
                stream_key = message.stream_key and prefix + message.stream_key
                call = dispatcher.produce if number % 5 == 0 else dispatcher.send
                more = {**message.more, "stream_key": stream_key}
                calls.append(asyncio.ensure_future(call(message.payload, **more)))
            await asyncio.gather(*calls)
            (await dispatcher.flush()).raise_for_failures()

    asyncio.run(run())


WAYS: dict[str, Callable[[Endpoint, list[Message], bytes], None]] = {
    "produce": produce,
    "produce exactly once": lambda *given: produce(*given, exactly_once="script"),
    "produce with a window of 3": lambda *given: produce(*given, window_max_entries=3),
    "dispatch": dispatch,
    "send": send,
}


def check_like_xadd(server: LocalServer, client: Any, count: int, seed: int) -> None:
    given = list(messages(count, seed))
    for message in given:
        key = message.stream_key or b"s"
        client.execute_command("XADD", b"xadd " + key, message.entry_id or "*", *message.pairs)
    for way, write in WAYS.items():
        prefix = way.encode() + b" "
        write(endpoint_to(server, stream_key=prefix + b"s"), given, prefix)
        for key in KEYS:
            assert entries(client, key, prefix) == entries(client, key, b"xadd "), (way, key, seed)


def test_messages_become_the_entries_that_xadd_writes(server: LocalServer, connect: Connect) -> None:
    check_like_xadd(server, connect(server), 300, 1)


@pytest.mark.thorough
def test_many_messages_become_the_entries_that_xadd_writes(server: LocalServer, connect: Connect) -> None:
    check_like_xadd(server, connect(server), 10_000, 2)


# --- values

BERLIN, UTC_ZONE = ZoneInfo("Europe/Berlin"), ZoneInfo("UTC")

#: A value, and the column type that writes it; None: the text.
VALUES: list[tuple[Any, Any]] = [
    *((number, pa.int64()) for number in (0, -1, 12_345_678, 2**63 - 1, -(2**63))),
    *((number, pa.float64()) for number in (0.0, -0.0, 0.1, 1e7, 1e-4, 5e-324, 1.7e308, float("nan"), float("-inf"))),
    *((flag, pa.bool_()) for flag in (True, False)),
    (Decimal("1.50"), pa.decimal128(9, 2)),
    (Decimal("-0.00"), pa.decimal128(9, 2)),
    (Decimal("1E+3"), pa.decimal128(9, 0)),
    (Decimal("0.00000012"), pa.decimal128(9, 8)),
    *((day, pa.date32()) for day in (date(1, 1, 1), date(1969, 12, 31), date(2026, 4, 14), date(9999, 12, 31))),
    *((clock, pa.time64("us")) for clock in (time(0), time(12, 34, 56, 500_000), time(23, 59, 59, 999_999))),
    *(
        (moment, pa.timestamp("us"))
        for moment in (datetime(1, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 1), datetime(9999, 12, 31, 23))
    ),
    (datetime(2026, 4, 14, 12, 0, 0, 500_000, UTC), pa.timestamp("us", "UTC")),
    (datetime(2026, 4, 14, 12, tzinfo=UTC_ZONE), pa.timestamp("us", "UTC")),
    (datetime(2026, 7, 14, 12, tzinfo=BERLIN), pa.timestamp("us", "Europe/Berlin")),
    (datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN), pa.timestamp("us", "Europe/Berlin")),
    (datetime(2026, 4, 14, 12, tzinfo=timezone(-timedelta(hours=9, minutes=30))), pa.timestamp("us", "-09:30")),
    *((span, pa.duration("us")) for span in (timedelta(0), timedelta(days=-1, microseconds=1), timedelta(99_999_999))),
    ("naïve", pa.string()),
    (b"\x00\xff", pa.binary()),
    (bytearray(b"ab"), None),
    (memoryview(b"abc")[::2], None),
    (2**200, None),
    (UUID(int=5), None),
    (np.int64(-5), None),
    (np.float64(0.5), None),
    (np.frombuffer(b"ab", np.uint8), None),
    (pd.Timestamp("2026-04-14 12:00:00.5"), pa.timestamp("us")),
]
TEXTS = [b"ab", b"ac", b"%d" % 2**200, str(UUID(int=5)).encode(), b"-5", b"0.5", b"ab"]


def test_values_are_written_as_columns_write_them(any_server: LocalServer, client: Any) -> None:
    texts = iter(TEXTS)
    with Dispatcher(endpoint_to(any_server, stream_key="s"), ts_field=None) as dispatcher:
        for number, (value, column) in enumerate(VALUES):
            dispatcher.produce(fields={"v": value})
            array = pa.array([next(texts)], pa.binary()) if column is None else pa.array([value], column)
            dispatcher.produce_batch(pa.record_batch({"v": array}), fields=["v"])
            report = dispatcher.flush().raise_for_failures()
            assert report.delivered == 2, number
    written = fields_of(client)
    for number, (value, column) in enumerate(VALUES):
        assert written[2 * number] == written[2 * number + 1], (value, column)


class Order(IntEnum):
    FIRST = 2**70


class Named(UUID):
    def __str__(self) -> str:
        return "another"


def test_a_subclass_is_written_as_its_class(any_server: LocalServer, client: Any) -> None:
    moved: OrderedDict[str, Any] = OrderedDict(a=1, b=np.bool_(True))
    moved.move_to_end("a")
    shown_otherwise: dict[str, Any] = {"order": Order.FIRST, "id": Named(int=5)}
    with Dispatcher(endpoint_to(any_server, stream_key="s"), ts_field=None) as dispatcher:
        dispatcher.produce(fields=shown_otherwise)
        dispatcher.produce(fields=moved)
        dispatcher.flush().raise_for_failures()
    assert fields_of(client) == [
        [b"order", b"%d" % 2**70, b"id", str(UUID(int=5)).encode()],
        [b"b", b"true", b"a", b"1"],
    ]


class Raising:
    def __index__(self) -> int:
        raise KeyboardInterrupt


class Endless(datetime):
    def toordinal(self) -> int:
        return 10**18


def test_what_a_value_raises_is_raised(endpoint: Endpoint, client: Any) -> None:
    with Dispatcher(endpoint) as dispatcher:
        with pytest.raises(KeyboardInterrupt):
            dispatcher.produce(fields={"a": Raising()})  # type: ignore[dict-item]
        with pytest.raises(MessageError, match="which has no date"):
            dispatcher.produce(fields={"a": Endless(2026, 1, 1)})
        assert dispatcher.unreported == 0
    assert client.xlen(endpoint.stream_key) == 0


@pytest.mark.parametrize("exactly_once", ["script", "off"])
def test_no_message_is_passed_over_when_the_second_turns(endpoint: Endpoint, client: Any, exactly_once: Any) -> None:
    """The rows of a run share their time, so the turn closes it; it may then fill the window."""
    count = 0
    with Dispatcher(endpoint, exactly_once=exactly_once, window_max_entries=1) as dispatcher:
        until = int(clock.time()) + 3
        while clock.time() < until:
            dispatcher.produce(fields={"n": count})
            count += 1
        report = dispatcher.flush()
        assert (report.delivered, report.failed, dispatcher.unreported) == (count, [], 0)
    assert client.xlen(endpoint.stream_key) == count


def test_an_error_names_the_stream_of_its_message(endpoint: Endpoint, client: Any) -> None:
    client.set("text", "no stream")

    async def send() -> None:
        async with AsyncDispatcher(endpoint) as dispatcher:
            await dispatcher.send(b"p", stream_key="text")

    with Dispatcher(endpoint) as dispatcher, pytest.raises(DeliveryError, match="to its own stream 'text': WRONGTYPE"):
        dispatcher.dispatch(b"p", stream_key="text")
    with pytest.raises(DeliveryError, match="to its own stream 'text': WRONGTYPE"):
        asyncio.run(send())


def test_fields_keep_their_order_and_leave_out_none(any_server: LocalServer, client: Any) -> None:
    given: list[Any] = [
        {"b": 1, "a": None, "c": b"2"},
        [("b", 1), ("a", None), ("c", "2")],
        OrderedDict(b=1, c=2),
        types.MappingProxyType({"b": 1, "c": 2}),
        ((b"b", "1"), [b"c", "2"]),
    ]
    with Dispatcher(endpoint_to(any_server, stream_key="s"), ts_field=None) as dispatcher:
        for fields in given:
            dispatcher.produce(b"p", fields=fields)
        dispatcher.produce(fields=[("b", 1), ("b", 2)])
        assert dispatcher.flush().raise_for_failures().delivered == 6
    written = fields_of(client)
    assert written[:5] == [[b"payload", b"p", b"b", b"1", b"c", b"2"]] * 5
    assert written[5] == [b"b", b"1", b"b", b"2"]


@pytest.mark.parametrize("exactly_once", ["off", "script"])
def test_rows_have_a_payload_and_fields(any_server: LocalServer, client: Any, exactly_once: Any) -> None:
    rows = [(b"p", 1, "x"), (b"", None, "y"), (None, 2, None), (None, None, None), (b"q", None, None)]
    columns: dict[str, Any] = {
        "body": pa.array([row[0] for row in rows], pa.binary()),
        "n": pa.array([row[1] for row in rows], pa.int64()),
        "t": pa.array([row[2] for row in rows], pa.string()),
    }
    endpoint = endpoint_to(any_server, stream_key="s")
    with Dispatcher(endpoint, ts_field=None, exactly_once=exactly_once) as dispatcher:
        dispatcher.produce_batch(pa.record_batch(columns), payload="body", fields=["n", "t"])
        report = dispatcher.flush()
        assert [(each.message_id, each.code) for each in outcomes(report) if each.code] == [("3", "EMPTY")]
        written = fields_of(client)
        dispatcher.skip_failed()
        for payload, number, text in rows[:3] + rows[4:]:
            dispatcher.produce(payload, fields={"n": number, "t": text})
        dispatcher.flush().raise_for_failures()
    assert written[1] == [b"payload", b"", b"t", b"y"]
    assert fields_of(client)[4:] == written


def test_the_payload_and_a_field_have_different_names(endpoint: Endpoint) -> None:
    rows = pa.record_batch({"body": [b"p"], "payload": [1]})
    with Dispatcher(endpoint) as dispatcher:
        with pytest.raises(
            SchemaError, match='column "payload" cannot be a field: the payload\'s field has the same name'
        ):
            dispatcher.produce_batch(rows, payload="body", fields=["payload"])
        with pytest.raises(SchemaError, match="rows_per_entry and fields are mutually exclusive"):
            dispatcher.produce_batch(rows, payload="body", fields=["body"], rows_per_entry=2)


def test_a_mapping_has_names_and_values_of_several_types(endpoint: Endpoint, client: Any) -> None:
    """Type checkers accept it too."""
    number, text, share = 1, "a", 0.5
    with Dispatcher(endpoint, ts_field=None) as dispatcher:
        dispatcher.produce(fields={"number": number, b"text": text, "share": share, "nothing": None})
    assert fields_of(client, endpoint.stream_key) == [[b"number", b"1", b"text", b"a", b"share", b"0.5"]]


def test_the_time_comes_after_the_fields(endpoint: Endpoint, client: Any) -> None:
    with Dispatcher(endpoint) as dispatcher:
        dispatcher.produce(b"p", fields={"a": 1})
        dispatcher.flush().raise_for_failures()
    [fields] = fields_of(client, endpoint.stream_key)
    assert fields[:5] == [b"payload", b"p", b"a", b"1", b"ts"]


def test_bad_messages_fail_alone(endpoint: Endpoint, client: Any) -> None:
    with Dispatcher(endpoint) as dispatcher:
        dispatcher.produce(b"first")
        dispatcher.produce(message_id="nothing")
        dispatcher.produce(None, message_id="none", fields={"a": None})
        dispatcher.produce(b"p", message_id="no key", stream_key="")
        dispatcher.produce(b"p", message_id="an option", entry_id="MAXLEN")
        dispatcher.produce(b"last")
        report = dispatcher.flush()
        assert [(each.message_id, each.code) for each in outcomes(report) if each.code] == [
            ("nothing", "EMPTY"),
            ("none", "EMPTY"),
            ("no key", "BAD_STREAM_KEY"),
            ("an option", "BAD_ENTRY_ID"),
        ]
        assert report.delivered == 2
        for code, more, advice in [
            ("EMPTY", {}, "the message has no field; give it a field with a value"),
            ("BAD_ENTRY_ID", {"payload": b"p", "entry_id": "-"}, "<ms>-*); give it an allowed ID, or None (null)"),
            ("BAD_STREAM_KEY", {"payload": b"p", "stream_key": ""}, "is empty; give it a key, or None (null)"),
        ]:
            with pytest.raises(DeliveryError, match=f"{code}.*{re.escape(advice)}"):
                dispatcher.dispatch(**more)  # type: ignore[arg-type]
        stats = dispatcher.stats()
        assert (stats.messages, stats.delivered, stats.failed) == (9, 2, 7)
    assert client.xlen(endpoint.stream_key) == 2


ALLOWED = "must be bytes-like, a str, int, float, bool, Decimal, date, time, datetime, timedelta, UUID or None"


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"fields": {"a": [1]}}, MessageError, f"fields: 'a' is a value of type list, and {ALLOWED}"),
        ({"fields": {"a": np.float32(1)}}, MessageError, f"fields: 'a' is a value of type float32, and {ALLOWED}"),
        ({"fields": {"a": np.array([1, 2])}}, MessageError, f"fields: 'a' is a value of type ndarray, and {ALLOWED}"),
        (
            {"fields": {"a": np.datetime64("2026-01-01")}},
            MessageError,
            f"'a' is a value of type datetime64, and {ALLOWED}",
        ),
        ({"fields": {"a": "\ud800"}}, MessageError, "fields: 'a' is a str with lone surrogates"),
        ({"fields": {"a": Decimal("NaN")}}, MessageError, "fields: 'a' is Decimal('NaN'), which no column"),
        ({"fields": {"a": Decimal("1E+999999")}}, MessageError, "fields: 'a' is a Decimal of more than 1000 digits"),
        ({"fields": {"a": 10**9999}}, MessageError, "fields: 'a' is an int with more digits than Python prints"),
        ({"fields": {"a": time(1, tzinfo=UTC)}}, MessageError, "fields: 'a' is a time with a time zone"),
        ({"fields": {"a": timedelta(999_999_999)}}, MessageError, "fields: 'a' is a timedelta of more microseconds"),
        ({"fields": {"a": pd.Timestamp(1)}}, MessageError, "which has nanoseconds: use produce_batch, or round it"),
        ({"fields": {"a": pd.Timedelta(1)}}, MessageError, "which has nanoseconds: use produce_batch, or round it"),
        ({"fields": {"a": pd.NaT}}, MessageError, "fields: 'a' is NaT, which has no date"),
        ({"fields": {1: 2}}, MessageError, "fields: a name must be a str or bytes: got int"),
        ({"fields": {"\ud800": 2}}, MessageError, "fields: a name that is a str must be valid Unicode"),
        ({"fields": "ab"}, MessageError, "fields must be a mapping or a sequence of pairs: got str"),
        ({"fields": bytearray(b"")}, MessageError, "fields must be a mapping or a sequence of pairs: got bytearray"),
        ({"payload": np.int64(7)}, MessageError, "a payload must be bytes-like or a str: got int64"),
        (
            {"payload": b"", "stream_key": np.float64(7)},
            MessageError,
            "a stream_key must be bytes-like or a str: got float",
        ),
        ({"fields": 5}, MessageError, "fields must be a mapping or a sequence of pairs: got int"),
        ({"fields": ["ab"]}, MessageError, "a sequence of pairs: one of its items has the type str"),
        ({"fields": [(1, 2, 3)]}, MessageError, "one of its items has the type tuple"),
        ({"fields": {"ts": 1}}, MessageError, 'fields has "ts", which is also the name of the entry\'s time'),
        ({"payload": b"", "fields": {b"payload": 1}}, MessageError, 'fields has "payload", which is also the name'),
        ({"payload": b"", "stream_key": 5}, MessageError, "a stream_key must be bytes-like or a str: got int"),
        ({"payload": b"", "entry_id": 5}, MessageError, "entry_id must be a str: got int"),
        ({"payload": b"", "entry_id": "\ud800"}, MessageError, "entry_id must be a str: it has lone surrogates"),
        ({"payload": b"", "key": b"k"}, ConfigError, "key needs the option shards of the endpoint"),
        ({"payload": b"", "colour": 1}, TypeError, "got an unexpected keyword argument 'colour'"),
    ],
)
def test_wrong_arguments_are_refused(
    any_server: LocalServer, client: Any, arguments: dict[str, Any], kind: type[Exception], message: str
) -> None:
    endpoint = endpoint_to(any_server, stream_key="s")
    with Dispatcher(endpoint) as dispatcher:
        for call in (dispatcher.produce, dispatcher.dispatch):
            with pytest.raises(kind) as caught:
                call(**arguments)
            assert message in str(caught.value)
        assert dispatcher.unreported == 0
    assert client.xlen("s") == 0


def test_shards_and_names_exclude_streams_of_their_own(any_server: LocalServer) -> None:
    sharded = endpoint_to(any_server, stream_key="s", shards=4)
    with Dispatcher(sharded) as dispatcher, pytest.raises(ConfigError, match="stream_key and shards are mutually"):
        dispatcher.produce(b"p", stream_key="t")
    endpoint = endpoint_to(any_server, stream_key="s")
    with Dispatcher(endpoint, exactly_once="idmp") as dispatcher:
        for more in ({"stream_key": "t"}, {"entry_id": "5-*"}):
            with pytest.raises(ConfigError, match="exactly_once 'idmp' and"):
                dispatcher.produce(b"p", **more)  # type: ignore[arg-type]


def test_fields_go_to_the_shard_of_their_key(any_server: LocalServer, client: Any) -> None:
    endpoint = endpoint_to(any_server, stream_key="s", shards=4)
    with Dispatcher(endpoint, ts_field=None) as dispatcher:
        for number in range(40):
            dispatcher.produce(b"p", key=f"k{number % 5}")
            dispatcher.produce(fields={"n": number}, key=f"k{number % 5}")
            dispatcher.dispatch(fields={"d": number}, key=f"k{number % 5}")
        dispatcher.flush().raise_for_failures()
    shards = client.keys("s*")
    assert len(shards) > 1
    for shard in shards:
        rows = fields_of(client, shard)
        assert [row[0] for row in rows] == [b"payload", b"n", b"d"] * (len(rows) // 3), shard
        assert [row[1] for row in rows if row[0] == b"n"] == [row[1] for row in rows if row[0] == b"d"]
    assert sum(client.xlen(shard) for shard in shards) == 120


@pytest.mark.parametrize("exactly_once", ["off", "script"])
def test_entries_keep_the_keys_of_their_shards(any_server: LocalServer, client: Any, exactly_once: Any) -> None:
    endpoint = endpoint_to(any_server, stream_key="s", shards=3, key_field="key")
    pairs = pa.map_(pa.string(), pa.string())
    rows = pa.record_batch(
        {
            "payload": [b"p", b"p", None],
            "n": [1, None, None],
            "map": pa.array([{"m": "1"}, None, {"key": "mine"}], pairs),
            "text": ["k1", None, "k2"],
            "number": [7, None, 8],
        }
    )
    with Dispatcher(endpoint, ts_field=None, exactly_once=exactly_once) as dispatcher:
        dispatcher.produce(b"one", key="k1")
        dispatcher.produce(fields={"n": 1}, key=b"k1")
        dispatcher.produce(b"none")
        dispatcher.produce(key="k1")
        both: dict[str, Any] = {"payload": "payload", "fields": ["n"]}
        layouts: list[dict[str, Any]] = [{}, {"fields": ["n"]}, both, {"json": ["n"]}, {"fields_from": "map"}]
        for layout in layouts:
            for shard_key in ("text", "number"):
                dispatcher.produce_batch(rows, shard_key=shard_key, **layout)
        report = dispatcher.flush()
        assert [each.code for each in outcomes(report) if each.code] == [
            *["EMPTY"],
            *["NULL_PAYLOAD"] * 2,
            *["EMPTY"] * 4,
            *["EMPTY"] * 2,
            *["EMPTY", "BAD_VALUE"] * 2,
        ]
    written = [row for shard in client.keys("s:*") if shard != b"s:headrace" for row in rows_in(client, shard)]
    expected: list[list[bytes]] = [
        [b"payload", b"one", b"key", b"k1"],
        [b"n", b"1", b"key", b"k1"],
        [b"payload", b"none"],
    ]
    for key, other in ((b"k1", b"k2"), (b"7", b"8")):
        expected += [
            [b"payload", b"p", b"key", key],
            [b"payload", b"p"],
            [b"n", b"1", b"key", key],
            [b"payload", b"p", b"n", b"1", b"key", key],
            [b"payload", b"p"],
            [b"payload", b'{"n":1}', b"key", key],
            [b"payload", b"{}"],
            [b"payload", b"{}", b"key", other],
            [b"m", b"1", b"key", key],
        ]
    assert sorted(written) == sorted(expected)


def rows_in(client: Any, key: bytes) -> list[list[bytes]]:
    return fields_of(client, key) if client.type(key) == b"stream" else []


def test_the_field_of_keys_has_a_name_of_its_own(any_server: LocalServer) -> None:
    endpoint = endpoint_to(any_server, stream_key="s", shards=3, key_field="key")
    rows = pa.record_batch({"key": ["a"], "payload": [b"p"]})
    with Dispatcher(endpoint) as dispatcher:
        with pytest.raises(MessageError, match='fields has "key", which is also the key_field of the endpoint'):
            dispatcher.produce(fields={"key": 1}, key="k")
        with pytest.raises(
            SchemaError, match='column "key" cannot be a field: the key_field of the endpoint has the same'
        ):
            dispatcher.produce_batch(rows, fields=["key"], shard_key="key")
        dispatcher.produce_batch(rows, fields=["payload"], shard_key="key")
        dispatcher.flush().raise_for_failures()
    for options, other in ({"payload_field": "key"}, "payload_field"), ({"ts_field": "key"}, "ts_field"):
        with pytest.raises(ConfigError, match=f"key_field must differ from {other}"):
            Dispatcher(endpoint, **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="key_field needs shards"):
        endpoint_to(any_server, stream_key="s", key_field="key")


def check_repeated(endpoint: Endpoint, client: Any, exactly_once: Any) -> None:
    for _ in range(2):
        with Dispatcher(endpoint, exactly_once=exactly_once) as dispatcher:
            dispatcher.begin("batch")
            for number in range(50):
                dispatcher.produce(b"p" if number % 2 else None, fields={"n": number})
            dispatcher.flush().raise_for_failures()
    assert [fields[fields.index(b"n") + 1] for fields in fields_of(client)] == [b"%d" % number for number in range(50)]


def test_a_batch_with_fields_that_is_repeated_is_written_once(server: LocalServer, connect: Connect) -> None:
    check_repeated(endpoint_to(server, stream_key="s"), connect(server), "script")


@pytest.mark.needs("idmp")
def test_a_batch_with_fields_that_is_repeated_under_its_names_is_written_once(
    server: LocalServer, connect: Connect
) -> None:
    check_repeated(endpoint_to(server, stream_key="s"), connect(server), "idmp")


def test_a_mapping_that_changes_while_its_message_waits_is_sent_as_it_was(any_server: LocalServer, client: Any) -> None:
    async def run() -> None:
        endpoint = endpoint_to(any_server, stream_key="s")
        async with AsyncDispatcher(endpoint, ts_field=None, window_max_entries=1) as dispatcher:
            sent, given = [], {"n": bytearray(b"0")}
            for number in range(20):
                given["n"][:] = b"%d" % number
                sent.append(asyncio.ensure_future(dispatcher.send(fields=given)))
                await asyncio.sleep(0)
            await asyncio.gather(*sent)

    asyncio.run(run())
    assert [fields[1] for fields in fields_of(client)] == [b"%d" % number for number in range(20)]


def test_a_call_that_waits_refuses_what_another_refuses(endpoint: Endpoint, client: Any) -> None:
    changed: Any = array("B", b"AA")

    async def run() -> None:
        async with AsyncDispatcher(endpoint, ts_field=None, window_max_entries=1) as dispatcher:
            calls = [dispatcher.send(fields={"n": number}) for number in range(4)]
            sent = [asyncio.ensure_future(call) for call in calls]
            await asyncio.sleep(0)
            wrong: list[Any] = [["ab", "cd"], "", memoryview(b"ab"), {"a": [1]}, (pair for pair in [("a", 1)])]
            for fields in wrong:
                with pytest.raises(MessageError, match="fields"):
                    await dispatcher.send(fields=fields)
            sent += [
                asyncio.ensure_future(dispatcher.send(changed)),
                asyncio.ensure_future(dispatcher.send(fields={"a": changed})),
            ]
            await asyncio.sleep(0)
            changed[0] = ord("B")
            await asyncio.gather(*sent)

    asyncio.run(run())
    assert fields_of(client, endpoint.stream_key)[4:] == [[b"payload", b"AA"], [b"a", b"AA"]]


def test_plain_values_import_nothing() -> None:
    code = (
        "import sys, headrace\n"
        "dispatcher = headrace.Dispatcher(headrace.Endpoint(host='localhost', port=1, stream_key='s'))\n"
        "dispatcher.produce(b'', fields={'a': 'b', 'c': 1, 'd': 1.5, 'e': True, 'f': bytearray(b'x')})\n"
        "print(sorted({'datetime', 'decimal', 'uuid', 'pyarrow'} & set(sys.modules)))\n"
        "dispatcher.flush(); dispatcher.close()\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert run.stdout == "[]\n", run.stderr
