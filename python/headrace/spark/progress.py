"""A progress bar for one action of Spark: the tasks that are done, of those that are known."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["shown"]

#: Seconds between two looks at Spark's counts.
INTERVAL = 0.2


@contextmanager
def shown(spark: SparkSession, wanted: bool | None, title: str) -> Iterator[None]:
    """Show a bar on stderr, or in the notebook, while the block runs one action of Spark in this thread.

    Args:
        spark: The session of the action; classic or Connect.
        wanted: None: if somebody can see it, tqdm is installed, and Spark shows no bar of its own there.
        title: What stands before the bar.
    """
    connect = type(spark).__module__.startswith("pyspark.sql.connect")
    tqdm = _tqdm(wanted, spark, connect)
    if tqdm is None:
        yield
        return
    # Made here, for a notebook shows it below the cell of the thread that makes it.
    with tqdm(desc=title, unit="task", dynamic_ncols=True, file=sys.stderr) as bar:
        with _told_by_connect(spark, bar) if connect else _asked_of_spark(spark, bar):
            yield
        _draw(bar, bar.total, bar.total)


def _tqdm(wanted: bool | None, spark: SparkSession, connect: bool) -> Any:
    """Find tqdm's class of a bar for here; None if there shall be none."""
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
    """Find tqdm's bar for notebooks, if this is one that has widgets. Without them text will do."""
    ipython = sys.modules.get("IPython")  # whoever has not imported it is in no notebook
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from tqdm import notebook

    return notebook.tqdm if notebook.IProgress is not None else None


@contextmanager
def _asked_of_spark(spark: SparkSession, bar: Any) -> Iterator[None]:
    """Look at the jobs of this thread's job group that were not there before.

    The group stays as the user has set it: it is what notebooks cancel by. Jobs that another thread starts in the same
    group meanwhile count too, which nothing but the bar depends on.
    """
    from pyspark import InheritableThread

    group = spark.sparkContext.getLocalProperty("spark.jobGroup.id")
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup(group))
    done = threading.Event()

    def look() -> None:
        jobs = [tracker.getJobInfo(job) for job in set(tracker.getJobIdsForGroup(group)) - before]
        stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
        # A stage that Spark skips keeps its tasks, and never begins.
        begun = [s for s in stages if s is not None and s.numActiveTasks + s.numCompletedTasks]
        _draw(bar, sum(s.numCompletedTasks for s in begun), sum(s.numTasks for s in begun))

    def watch() -> None:
        # Without Spark there is nothing to see: the action itself tells of that.
        with suppress(Exception):
            while not done.wait(INTERVAL):
                look()
            look()

    # It also gives back the thread that the JVM keeps for this one.
    thread = InheritableThread(target=watch)
    thread.daemon = True
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextmanager
def _told_by_connect(spark: Any, bar: Any) -> Iterator[None]:
    """Have Spark Connect tell of the stages of what runs in this session."""

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
        bar.reset(total)  # a notebook's bar heeds a new total in no other way
        bar.start_t = started
    bar.n = done
    bar.refresh()
