"""What objects say of themselves: what they hold, in one line, without an entry's values or a secret."""

from __future__ import annotations

import html
import inspect
import json
import threading
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from typing import Any

import pytest
import redis

import headrace
import headrace.metrics
import headrace.stats
import headrace.testing
from headrace import _headrace
from headrace.stats import ConsumerStats, NodeStats, ReaderStats, Stats
from headrace.testing import LocalServer
from support.consumers import consumer_of, next_batch
from support.endpoints import CANARY
from support.groups import add, group_of
from support.pipelines import KEY, endpoint_to

Connect = Callable[..., redis.Redis]


def public_classes() -> Iterator[type]:
    modules = (headrace, headrace.stats, headrace.metrics, headrace.testing)
    for value in (getattr(module, name) for module in modules for name in module.__all__):
        if inspect.isclass(value):
            yield value
    # Results and attributes of public objects.
    yield from (_headrace.Outcomes, _headrace.Rows, _headrace.Counters, _headrace.ReadCounters)


def test_no_public_class_has_the_repr_of_object() -> None:
    classes = list(public_classes())
    assert len(classes) > 40
    default: Any = object.__repr__
    assert [kind.__qualname__ for kind in classes if kind.__repr__ is default] == []


def test_no_public_object_of_spark_has_the_repr_of_object() -> None:
    spark = pytest.importorskip("headrace.spark")
    shown = [repr(getattr(spark, name)) for name in spark.__all__]
    assert "<Xadd: headrace.spark.xadd>" in shown
    assert [text for text in shown if " object at 0x" in text] == []


def test_a_dispatcher_its_report_and_its_counters(server: LocalServer) -> None:
    endpoint = endpoint_to(server)
    with headrace.Dispatcher(endpoint) as dispatcher:
        for _ in range(1_234):
            dispatcher.produce(CANARY)
        dispatcher.produce_batch(_column([None]))
        report = dispatcher.flush()
        assert repr(dispatcher) == f"<Dispatcher: {endpoint}>"
        assert repr(report) == "<DeliveryReport: 1,234 delivered, 1 failed (NULL_PAYLOAD 1)>"
        assert repr(dispatcher.stats()) == "<Stats: 1,235 messages, 1,234 delivered, 1 failed (NULL_PAYLOAD 1)>"
        assert repr(dispatcher.counters) == "<Counters: 1,235 messages>"
        assert repr(report.to_arrow()) == "<Outcomes: 1,234 delivered, 1 failed>"
        assert repr(report.to_arrow(only_failed=True)) == "<Outcomes: 1 failed>"
    assert repr(headrace.AsyncDispatcher(endpoint)) == f"<AsyncDispatcher: {endpoint}>"


def _column(values: list[bytes | None]) -> Any:
    import pyarrow as pa

    return pa.table({"payload": pa.array(values, pa.binary())})


