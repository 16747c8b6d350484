"""Entries that are small and claim to be large take no more memory than `max_entry_bytes`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pyarrow as pa
import pytest
import redis

from headrace.testing import LocalServer
from support.bombs import MOST, Bomb, bombs, ipc
from support.marks import thorough

Connect = Callable[..., redis.Redis]

# All kinds take ten seconds, and similar ones follow one another.
PARTS = 8

# What a reader takes beside the rows: the reply, and code that is loaded.
BESIDE = 4 << 20

# Each entry is read in a process of its own, forked from one that has little memory to reuse.
READ = """
import gc, json, sys
import pyarrow as pa
from headrace import Endpoint, Reader
from support.processes import PeakMemory, in_child

def read(key, schema, unpack):
    endpoint = Endpoint(unix_socket=sys.argv[1], stream_key=key)
    schema = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(schema)))
    options = {"unpack": unpack, "on_bad_field": "keep", "max_entry_bytes": int(sys.argv[2])}
    rows = kept = 0
    memory = PeakMemory()
    with Reader(endpoint, end="latest", schema=schema, **options) as reader:
        for batch in reader:
            rows += batch.num_rows
            kept += pa.record_batch(batch)["raw"].is_valid().sum().as_py()
    return rows, kept, memory.growth

def measured(key, schema, unpack):
    read("plain", schema, unpack)  # so that what is loaded once does not count
    return read(key, schema, unpack)

for kind in json.load(sys.stdin):
    print(json.dumps(in_child(lambda: measured(*kind))), flush=True)
"""


def read(kinds: dict[str, Bomb], server: LocalServer, client: redis.Redis) -> dict[str, tuple[int, int, int]]:
    """The rows, the entries that did not fit, and the growth of the memory at its peak, of each entry in a reader."""
    client.xadd("plain", {"payload": ipc({"n": pa.array([7])})})
    client.xadd("plain", {"payload": "{}"})
    asked = []
    for key, bomb in kinds.items():
        client.xadd(key, bomb.fields)  # type: ignore[arg-type]
        asked.append((key, bomb.schema.serialize().to_pybytes().hex(), bomb.unpack))
    command = [sys.executable, "-W", "error", "-c", READ, server.unix_socket, str(MOST)]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(zip(kinds, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("part", [0, *thorough(*range(1, PARTS))])
def test_entries_of_1_kib_take_at_most_max_entry_bytes(part: int, any_server: LocalServer, connect: Connect) -> None:
    kinds = dict([*bombs().items()][part::PARTS])
    assert len(kinds) >= 40 / PARTS
    assert max(sum(len(name) + len(value) for name, value in bomb.fields.items()) for bomb in kinds.values()) <= 1024
    found = read(kinds, any_server, connect(any_server))
    for name, (rows, kept, growth) in sorted(found.items(), key=lambda item: item[1][2]):
        print(f"{growth / MOST:6.2f} {growth / 2**20:7.1f} MiB {rows:8} {'kept' if kept else ''} {name}")
    for name, (rows, kept, growth) in found.items():
        expected = kinds[name].rows
        assert (rows, kept) == (1, 1) if expected is None else rows == expected, name
        assert kept == 0 or expected != 1, name
        assert growth < MOST + BESIDE, name


def test_each_record_batch_counts_with_the_columns_that_it_lacks(any_server: LocalServer, connect: Connect) -> None:
    """An entry of half a MiB with 5,000 rows, each in a record batch of its own."""
    row = pa.record_batch({"other": pa.nulls(1)})
    lacking = pa.schema({f"c{number}": pa.int64() for number in range(40)})
    kinds = {"s": Bomb("arrow_ipc", lacking, {"payload": ipc([row] * 5_000)})}
    ((rows, kept, growth),) = read(kinds, any_server, connect(any_server)).values()
    assert (rows, kept) == (1, 1)
    assert growth < MOST + BESIDE
