"""One run: a stream from its first row to its last, with the faults of its plan."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import shutil
import signal
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from headrace.errors import LocalServerError
from headrace.spark.source.stream import HAS_LIMITS
from headrace.testing import LocalCluster, LocalServer
from support.servers import Program

from .check import Verdict, by_files, check
from .driver import Query
from .feed import ROWS_KEY, Feed
from .plan import Plan, Strike
from .pool import Driver, Pool
from .rows import Rows, write_files
from .targets import Cluster, OneServer, Target
from .traps import FOLDER, committed, lay_traps, sprung

Source = Literal["files", "stream"]
SOURCES: tuple[Source, ...] = get_args(Source)

#: The numbers of cores of the drivers, in turn. A query that reads a stream must not depend on them.
CORES: dict[Source, tuple[int, ...]] = {"files": (2,), "stream": (2, 1, 3)}

Topology = Literal["single", "cluster"]
TOPOLOGIES: tuple[Topology, ...] = get_args(Topology)

#: Seconds without a reply after which the nodes of a cluster consider another node dead. On a busy machine a live node
#: may be silent for a second, and data that only it has is lost when its replica takes over.
NODE_TIMEOUT = 3.0

#: Rows of a record batch, so that a file has several.
RECORD_BATCH = 1_000


@dataclass(frozen=True)
class Setting:
    """Settings that several runs share."""

    sink: str
    exactly_once: str
    #: Seconds without any progress after which a run never ends.
    timeout: float = 240.0
    #: What the query reads: `files`, or a `stream` of the same server.
    source: Source = "files"
    topology: Topology = "single"
    #: The option of the sink, unless it has its default.
    wait_replicas: str = ""


@dataclass
class Outcome:
    """The outcome of a run."""

    verdict: Verdict
    seconds: float
    #: The planned faults that occurred, by kind; a strike that found nothing to kill does not count.
    faults: Counter[str] = field(default_factory=Counter)
    #: How often the query failed and was restarted in the same driver.
    restarts: int = 0
    #: Sums of the counts in the commit messages.
    reported: dict[str, int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    #: Rows of a stream that were trimmed before the query could read them, and how many the query reported.
    trimmed: int = 0
    reported_trimmed: int = 0
    #: How often a task reported `MARKER_LOST`; its next attempt writes what was lost.
    markers_lost: int = 0


class HungError(Exception):
    """A run did not end."""


def run(plan: Plan, program: Program, setting: Setting, pool: Pool, folder: Path) -> Outcome:
    """Do a run in a new folder, which is kept.

    Raises:
        HungError: It made no progress, or its driver gave up.
    """
    folder.mkdir()
    lay_traps(folder, plan.traps)
    with ExitStack() as resources:
        server = None if setting.topology == "cluster" else _server(program, resources)
        target: Target = OneServer(server) if server else _cluster(program, resources)
        query = Query(
            source="text",
            source_options={},
            checkpoint=str(folder / "checkpoint"),
            record_batch=RECORD_BATCH,
            sink=f"trapped_{setting.sink}",
            options=target.options | {FOLDER: str(folder)},
            columns=target.columns,
        )
        if setting.sink != "plain":
            query.options["exactly_once"] = setting.exactly_once
        if setting.wait_replicas:
            query.options["wait_replicas"] = setting.wait_replicas
        feed = Feed(plan, server, folder / "checkpoint") if server and setting.source == "stream" else None
        if feed is None:
            query.source_options["path"] = str(_input(folder.parent, plan.rows))
            query.source_options["maxFilesPerTrigger"] = str(plan.rows.files_per_batch)
        else:
            feed.next_round()
        this = _Run(plan, target, query, pool, folder, feed)
        try:
            outcome = this.until_it_ends(setting.timeout)
        except BaseException:
            this.driver.kill()  # it would go on
            raise
        if feed is None:
            place = by_files(_batches(folder / "checkpoint"))
            outcome.verdict = check(plan.rows, *target.contents(), place=place)
        else:
            outcome.verdict = check(plan.rows, *target.contents(), place=feed.place(), trimmed=feed.trimmed)
            outcome.trimmed, outcome.reported_trimmed = sum(feed.trimmed.values()), feed.reported()
    for trap in sprung(folder):
        outcome.faults[trap.kind] += 1
    outcome.reported = committed(folder)
    return outcome


def _server(program: Program, resources: ExitStack) -> LocalServer:
    config: dict[str, Any] = {"appendonly": True, "appendfsync": "always"}
    return resources.enter_context(LocalServer(program.path, transport="tcp", config=config))


def _cluster(program: Program, resources: ExitStack) -> Cluster:
    return Cluster(resources.enter_context(LocalCluster(program.path, node_timeout=NODE_TIMEOUT)))


def _input(folder: Path, rows: Rows) -> Path:
    """The folder with the files of these rows, created if it does not exist: other runs read it too."""
    path = folder / f"input-{rows.files}-{rows.rows_per_file}"
    if not path.exists():
        shutil.rmtree(new := path.with_suffix(".new"), ignore_errors=True)
        write_files(new, rows)
        new.rename(path)
    return path


def _batches(checkpoint: Path) -> dict[int, int]:
    """The actual micro-batch of each file.

    Spark records a micro-batch twice: its files and its offsets. If a driver is killed between the two, these files
    belong to the next micro-batch, which then has the files of two.
    """
    until = {
        int(path.name): json.loads(path.read_text().splitlines()[-1])["logOffset"]
        for path in _notes(checkpoint, "offsets")
    }
    files = [json.loads(line) for path in _notes(checkpoint, "sources/0") for line in path.read_text().splitlines()[1:]]
    return {
        int(Path(file["path"]).stem): min(batch for batch, last in until.items() if last >= file["batchId"])
        for file in files
    }


def _notes(checkpoint: Path, folder: str) -> list[Path]:
    return list((checkpoint / folder).glob("[0-9]*"))


class _Run:
    """A run in progress."""

    def __init__(self, plan: Plan, target: Target, query: Query, pool: Pool, folder: Path, feed: Feed | None) -> None:
        self._plan = plan
        self._feed = feed
        self._dice = random.Random(f"{plan.seed} starts")
        self._strikes = list(plan.strikes)
        self._target = target
        self._query = query
        self._pool = pool
        self._checkpoint = folder / "checkpoint"
        self._started = 0
        self._since_start = 0.0
        self._outcome = Outcome(Verdict(plan.rows.count), 0.0)
        self.driver = self._next_driver()

    def until_it_ends(self, timeout: float) -> Outcome:
        began = progressed = time.monotonic()
        progress = None
        while not self._ended():
            if self._strikes and self._due(self._strikes[0]):
                self._strike(self._strikes.pop(0))
            if (now := self._progress()) != progress:
                progress, progressed = now, time.monotonic()
            if time.monotonic() - progressed > timeout:
                raise HungError(f"no progress in {timeout:g} s, {self._state()}; see {self.driver.log}")
        self._let_go()
        self._outcome.seconds = time.monotonic() - began
        return self._outcome

    def _next_driver(self) -> Driver:
        to_come = sum(strike.kind == "driver" for strike in self._strikes)
        driver = self._pool.take(spare=to_come > 0)
        driver.run(self._next_query())
        return driver

    def _next_query(self) -> Query:
        """The next query. Each start reads a stream in micro-batches and partitions of different sizes."""
        if self._feed is None:
            return self._query
        options = self._target.options | {"stream_key": ROWS_KEY}
        options |= {"starting": "earliest", "min_partitions": str(self._dice.choice((1, 2, 3, 5, 8)))}
        if any(self._plan.losses):
            options["fail_on_data_loss"] = "false"
        if share := self._dice.choice((0, 2, 3, 5)):
            options["max_entries_per_trigger"] = str(self._plan.rows.rows_per_file // share + 1)
            if not HAS_LIMITS:
                options["available_now"] = "true"
        return dataclasses.replace(self._query, source="redis_streams", source_options=options)

    def _goes_on(self) -> bool:
        """Start the next round of a stream, with another driver; false if there is no further round."""
        if self._feed is None or (self._feed.is_read() and not self._feed.next_round()):
            return False
        self._let_go()
        self.driver = self._next_driver()
        return True

    def _let_go(self) -> None:
        """Return the driver, which has nothing more to do, to the pool."""
        self._read_log()
        self._pool.give_back(self.driver)

    def _read_log(self) -> None:
        # Spark retries a task, so most of its errors are only in the log.
        self._outcome.markers_lost += self.driver.logged(b"MARKER_LOST")

    def _ended(self) -> bool:
        """Handle the driver's next event, or wait a moment; returns whether it was the last one."""
        event = self.driver.next_event(0.001)
        if event is None:
            if self.driver.ended:
                raise HungError(f"the driver ended by itself; see {self.driver.log}")
            return False
        if event["event"] == "started":
            self._started += 1
            self._since_start = time.monotonic()
        elif event["event"] == "failed":
            self._outcome.restarts += 1
            self._outcome.errors.append(event["error"])
        elif event["event"] == "gave up":
            raise HungError(f"the driver gave up: {self._outcome.errors[-1]}")
        return bool(event["event"] == "finished") and not self._goes_on()

    def _due(self, strike: Strike) -> bool:
        match strike.when:
            case "rows":
                return self._target.entries() >= strike.at
            case "start":
                return self._started >= strike.at
            case when:
                return (self._checkpoint / when / str(strike.at)).exists()

    def _strike(self, strike: Strike) -> None:
        time.sleep(strike.delay)
        match strike.kind:
            case "driver":
                self._kill_driver(strike)
            case "worker":
                self._kill_workers()
            case "trim":
                assert self._feed is not None
                self._outcome.faults["trim"] += self._feed.trim_committed() > 0
            case kind:
                try:
                    self._target.strike(strike)
                except (AssertionError, LocalServerError) as error:
                    raise HungError(f"{strike} did not end: {error}") from error
                self._outcome.faults[kind] += 1

    def _kill_driver(self, strike: Strike) -> None:
        with self._target.frozen() if strike.freeze else contextlib.nullcontext():
            time.sleep(strike.freeze)
            self.driver.kill(strike.workers_too)
            time.sleep(strike.freeze)
        self._read_log()
        if not (self._checkpoint / "offsets" / "0").exists():
            # Spark refuses a checkpoint whose first offsets were only half written, and asks to delete it. Nothing is
            # written before them.
            shutil.rmtree(self._checkpoint, ignore_errors=True)
        self._outcome.faults["driver"] += 1
        self.driver = self._next_driver()

    def _kill_workers(self) -> None:
        """Kill the workers of this driver, and no others."""
        for pid in self.driver.workers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self._outcome.faults["worker"] += 1

    def _progress(self) -> tuple[object, ...]:
        return self.driver, self.driver.log.stat().st_size, len(_notes(self._checkpoint, "commits")), len(self._strikes)

    def _state(self) -> str:
        commits = sorted(path.name for path in (self._checkpoint / "commits").glob("[0-9]*"))
        return (
            f"with {self._target.entries()} entries, the commits {', '.join(commits) or 'none'} and "
            f"the errors {self._outcome.errors[-1:]}"
        )
