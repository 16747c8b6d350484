"""The progress bar of `headrace.spark.write`: shown in a terminal, elsewhere only on request."""

from __future__ import annotations

import io
import os
import re
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from pyspark import InheritableThread
from pyspark.sql import DataFrame, SparkSession

from headrace import ConfigError, Endpoint
from headrace.spark import write
from support.datasource import messages
from support.marks import thorough


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], str]]:
    """Make stderr a terminal; yields a function that returns what it showed."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    shown = bytearray()

    def read() -> None:
        try:
            while block := os.read(ours, 4096):
                shown.extend(block)
        except OSError:
            return  # the other side was closed

    reader = threading.Thread(target=read)
    reader.start()
    with open(theirs, "w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stderr", stream)

        def text() -> str:
            stream.close()
            reader.join()
            return shown.decode()

        try:
            yield text
        finally:
            monkeypatch.undo()
            stream.close()
            reader.join()
            os.close(ours)


def watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if isinstance(thread, InheritableThread)]


#: A condition that is true and slow.
SLEEP = "java_method('java.lang.Thread', 'sleep', 300L) <> 'an answer'"


def slow(spark: SparkSession) -> DataFrame:
    """Eight tasks of 0.3 s each."""
    return messages(spark, 8, 8).where(SLEEP)


def test_a_terminal_shows_a_bar_of_tasks(
    spark: SparkSession, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    with terminal(monkeypatch) as shown:
        assert write(slow(spark), endpoint).delivered == 8
        text = shown()
    assert "Writing to Redis: 100%" in text
    assert re.search("[1-7]/8", text)  # it was there before the end
    assert text.rstrip().rpartition("\r")[2].count("8/8") == 1


def test_the_bar_includes_the_tasks_after_a_shuffle(
    spark: SparkSession, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    with terminal(monkeypatch) as shown:
        write(slow(spark).repartition(2).where(SLEEP), endpoint)
        text = shown()
    assert re.search("[1-8]/8", text)
    assert "10/10" in text


@pytest.mark.parametrize("progress", [None, *thorough(False)])
def test_nothing_is_printed_without_a_terminal(
    spark: SparkSession, endpoint: Endpoint, capfd: pytest.CaptureFixture[str], progress: bool | None
) -> None:
    assert write(slow(spark), endpoint, progress=progress).delivered == 8
    assert capfd.readouterr() == ("", "")


def test_progress_false_shows_no_bar_in_a_terminal(
    spark: SparkSession, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    with terminal(monkeypatch) as shown:
        write(slow(spark), endpoint, progress=False)
        text = shown()
    assert text == ""


def test_progress_true_shows_a_bar_without_a_terminal(
    spark: SparkSession, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    spark.sparkContext.setJobGroup("of-the-user", "his own")
    try:
        write(slow(spark), endpoint, progress=True)
        assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") == "of-the-user"
    finally:
        spark.sparkContext._jsc.clearJobGroup()
    assert re.search("[1-7]/8", shown.getvalue())
    assert not watchers()


def test_a_job_that_fails_ends_the_bar(
    spark: SparkSession, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    frame = messages(spark, 4, 4).where("raise_error(concat('on purpose', message_id)) IS NULL")
    with pytest.raises(Exception, match="on purpose"):
        write(frame, endpoint, progress=True)
    assert "Writing to Redis" in shown.getvalue()
    assert "100%" not in shown.getvalue()
    assert not watchers()


def test_a_bar_needs_tqdm(spark: SparkSession, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)  # makes its import fail
    with pytest.raises(ConfigError, match=r"pip install headrace\[progress\]"):
        write(messages(spark, 4, 2), endpoint, progress=True)
    with terminal(monkeypatch) as shown:
        assert write(messages(spark, 4, 2), endpoint).delivered == 4
        assert shown() == ""
