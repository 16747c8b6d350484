"""The arguments that `rows_per_entry` and `arrow_ipc` refuse, and their memory."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest

from headrace import ConfigError, Dispatcher, SchemaError
from headrace.testing import LocalServer
from support import Monitor
from support.pipelines import KEY, endpoint_to

ROWS = pa.record_batch({"id": [1, 2, 3], "text": ["a", "", "c"]})


@pytest.mark.parametrize(
    ("layout", "names"),
    [
        ({"rows_per_entry": 2, "fields": ["id"]}, ("rows_per_entry", "fields")),
        ({"rows_per_entry": 2, "fields_from": "text"}, ("rows_per_entry", "fields_from")),
        ({"rows_per_entry": 2, "stream_key": "text"}, ("rows_per_entry", "stream_key")),
        ({"rows_per_entry": 2, "entry_id": "text"}, ("rows_per_entry", "entry_id")),
        ({"arrow_ipc": True, "payload": "text"}, ("arrow_ipc", "payload")),
        ({"arrow_ipc": True, "fields_from": "text"}, ("arrow_ipc", "fields_from")),
        ({"fields_from": "text", "payload": "text"}, ("fields_from", "mutually exclusive")),
        ({"fields_from": "text", "fields": ["text"]}, ("fields_from", "mutually exclusive")),
        ({"fields_from": "text", "json": True}, ("fields_from", "mutually exclusive")),
        ({"codec": "zstd", "fields_from": "text"}, ("codec", "arrow_ipc")),
        ({"arrow_ipc": True, "json": True}, ("arrow_ipc", "json")),
        ({"arrow_ipc": True, "stream_key": "text"}, ("arrow_ipc", "stream_key")),
        ({"arrow_ipc": True, "entry_id": "text"}, ("arrow_ipc", "entry_id")),
        ({"codec": "zstd", "payload": "text"}, ("codec", "arrow_ipc")),
        ({"codec": "zstd", "payload": "text", "rows_per_entry": 10}, ("codec", "arrow_ipc")),
        ({"arrow_ipc": True, "fields": []}, ("fields", "no column")),
        ({"arrow_ipc": True, "fields": ["id", "id"]}, ("fields", "'id'|\"id\"")),
        ({"arrow_ipc": True, "fields": ["idd"]}, ('no column "idd"', 'did you mean "id"')),
    ],
)
def test_contradictory_arguments_are_refused(
    any_server: LocalServer, layout: dict[str, Any], names: tuple[str, str]
) -> None:
    with Monitor(any_server) as seen, Dispatcher(endpoint_to(any_server)) as dispatcher:
        with pytest.raises(SchemaError, match=f"(?s)({names[0]}.*({names[1]}))|(({names[1]}).*{names[0]})"):
            dispatcher.produce_batch(ROWS, **layout)
        assert len(dispatcher.flush()) == 0
        assert seen.commands("XADD") == []


@pytest.mark.parametrize("name", ["payload:0", "payload:7", "payload:99999999"])
def test_a_time_field_named_like_a_payload_is_refused(any_server: LocalServer, name: str) -> None:
    with Dispatcher(endpoint_to(any_server), ts_field=name) as dispatcher:
        with pytest.raises(SchemaError, match=f'rows_per_entry cannot be combined with ts_field "{name}"'):
            dispatcher.produce_batch(ROWS, payload="text", rows_per_entry=2)
        dispatcher.produce_batch(ROWS, payload="text")
        assert dispatcher.flush().delivered == 3


def test_one_row_per_entry_works_with_fields_and_stream_key(any_server: LocalServer) -> None:
    with Dispatcher(endpoint_to(any_server)) as dispatcher:
        layout: dict[str, Any] = {"rows_per_entry": 1, "codec": None, "arrow_ipc": False}
        dispatcher.produce_batch(ROWS, fields=["id"], stream_key="text", **layout)
        report = dispatcher.flush()
        assert [failure.code for failure in report.failed] == ["BAD_STREAM_KEY"]
        assert report.delivered == 2


@pytest.mark.parametrize("arrow_ipc", [False, True])
@pytest.mark.parametrize("value", [0, -1, 65_537, 2**70, True, 1.0, "10"])
def test_invalid_values_of_rows_per_entry_are_refused(any_server: LocalServer, value: Any, arrow_ipc: bool) -> None:
    layout = {"arrow_ipc": True} if arrow_ipc else {"payload": "text"}
    with Dispatcher(endpoint_to(any_server)) as dispatcher:
        with pytest.raises(ConfigError, match=r"^rows_per_entry must be an integer from 1 to 65536: got ") as caught:
            dispatcher.produce_batch(ROWS, rows_per_entry=value, **layout)
        assert caught.value.option == "rows_per_entry"
        assert len(dispatcher.flush()) == 0


@pytest.mark.parametrize("value", ["gzip", "ZSTD", "", 3, True])
def test_invalid_values_of_codec_are_refused(any_server: LocalServer, value: Any) -> None:
    with Dispatcher(endpoint_to(any_server)) as dispatcher:
        with pytest.raises(ConfigError, match=r'^codec must be None, "lz4" or "zstd": got ') as caught:
            dispatcher.produce_batch(ROWS, arrow_ipc=True, codec=value)
        assert caught.value.option == "codec"


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1]], pa.list_view(pa.int32())),
        pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])]),
        pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), pa.array(["x"])),
    ],
    ids=["list view", "union", "run ends"],
)
def test_types_that_cannot_be_sliced_are_refused(any_server: LocalServer, column: Any) -> None:
    rows = pa.table({"a": [1], "odd": column})
    with Dispatcher(endpoint_to(any_server)) as dispatcher:
        with pytest.raises(SchemaError, match=r'^column "odd" cannot be written as Arrow IPC: '):
            dispatcher.produce_batch(rows, arrow_ipc=True)
        dispatcher.produce_batch(rows, arrow_ipc=True, fields=["a"])
        assert dispatcher.flush().delivered == 1


# --- memory

MANY = """
import json, sys
import pyarrow as pa
from headrace import Dispatcher, Endpoint
from support.processes import PeakMemory

