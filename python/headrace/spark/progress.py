"""A progress bar for one Spark action: finished tasks out of all known tasks."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["progress_bar"]

#: Seconds between two updates.
INTERVAL = 0.2


@contextmanager
def progress_bar(spark: SparkSession, wanted: bool | None, title: str) -> Iterator[None]:
    """Show a bar on stderr, or in the notebook, while the block runs one Spark action in this thread.

    Args:
        spark: The session of the action; classic or Connect.
        wanted: None: show it in a terminal or a notebook, if tqdm is installed and Spark shows no bar of its own there.
        title: The text before the bar.
    """
    connect = type(spark).__module__.startswith("pyspark.sql.connect")
    tqdm = _tqdm(wanted, spark, connect)
    if tqdm is None:
        yield
        return
    # A notebook shows the bar below the cell whose thread creates it.
    with tqdm(desc=title, unit="task", dynamic_ncols=True, file=sys.stderr) as bar:
        with _watch_connect(spark, bar) if connect else _watch_jobs(spark, bar):
            yield
        _draw(bar, bar.total, bar.total)


def _tqdm(wanted: bool | None, spark: SparkSession, connect: bool) -> Any:
    """Choose the tqdm class for this environment; None for no bar."""
    if wanted is False:
        return None
    try:
        if (widget := _widget()) is not None:
            return widget
        if wanted is None:
            if sys.stderr is None or not sys.stderr.isatty():
                return None
            if not connect and spark.conf.get("spark.ui.showConsoleProgress", "false") == "true":
                return None
        from tqdm import tqdm
    except ImportError as error:
        if wanted is None:
            return None
        raise ConfigError("progress=True needs tqdm: pip install headrace[progress]", option="progress") from error
    return tqdm


def _widget() -> Any:
    """Find tqdm's bar for notebooks, if this is a notebook with widgets. Without widgets the text bar works."""
    ipython = sys.modules.get("IPython")  # a notebook has imported it
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from tqdm import notebook

    return notebook.tqdm if notebook.IProgress is not None else None


@contextmanager
def _watch_jobs(spark: SparkSession, bar: Any) -> Iterator[None]:
    """Draw the new jobs of this thread's job group, from a separate thread.

    The group stays as the user set it, because notebooks cancel jobs by group. Jobs that another thread starts in the
    same group in the meantime count too, which affects only the bar.
    """
    from pyspark import InheritableThread

    group = spark.sparkContext.getLocalProperty("spark.jobGroup.id")
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup(group))
    done = threading.Event()

    def look() -> None:
        jobs = [tracker.getJobInfo(job) for job in set(tracker.getJobIdsForGroup(group)) - before]
        stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
        # A stage that Spark skips has tasks, but never starts.
        begun = [s for s in stages if s is not None and s.numActiveTasks + s.numCompletedTasks]
        _draw(bar, sum(s.numCompletedTasks for s in begun), sum(s.numTasks for s in begun))

    def watch() -> None:
        # If Spark has stopped, the action itself raises.
        with suppress(Exception):
            while not done.wait(INTERVAL):
                look()
            look()

    # This class also releases the JVM thread that pyspark pairs with it.
    thread = InheritableThread(target=watch)
    thread.daemon = True
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextmanager
def _watch_connect(spark: Any, bar: Any) -> Iterator[None]:
    """Draw the stages that Spark Connect reports for this session."""

    def look(stages: Iterable[Any] | None, **_: object) -> None:
        known = list(stages or [])
        if known:
            _draw(bar, sum(s.num_completed_tasks for s in known), sum(s.num_tasks for s in known))

    spark.registerProgressHandler(look)
    try:
        yield
    finally:
        spark.removeProgressHandler(look)


def _draw(bar: Any, done: int | None, total: int | None) -> None:
    if not total:
        return
    if total != bar.total:
        started = bar.start_t
        bar.reset(total)  # the only way to change the total of a notebook's bar
        bar.start_t = started
    bar.n = done
    bar.refresh()
