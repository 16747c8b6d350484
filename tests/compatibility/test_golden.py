"""This version writes what the newest golden files hold, byte for byte, and reads those of each version.

If what is stored is to change, the laboratory `golden VERSION` writes files for a new version, beside the older ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis

import headrace
from headrace import Dispatcher, Endpoint, Reader, read_dead_letters
from headrace.spark.source.offset import Offset
from headrace.testing import LocalServer
from support.pipelines import endpoint_to

from .golden import FOLDERS, NEWEST, bytes_of, read
from .spark_letters import NAME as SPARK
from .written import NESTED, PAYLOADS, SHARD_KEYS, TOKENS, WRITERS, packed_rows, rows, send

Connect = Callable[..., redis.Redis]

each_version = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)


def stored(client: Any, entry: list[list[str]], stream: str = "events", entry_id: str = "*") -> dict[bytes, bytes]:
    """Add an entry of a golden file to a stream; returns its fields."""
    fields = {bytes_of(name): bytes_of(value) for name, value in entry}
    client.xadd(stream, fields, id=entry_id)
    return fields


def test_every_version_has_a_file_of_each_kind() -> None:
    for folder in FOLDERS:
        assert {path.stem for path in folder.iterdir()} == {*WRITERS, SPARK}


@pytest.mark.parametrize("name", sorted(WRITERS.keys() - {"idmp"}))
def test_written_data_matches_the_golden_files(server: LocalServer, connect: Connect, name: str) -> None:
    """On every server."""
    golden = read(NEWEST, name)
    if name == "positions" and server.version.startswith("6."):  # which counts no entries
        golden["reader"] = {case: re.sub(r',"(n|removed)":\d+', "", text) for case, text in golden["reader"].items()}
    assert WRITERS[name](server, connect(server)) == golden


@pytest.mark.needs("idmp")
def test_idmp_message_names_are_unchanged(server: LocalServer, connect: Connect) -> None:
    assert WRITERS["idmp"](server, connect(server)) == read(NEWEST, "idmp")


@each_version
def test_packed_entries_are_read(folder: Path) -> None:
    golden = read(folder, "entries")
    entries = [{bytes_of(name): bytes_of(value) for name, value in entry} for entry in golden["rows_per_entry"]]
    assert [payload for entry in entries for payload in headrace.unpack(entry)] == [b"one", b"\x00\xff", b""]
    for layout in ("arrow_ipc", "arrow_ipc, lz4", "arrow_ipc, zstd"):
        entries = [{bytes_of(name): bytes_of(value) for name, value in entry} for entry in golden[layout]]
        assert entries, layout
        tables = [pa.table(headrace.unpack_arrow(entry)) for entry in entries]
        assert pa.concat_tables(tables).to_pylist() == packed_rows().to_pylist()


@each_version
@pytest.mark.parametrize("layout", ["payload", "fields", "json", "arrow_ipc", "rows_per_entry"])
def test_a_reader_returns_the_values_of_each_layout(
    folder: Path, layout: str, any_server: LocalServer, client: Any
) -> None:
    for entry in read(folder, "entries")[layout]:
        stored(client, entry)
    expected = rows()
    if layout in ("payload", "rows_per_entry"):
        expected = expected.select(["payload"])
        schema, unpack = expected.schema, "payload" if layout == "rows_per_entry" else None
    elif layout == "arrow_ipc":
        expected = packed_rows()
        schema, unpack = expected.schema, "arrow_ipc"
    else:
        names = [name for name in expected.schema.names if name not in ("entry_id", "stream", "payload")]
        expected = expected.select([name for name in names if layout == "json" or name not in NESTED])
        if layout == "json":  # which has milliseconds, as Spark's
            at = expected["at"].cast(pa.timestamp("ms", "Europe/Berlin"), safe=False).cast(expected["at"].type)
            expected = expected.set_column(names.index("at"), "at", at)
        schema, unpack = expected.schema, "json" if layout == "json" else None
    with Reader(endpoint_to(any_server), schema=schema, unpack=unpack, end="latest") as reader:  # type: ignore[arg-type]
        found = pa.concat_tables([pa.table(batch).select(schema.names) for batch in reader])
    assert str(found.to_pylist()) == str(expected.to_pylist())  # as text, for NaN


@each_version
@pytest.mark.parametrize("token", TOKENS)
def test_a_marker_deduplicates_its_batch(folder: Path, token: str, any_server: LocalServer, client: Any) -> None:
    for key, value in read(folder, "exactly_once")[token].items():
        client.set(bytes_of(key), bytes_of(value))
    name, version = TOKENS[token]
    with Dispatcher(endpoint_to(any_server), exactly_once="script") as dispatcher:
        dispatcher.begin(name, version=version) if version is not None else dispatcher.begin(name)
        for payload in [*PAYLOADS, b"four"]:
            dispatcher.produce(payload)
        report = dispatcher.flush()
    assert (report.delivered, report.deduplicated) == (4, 3)
    assert [fields[b"payload"] for _, fields in client.xrange("events")] == [b"four"]


@each_version
@pytest.mark.parametrize("written", [0, 2, 3], ids=["behind its blocks", "in a block", "at the end of a block"])
def test_an_import_resumes_at_a_checkpoint(folder: Path, written: int, any_server: LocalServer, client: Any) -> None:
    (marker, progress), (key, checkpoint) = read(folder, "exactly_once")["headrace send"].items()
    checkpoint["stored"] = int(client.time()[0])
    if written:
        checkpoint["first"] = 0
        progress = f"{checkpoint['version']} {written}"
    client.set(marker, progress)
    client.set(key, json.dumps(checkpoint))
    assert send(any_server, "--exactly-once", "import-1", rows=b"one\ntwo\nthree\nfour\n") == 0
    expected = [b"three", b"four"] if written == 2 else [b"four"]
    assert [fields[b"payload"] for _, fields in client.xrange("orders")] == expected


@each_version
@pytest.mark.parametrize(
    ("name", "rest"),
    [
        ("one stream", ["5-3", "5-4"]),
        ("backwards", ["5-2", "5-1"]),
        ("from an entry", ["5-3", "5-4"]),
        ("several streams", ["6-1", "6-1", "6-1"]),
    ],
)
def test_a_reader_resumes_at_a_position(
    folder: Path, name: str, rest: list[str], any_server: LocalServer, client: Any
) -> None:
    streams: list[str | bytes] = ["events", "others", b"\xff"] if name == "several streams" else ["events"]
    for stream in streams:
        for number in range(1, 5):
            client.xadd(stream, {"payload": f"{number}"}, id=f"5-{number}")
        if name == "several streams":
            client.xadd(stream, {"payload": "new"}, id="6-1")
    options: dict[str, Any] = {"reverse": True} if name == "backwards" else {"end": "latest"}
    with Reader(endpoint_to(any_server), streams, start=read(folder, "positions")["reader"][name], **options) as reader:
        found = [row["entry_id"] for batch in reader for row in pa.table(batch).to_pylist()]
    assert found == rest


@each_version
def test_the_offset_of_a_streaming_query_is_read(folder: Path) -> None:
    offsets = read(folder, "positions")["spark"]
    assert offsets
    for offset in offsets.values():
        assert json.dumps(Offset.from_json(offset).to_json()) == json.dumps(offset)


@each_version
@pytest.mark.parametrize("names", ["plain", "spread"])
@pytest.mark.parametrize("hashed", ["murmur2", "crc32"])
def test_shards_are_found(folder: Path, hashed: str, names: str, any_server: LocalServer, client: Any) -> None:
    golden = read(folder, "shards")[f"{hashed}, {names}"]
    client.hset("{orders}:shards", mapping=golden["registry"])
    endpoint: Endpoint = endpoint_to(any_server, stream_key="orders").find_shards()
    assert (endpoint.shards, endpoint.shard_hash, endpoint.shard_names) == (6, hashed, names)
    with Dispatcher(endpoint) as dispatcher:
        for key in SHARD_KEYS:
            dispatcher.produce(key, key=key)
        assert dispatcher.flush().ok
    for stream, keys in golden["keys"].items():
        assert [fields[b"payload"] for _, fields in client.xrange(stream)] == [bytes_of(key) for key in keys]


@each_version
def test_dead_letters_are_read(folder: Path, any_server: LocalServer, client: Any) -> None:
    golden = read(folder, "dead_letters")
    stored(client, golden["consumer"][0], "dead")
    stored(client, [*golden["headrace send"], ["message", "why"]], "dead")
    (letters,) = (pa.table(each) for each in read_dead_letters(endpoint_to(any_server), "dead"))
    consumers, commands = letters.to_pylist()
    assert (consumers["stream"], consumers["original_id"]) == ("events", "5-1")
    assert (consumers["reason"], consumers["failures"]) == ("no such customer", 1)
    assert consumers["fields"] == [(b"payload", b"\x00\xff"), (b"\xfe", b"")]
    assert (commands["stream"], commands["reason"]) == ("orders", "why")
    assert commands["fields"] == [(b"payload", b'{"a": ')]


@each_version
def test_dead_letters_of_spark_are_read(folder: Path, any_server: LocalServer, client: Any) -> None:
    golden = read(folder, SPARK)
    for name in ("payload", "row"):
        stored(client, [*golden[name], ["message", "why"]], "dead")
    (letters,) = (pa.table(each) for each in read_dead_letters(endpoint_to(any_server), "dead"))
    payload, row = letters.to_pylist()
    for letter in (payload, row):
        assert (letter["stream"], letter["original_id"]) == ("text", "5-1")
        assert (letter["code"], letter["reason"]) == ("WRONGTYPE", "why")
    assert payload["fields"] == [(b"payload", b"one")]
    assert pa.table(headrace.unpack_arrow(dict(row["fields"]), "row")).to_pylist() == [{"nested": {"a": 1}}]