layout = json.loads(sys.argv[3])
payloads = pa.array([b"%011d-" % row + b"x" * 108 for row in range(100_000)], pa.binary())
names = pa.array([b"%d" % (row % 50_000) for row in range(100_000)], pa.binary())
fields = pa.MapArray.from_arrays(pa.array(range(100_001), pa.int32()), names, payloads)
rows = pa.record_batch({"payload": payloads, "fields": fields})
endpoint = Endpoint(unix_socket=sys.argv[1], stream_key=sys.argv[2], maxlen=10, trim_every=10)
delivered = 0
with Dispatcher(endpoint) as dispatcher:
    for turn in range(43):
        dispatcher.produce_batch(rows, **layout)
        report = dispatcher.poll()
        delivered += report.delivered
        if turn == 2:
            memory = PeakMemory()
    report = dispatcher.flush().raise_for_failures()
    print(json.dumps({"delivered": delivered + report.delivered, "growth": memory.growth}))
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    "layout",
    [
        {"rows_per_entry": 10},
        {"rows_per_entry": 10_000},
        {"arrow_ipc": True, "fields": ["payload"]},
        {"arrow_ipc": True, "fields": ["payload"], "codec": "lz4"},
        {"fields_from": "fields"},
    ],
    ids=str,
)
def test_memory_is_bounded(any_server: LocalServer, layout: dict[str, Any]) -> None:
    """Of half a gigabyte that passes through, at most 8 MiB are held."""
    command = [sys.executable, "-W", "error", "-c", MANY, any_server.unix_socket, KEY, json.dumps(layout)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["delivered"] == 4_300_000
    assert result["growth"] < 32 * 2**20
