"""`headrace.spark.options()`: all options of the data source, without Spark."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Literal

import pytest

from headrace import ConfigError
from headrace.spark import options
from headrace.spark.option_list import DEFAULTS
from headrace.spark.settings import known, read

HERE = {"host": "h", "stream_key": "s"}


def test_all_options_are_listed() -> None:
    assert {option.name for option in options()} == set(known())
    of_reads, of_writes = ({option.name for option in options(use)} for use in ("read", "write"))
    assert {"url", "stream_key", "starting", "fields"} <= of_reads
    assert {"url", "stream_key", "on_failure", "fields"} <= of_writes
    assert "starting" not in of_writes
    assert "on_failure" not in of_reads
    with pytest.raises(ConfigError, match="use must be 'read' or 'write', got 'writes'"):
        options("writes")  # type: ignore[arg-type]


@pytest.mark.parametrize("use", ["read", "write"])
def test_each_option_is_described_once_per_use_in_one_sentence(use: Literal["read", "write"]) -> None:
    listed = options(use)
    assert len(listed) > 60
    assert len({option.name for option in listed}) == len(listed)
    for option in listed:
        assert option.text.endswith("."), option.name
        assert ". " not in option.text, option.name
        assert "](" not in option.text, option.name


def test_the_defaults_are_those_of_spark() -> None:
    assert DEFAULTS.keys() <= {option.name for option in options("write")}
    batch, streaming = (read(HERE, streaming=streaming).dispatcher for streaming in (False, True))
    assert (batch["retry"], streaming["retry"]) == ("true", "true")
    assert (batch["retry_unknown"], streaming["retry_unknown"]) == ("true", "false")
    assert (batch.get("exactly_once", "off"), streaming["exactly_once"]) == ("off", "auto")


def test_the_repr_is_a_table() -> None:
    lines = repr(options()).split("\n")
    assert [line for line in lines if line[:1].isalpha()] == ["Reads and writes:", "Writes:", "Reads:"]
    assert max(map(len, lines)) <= 125
    assert all(line == line.rstrip() for line in lines)
    (at,) = [at for at, line in enumerate(lines) if line.startswith("  on_failure ")]
    assert re.split(" {2,}", lines[at].strip())[:2] == ["on_failure", "one of 'fail', 'report',"]
    assert re.split(" {2,}", lines[at + 1].strip())[0] == "'dead_letter'; default: \"fail\""
    (ending,) = [option for option in options("read") if option.name == "ending"]
    assert (ending.use, ending.allowed, ending.default) == ("read", "non-empty text", '"latest"')


def test_no_pyspark_is_needed() -> None:
    code = (
        "import sys; sys.modules.update(pyspark=None, pyarrow=None, pandas=None)\n"
        "import headrace.spark; print(len(headrace.spark.options()), 'write' in dir(headrace.spark))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == (f"{len(options())} True", "")
