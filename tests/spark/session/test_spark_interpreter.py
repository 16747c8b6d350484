"""Workers whose Python cannot run headrace: the driver reports it before a job runs. Real Spark and interpreters."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

import headrace
from headrace import ConfigError, Endpoint
from headrace.spark import register, write, xadd, xadd_udf
from headrace.testing import LocalServer

#: This interpreter outside of its virtual environment.
BASE = Path(sys.executable).resolve()

#: The same without any installed packages.
BARE = ("unset PYTHONPATH", f'exec "{BASE}" -S "$@"')

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"

ENDPOINT = Endpoint(host="127.0.0.1", port=1, stream_key="events")

#: Everything that hands work to Spark's workers, but `register`.
CALLS: dict[str, Callable[[SparkSession], Any]] = {
    "write": lambda spark: write(frame(spark), ENDPOINT, progress=False),
    "xadd": lambda _: xadd(ENDPOINT),
    "xadd_udf": lambda _: xadd_udf(ENDPOINT),
}

#: Makes Spark start a shell script in place of the workers' Python: `use(*lines)` returns its path.
Use = Callable[..., Path]


@pytest.fixture
def context(spark: SparkSession) -> SparkContext:
    return spark.sparkContext


@pytest.fixture
def use(context: SparkContext, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Use:
    def use(*lines: str) -> Path:
        program = tmp_path / "python"
        program.write_text("\n".join(("#!/bin/sh", *lines, "")))
        program.chmod(0o755)
        monkeypatch.setattr(context, "pythonExec", str(program))
        return program

    return use


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A folder with another version of headrace."""
    package = tmp_path / "old" / "headrace"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("__version__ = '0.0.1'\n")
    return package.parent


def frame(spark: SparkSession) -> DataFrame:
    return spark.range(0, 4, 1, 2).selectExpr("string(id) AS payload")


@pytest.mark.parametrize("call", CALLS)
def test_a_python_without_headrace_is_refused(spark: SparkSession, use: Use, call: str) -> None:
    program = use(*BARE)
    for _ in range(2):
        with pytest.raises(ConfigError) as caught:
            CALLS[call](spark)
        assert caught.value.option == "PYSPARK_PYTHON"
        assert str(caught.value) == (
            f"the Python of Spark's workers, '{program}', cannot run headrace: No module named 'headrace'; "
            f"before Spark starts, set PYSPARK_PYTHON={sys.executable}"
        )


@pytest.mark.parametrize("master", ["local[2]", "spark://host:7077"])
def test_register_refuses_a_python_without_headrace_beside_the_driver(
    spark: SparkSession, context: SparkContext, use: Use, monkeypatch: pytest.MonkeyPatch, master: str
) -> None:
    """On a cluster too: a data source is planned by a worker beside the driver."""
    use(*BARE)
    monkeypatch.setattr(context, "master", master)
    # Spark 4.0 keeps to the Python in which it found the format by itself, and takes no other.
    takes_it = not spark.version.startswith("4.0.")
    with pytest.raises(ConfigError, match="before Spark starts") if takes_it else contextlib.nullcontext():
        register(spark.newSession())


def test_a_python_without_pyarrow_is_refused(use: Use, tmp_path: Path) -> None:
    (tmp_path / "headrace").symlink_to(folder(headrace) / "headrace")
    use(f'PYTHONPATH="{tmp_path}"', "export PYTHONPATH", f'exec "{BASE}" -S "$@"')
    with pytest.raises(ConfigError, match="cannot run headrace: No module named 'pyarrow';"):
        xadd(ENDPOINT)


def test_another_version_of_headrace_is_refused(
    spark: SparkSession, context: SparkContext, use: Use, monkeypatch: pytest.MonkeyPatch, old: Path
) -> None:
    use(f'exec "{sys.executable}" "$@"')
    monkeypatch.setitem(context.environment, "PYTHONPATH", str(old))
    expected = f"has headrace 0.0.1, and the driver's has {re.escape(headrace.__version__)};"
    with pytest.raises(ConfigError, match=expected):
        xadd(ENDPOINT)
    # The format runs in that Python alone.
    register(spark.newSession())


def test_another_version_of_python_is_refused(use: Use) -> None:
    use("""echo '{"python": "3.8", "error": "invalid syntax"}'""")
    with pytest.raises(ConfigError, match=r"is Python 3\.8, and the driver's is 3\.\d+;"):
        xadd(ENDPOINT)


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://host", "local-cluster[2, 1, 1024]"])
def test_executors_of_a_cluster_are_not_checked(
    context: SparkContext, use: Use, monkeypatch: pytest.MonkeyPatch, master: str
) -> None:
    use(*BARE)
    monkeypatch.setattr(context, "master", master)
    xadd(ENDPOINT)
    xadd_udf(ENDPOINT)


@pytest.mark.parametrize(
    "lines",
    [["exit 3"], ["kill -9 $$"], ["echo hello"], ["echo '[]'"], ["echo '{}'"], [f'echo \'{{"python": "{PYTHON}"}}\'']],
    ids=["an error", "a crash", "words", "a list", "an empty answer", "half an answer"],
)
def test_a_program_with_an_unreadable_answer_raises_no_error(use: Use, lines: list[str]) -> None:
    use(*lines)
    xadd(ENDPOINT)


@pytest.mark.parametrize("missing", ["./environment/bin/python", "no-such-python"])
def test_a_program_that_is_not_found_raises_no_error(
    context: SparkContext, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setattr(context, "pythonExec", missing)
    xadd(ENDPOINT)


def test_another_python_with_headrace_is_checked_once_and_used(
    spark: SparkSession,
    context: SparkContext,
    use: Use,
    any_server: LocalServer,
    connect: Callable[..., redis.Redis],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """It finds headrace by the variables that Spark gives to its workers."""
    asked = tmp_path / "asked"
    use(f'[ "$1" = -c ] && echo asked >> "{asked}"', f'exec "{BASE}" "$@"')
    monkeypatch.setitem(context.environment, "PYTHONPATH", f"{folder(headrace)}:{folder(pa)}")
    endpoint = Endpoint(unix_socket=any_server.unix_socket, stream_key="events")
    outcomes = frame(spark).mapInArrow(xadd(endpoint), xadd.schema).collect()
    assert [row.code for row in outcomes] == [None] * 4
    assert write(frame(spark), endpoint, progress=False).delivered == 4
    assert connect(any_server).xlen("events") == 8
    assert asked.read_text().split() == ["asked"]


def test_the_python_of_the_driver_is_not_checked(
    context: SparkContext, monkeypatch: pytest.MonkeyPatch, old: Path
) -> None:
    """Its answer would be wrong here. Each of its names in its folder is recognised."""
    monkeypatch.setitem(context.environment, "PYTHONPATH", str(old))
    names = [path for path in Path(sys.executable).parent.glob("python*") if path.resolve() == BASE]
    assert names
    for name in names:
        monkeypatch.setattr(context, "pythonExec", str(name))
        xadd(ENDPOINT)


def folder(package: Any) -> Path:
    return Path(package.__file__).parents[1]
