"""Arrow data of every library that is named in the manual: the values in the stream are those of the source."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest

import headrace
from headrace import Dispatcher, Endpoint
from headrace.testing import LocalServer
from support.arrow_sources import MAPS, SOURCES, differences
from support.marks import thorough
from support.paths import TESTS
from support.servers import IN_CI

#: The folder in which `make test` installs polars 1.
POLARS_1 = Path(os.environ.get("HEADRACE_TEST_POLARS_1") or Path(sys.prefix) / "polars-1")

#: What other packages give as objects of pyarrow.
AS_PYARROW = ("polars to_arrow", "duckdb to_arrow_table", "duckdb reader")


@pytest.mark.parametrize("source", [*(name for name in SOURCES if name not in AS_PYARROW), *thorough(*AS_PYARROW)])
def test_sent_values_match_the_source(any_server: LocalServer, source: str) -> None:
    assert differences(source, any_server.unix_socket) == {}


@pytest.mark.thorough
def test_sent_values_match_polars_1(any_server: LocalServer) -> None:
    if not POLARS_1.is_dir():
        text = f"no polars 1 in {POLARS_1}: `make test-all` puts it there"
        if IN_CI:
            pytest.fail(text)
        pytest.skip(text)
    path = os.pathsep.join([str(POLARS_1), str(TESTS), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "support.arrow_sources", "--unix-socket", any_server.unix_socket]
    done = subprocess.run(
        [*command, "--sources", "polars", "--without", *MAPS],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr.decode()
    version, found = json.loads(done.stdout)
    assert version.startswith("1.")
    assert found == {source: {} for source in SOURCES if source.startswith("polars")}


def test_a_parquet_file_with_several_record_batches_is_sent(
    any_server: LocalServer, connect: Callable[..., Any], tmp_path: Path
) -> None:
    """The second record batch of such a scanner is a slice of the row group."""
    count = 140_000
    meta = pa.array([{"geo": {"lat": number}} for number in range(count)])
    pyarrow.parquet.write_table(pa.table({"id": range(count), "meta": meta}), tmp_path / "file", row_group_size=count)
    with Dispatcher(Endpoint(unix_socket=any_server.unix_socket, stream_key="s")) as dispatcher:
        reader = pyarrow.dataset.dataset(tmp_path / "file").scanner().to_reader()
        dispatcher.produce_batch(reader, json=True, message_id="id", rows_per_entry=1_000)
        assert dispatcher.flush().raise_for_failures().delivered == count
    rows = [row for _, fields in connect(any_server).xrange("s") for row in headrace.unpack(fields)]
    assert rows == [b'{"id":%d,"meta":{"geo":{"lat":%d}}}' % (number, number) for number in range(count)]
