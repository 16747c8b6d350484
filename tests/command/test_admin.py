"""What `headrace.admin` has for tools that take options as text, or print entries without an Arrow library."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from headrace import ConfigError, Dispatcher, Endpoint, Reader, unpack_arrow
from headrace.admin import (
    dispatcher_from_text,
    endpoint_from_text,
    entries,
    given_options,
    json_lines,
    json_rows,
)
from headrace.testing import LocalServer
from support.canary import Secret
from support.pipelines import endpoint_to


def test_options_as_text_take_precedence_over_those_of_the_url() -> None:
    endpoint = endpoint_from_text({"port": "7000", "stream_key": b"\xff"}, "redis://h:6379/1?stream_key=s&maxlen=10")
    assert endpoint == Endpoint(host="h", port=7000, db=1, stream_key=b"\xff", maxlen=10)
    assert given_options(endpoint) == {"host": "h", "port": 7000, "db": 1, "stream_key": b"\xff", "maxlen": 10}
    with pytest.raises(ConfigError, match="port must be an integer"):
        endpoint_from_text({"host": "h", "stream_key": "s", "port": "x"})


def test_the_options_that_were_given_contain_secrets() -> None:
    secret = Secret().text
    given = {"host": "h", "stream_key": "s", "password": secret}
    assert given_options(Endpoint.from_mapping(given)) == given


def test_a_dispatcher_of_options_as_text(any_server: LocalServer) -> None:
    with dispatcher_from_text(endpoint_to(any_server), {"ordered": "true", "ts_field": None}) as dispatcher:
        dispatcher.produce(b"x")
        assert dispatcher.flush().delivered == 1
    with pytest.raises(ConfigError, match="window_max_entries must be an integer"):
        dispatcher_from_text(endpoint_to(any_server), {"window_max_entries": "many"})


def test_entries_are_read_without_an_arrow_library(any_server: LocalServer) -> None:
    endpoint = endpoint_to(any_server)
    with Dispatcher(endpoint, ts_field=None) as dispatcher:
        entry_id = dispatcher.dispatch(b"x")
        dispatcher.produce_batch(pa.record_batch({"a": [1, None], "b": ["y", "z"]}), arrow_ipc=True)
    with Reader(endpoint, end="latest", metadata=["entry_id", "entry_ms"], fields_as="list") as reader:
        batches = list(reader)
    found = [entry for batch in batches for entry in entries(batch)]
    milliseconds = int(entry_id.partition("-")[0])
    assert found[0] == (entry_id, milliseconds, [("payload", b"x")])
    lines = b"".join(map(json_lines, batches)).splitlines()
    assert len(lines) == len(found) == 2
    line = json.loads(lines[0])
    assert (line["id"], line["fields"]) == (entry_id, {"payload": "x"})
    rows = unpack_arrow(dict(found[1][2] or ()))
    assert json_rows(rows) == [b'{"a":1,"b":"y"}', b'{"b":"z"}']