def test_a_reader_and_its_batches(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    add(client, 1_001)
    endpoint = endpoint_to(server)
    of = endpoint._server()
    with headrace.Reader(endpoint, end="latest", batch_rows=1_000) as reader:
        batches = list(reader)
        assert [repr(batch) for batch in batches] == [
            f"<ReadBatch: 1,000 rows of '{KEY}', 1-0 to 1000-0>",
            f"<ReadBatch: 1 row of '{KEY}', 1001-0>",
        ]
        assert repr(reader) == f"<Reader: stream '{KEY}' of {of}, after 1001-0>"
        assert repr(reader.stats()) == "<ReaderStats: 2 batches, 1,001 entries, 1,001 rows, 0 lost>"
        assert repr(reader.counters) == "<ReadCounters: 1,001 rows>"
    with headrace.Reader(endpoint, [b"a", "b\n", b"\xff", b"d" * 100, "e"]) as reader:
        assert repr(reader) == f"<Reader: streams 'a', 'b\\n', '\ufffd' and 2 more of {of}>"
        for key in reader.streams[1:]:
            reader.drop_stream(key)
        assert repr(reader) == f"<Reader: stream 'a' of {of}>"
        reader.drop_stream("a")
        assert repr(reader) == f"<Reader: no stream of {of}>"
    with headrace.Reader(endpoint, [b"d" * 10_000]) as reader:
        assert repr(reader) == f"<Reader: stream '{'d' * 64}…' of {of}>"


@pytest.mark.needs("redis-7.0")
def test_a_reader_of_one_stream_says_where_it_is(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    add(client, 30)
    endpoint = endpoint_to(server)
    stream = f"stream '{KEY}' of {endpoint._server()}"
    with headrace.Reader(endpoint, batch_rows=10) as reader:
        assert repr(reader) == f"<Reader: {stream}>"
        position = next(reader).position
        assert repr(reader) == f"<Reader: {stream}, after 10-0>"
        client.xtrim(KEY, minid="25-0", approximate=False)
        with pytest.raises(headrace.DataLossError):
            list(reader)
        last = json.loads(reader.position)["streams"][KEY]["id"]
        assert repr(reader) == f"<Reader: {stream}, after {last}>"
    assert repr(reader) == f"<Reader: {stream}, after {last}>"
    with headrace.Reader(endpoint, start=position) as reader:
        assert repr(reader) == f"<Reader: {stream}, after 10-0>"
    with headrace.Reader(endpoint, start="25-0") as reader:
        assert repr(reader) == f"<Reader: {stream}>"
    with headrace.Reader(endpoint, reverse=True, limit=2) as reader:
        next(reader)
        assert repr(reader) == f"<Reader: {stream}, before 29-0>"
    with headrace.Reader(endpoint, [KEY, "empty"], end="latest") as reader:
        next(reader)
        assert repr(reader) == f"<Reader: streams '{KEY}', 'empty' of {endpoint._server()}>"
        reader.drop_stream("empty")
        assert repr(reader) == f"<Reader: {stream}, after 30-0>"


def test_a_consumer_and_its_batches(server: LocalServer, connect: Connect) -> None:
    add(connect(server), 2)
    with consumer_of(server, "pod-3") as consumer:
        batch = next_batch(consumer)
        shown = f"'pod-3' of group 'g', stream '{KEY}' of {consumer.endpoint._server()}"
        assert repr(consumer) == f"<Consumer: {shown}>"
        assert repr(batch) == f"<ConsumerBatch: 2 rows of '{KEY}', 1-0 to 2-0>"
        assert repr(consumer.stats()).endswith("2 rows, 0 lost, 0 acked, 2 pending>")
        assert repr(consumer.counters) == "<ReadCounters: 2 rows>"
    assert repr(consumer) == f"<Consumer: {shown}>"


def test_a_reader_in_use_by_another_thread_has_its_repr(server: LocalServer) -> None:
    with headrace.Reader(endpoint_to(server), block=0.02) as reader:
        ends = threading.Event()

        def read() -> None:
            while not ends.is_set():
                reader.read(0.1)

        thread = threading.Thread(target=read)
        thread.start()
        try:
            shown = {repr(reader) for _ in range(1_000)}
        finally:
            ends.set()
            thread.join()
    assert len(shown) == 1


@pytest.mark.parametrize("kind", [headrace.AsyncDispatcher, headrace.Consumer, headrace.Group])
def test_an_object_whose_constructor_failed_has_a_repr(kind: Any) -> None:
    """As in a traceback with local variables."""
    assert repr(kind.__new__(kind)) == f"<{kind.__name__}: not created>"


def test_reprs_of_counters_are_short_whatever_they_count() -> None:
    codes = {f"CODE{number}": number for number in range(1, 1_001)}
    nodes = tuple(NodeStats(address=f"node{number}:6379", in_flight=1_000) for number in range(1_000))
    stats = Stats(messages=500_501, delivered=1, failed_by_code=codes, flush_seconds=(), nodes=nodes)
    assert repr(stats) == (
        "<Stats: 500,501 messages, 1 delivered, 500,500 failed (CODE1 1, CODE2 2, CODE3 3, CODE4 4, CODE5 5, 995 other "
        "codes), 1,000 nodes>"
    )
    assert repr(nodes[0]) == "<NodeStats: node0:6379, 1,000 in flight>"
    assert repr(NodeStats(address="a:1", down_since=0.0)).startswith("<NodeStats: a:1, 0 in flight, down for ")
    assert repr(ReaderStats()) == "<ReaderStats: 0 batches, 0 entries, 0 rows, 0 lost>"
    assert repr(ConsumerStats()) == "<ConsumerStats: 0 batches, 0 entries, 0 rows, 0 lost, 0 acked, 0 pending>"


class _Tables(HTMLParser):
    """The tables of an HTML text: the caption and the rows of each. Fails for a tag that no table has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.captions: list[str] = []
        self.rows: list[list[str]] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in {"table", "caption", "thead", "tbody", "tr", "th", "td"}
        assert attrs == []
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in {"th", "td"}:
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1] == "caption":
            self.captions.append(data)
        else:
            self.rows[-1][-1] += data


HOSTILE = "<script>alert('&\"')</script>"


def test_an_inspection_is_a_table_for_each_part(server: LocalServer, connect: Connect) -> None:
    client = connect(server)
    add(client, 25, key=HOSTILE)
    group = group_of(server, HOSTILE, stream_key=HOSTILE)
    group.create("earliest")
    client.xreadgroup(HOSTILE, HOSTILE, {HOSTILE: ">"})
    found = headrace.inspect(endpoint_to(server, stream_key=HOSTILE))
    shown = _Tables(found._repr_html_())
    assert shown.captions == ["1 stream", "1 group", "1 consumer", "25 pending, the first 20"]
    assert shown.rows[0][:4] == ["key", "exists", "length", "entries_added"]
    assert shown.rows[1][:3] == [HOSTILE, "True", "25"]
    assert sum(row[:3] == [HOSTILE, HOSTILE, f"{number}-0"] for row in shown.rows for number in range(1, 26)) == 20
    assert html.escape(HOSTILE) in found._repr_html_()


def test_a_report_is_a_table_of_its_first_failures(server: LocalServer) -> None:
    import pyarrow as pa

    dispatcher = headrace.Dispatcher(endpoint_to(server))
    rows = pa.table({"payload": pa.array([None] * 30, pa.binary()), "id": [HOSTILE + "x" * 1_000] * 30})
    dispatcher.produce_batch(rows, message_id="id")
    report = dispatcher.flush()
    shown = _Tables(report._repr_html_())
    assert shown.captions == ["0 delivered, 30 failed (NULL_PAYLOAD 30), the first 10"]
    assert shown.rows[0] == ["message_id", "kind", "code", "message", "written"]
    assert len(shown.rows) == 11
    cut = (HOSTILE + "x" * 1_000)[:200]
    assert shown.rows[1][:3] == [f"{cut}…", "permanent", "NULL_PAYLOAD"]
    with pytest.raises(headrace.DeliveryError, match="30 messages were not delivered"):
        dispatcher.close()  # to look at a report is not to handle it


def test_counters_are_tables() -> None:
    nodes = tuple(NodeStats(address=f"node{number}:6379") for number in range(1_000))
    stats = Stats(messages=1_234, failed_by_code={HOSTILE: 5}, flush_seconds=((1.0, 2),), nodes=nodes)
    shown = _Tables(stats._repr_html_())
    assert shown.captions == ["Stats", "failed_by_code", "nodes"]
    assert ["messages", "1,234"] in shown.rows
    assert [HOSTILE, "5"] in shown.rows
    assert sum(row[0].startswith("node") for row in shown.rows) == 20
    assert ["entries", "7"] in _Tables(ReaderStats(entries=7)._repr_html_()).rows
    assert repr(ReaderStats(batches=1, entries=1)) == "<ReaderStats: 1 batch, 1 entry, 0 rows, 0 lost>"
    times = _Tables(ReaderStats(last_entry_time=1_795_324_724.029, retry_wait_seconds=0.1 + 0.2)._repr_html_())
    assert ["last_entry_time", "2026-11-22 05:18:44.029+00:00"] in times.rows
    assert ["retry_wait_seconds", "0.3"] in times.rows
    assert ["acked", "8"] in _Tables(ConsumerStats(acked=8)._repr_html_()).rows
