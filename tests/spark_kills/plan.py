"""The plan of a run: its strikes and traps, drawn from the run's seed. No I/O."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, get_args

from .rows import Rows

#: driver, worker and server are killed by SIGKILL; task and commit fail with an exception. trim removes entries that
#: the query has committed from the stream that it reads. In a cluster, master kills the owner of a stream by SIGKILL,
#: so that a replica takes over, and move moves the slot of a stream to another master and back.
Kind = Literal["driver", "worker", "task", "commit", "server", "trim", "master", "move"]
KINDS: tuple[Kind, ...] = get_args(Kind)
#: Text files cannot be trimmed.
OF_FILES: tuple[Kind, ...] = ("driver", "worker", "task", "commit", "server")
OF_STREAMS: tuple[Kind, ...] = (*OF_FILES, "trim")
OF_CLUSTERS: tuple[Kind, ...] = ("driver", "worker", "task", "commit", "master", "move")

#: How a slot is moved: key by key; the same with a pause before the slot itself, in which its old owner replies with
#: `ASK`; or as a whole, on servers that can do that.
Way = Literal["keys", "slowly", "whole"]
WAYS: tuple[Way, ...] = get_args(Way)
#: The number of streams of a run on a cluster: two on each of three masters, before the first slot is moved.
STREAMS = 6


@dataclass(frozen=True)
class Strike:
    """A kill from outside, when the stream has reached a certain point.

    Args:
        kind: What is killed.
        when: `rows`: the stream has that many entries. `offsets`, `commits`: the checkpoint records the start, or the
            end, of that micro-batch. `start`: the query has been started that many times.
        at: That number.
        delay: Seconds from that point to the kill.
        workers_too: For a driver: all its child processes are killed with it, as when a machine dies. Otherwise its
            Python workers are left to find out.
        freeze: Seconds that the server is stopped (SIGSTOP) before and after the kill. Commands in transit are executed
            after their sender is gone.
        downtime: Seconds until a server is restarted, or a slot is moved back.
        stream: The number of the stream whose master is killed, or whose slot is moved.
        way: How a slot is moved.
    """

    kind: Kind
    when: Literal["rows", "offsets", "commits", "start"]
    at: int
    delay: float = 0.0
    workers_too: bool = True
    freeze: float = 0.0
    downtime: float = 0.0
    stream: int = 0
    way: Way = "keys"


@dataclass(frozen=True)
class Trap:
    """A failure inside Spark; it springs once, at a place that the plan specifies exactly.

    Args:
        kind: `task`: an exception. `worker`: the worker kills itself. `commit`: an exception.
        batch: The micro-batch.
        partition: The partition whose task is hit; meaningless for a commit.
        after: After the writer has read this many of the partition's record batches; None: after it has written all of
            them (or committed) and only its answer is missing. For a commit, 0 means before it.
    """

    kind: Kind
    batch: int
    partition: int
    after: int | None


@dataclass(frozen=True)
class Plan:
    """A run: its rows, its strikes and its traps."""

    seed: int
    rows: Rows
    #: In order: each waits until the previous one was carried out.
    strikes: tuple[Strike, ...]
    traps: tuple[Trap, ...]
    #: If a stream is read: for each round, how many of its rows are trimmed before the query can read them.
    losses: tuple[int, ...] = ()


#: How often a query that reads a stream is started, each time with more rows in the stream.
ROUNDS = 4


def make_source_plan(seed: int, rows: int, record_batch: int, faults: Collection[Kind] = OF_STREAMS) -> Plan:
    """Draw a plan for a query that reads a stream: a file of the plan stands for the rows that one round adds.

    Its micro-batches and partitions differ at each start, so some traps are at places that no task reaches.
    """
    shape = Rows(ROUNDS, rows // ROUNDS, 1)
    plan = _draw(seed, shape, record_batch, faults)
    dice = random.Random(f"{seed} losses")
    losses = [0] * ROUNDS
    if "trim" in faults and dice.random() < 0.6:
        # Not for the first round: a query that starts with the oldest entry does not miss those before it.
        losses[1:] = [dice.choice((0, dice.randint(1, shape.rows_per_file - 1))) for _ in losses[1:]]
    traps = (
        trap if trap.kind == "commit" else dataclasses.replace(trap, partition=dice.randrange(3)) for trap in plan.traps
    )
    return dataclasses.replace(plan, traps=tuple(traps), losses=tuple(losses))


def make_plan(seed: int, rows: int, record_batch: int, faults: Collection[Kind] = OF_FILES) -> Plan:
    """Draw a plan.

    Args:
        seed: The same seed draws the same plan.
        rows: The approximate number of rows: they are divided into whole files.
        record_batch: Rows of a record batch.
        faults: The kinds of faults that may be drawn.
    """
    files_per_batch = random.Random(f"{seed} rows").randint(2, 5)
    return _draw(seed, Rows(20, rows // 20, files_per_batch), record_batch, faults)


def _draw(seed: int, shape: Rows, record_batch: int, faults: Collection[Kind]) -> Plan:
    # Strings seed a generator the same way in every version of Python; each kind draws from a separate generator, so
    # leaving one out does not change the others.
    dice = {name: random.Random(f"{seed} {name}") for name in KINDS}
    record_batches = -(-shape.rows_per_file // record_batch)
    strikes: list[Strike] = []
    traps: list[Trap] = []
    if "driver" in faults:
        strikes += [_driver(dice["driver"], shape) for _ in range(dice["driver"].choice((1, 1, 2, 2, 3)))]
    if "worker" in faults:
        strikes += [_strike(dice["worker"], "worker", shape) for _ in range(dice["worker"].randint(0, 2))]
        traps += [_trap(dice["worker"], "worker", shape, record_batches) for _ in range(dice["worker"].randint(1, 2))]
    if "task" in faults:
        traps += [_trap(dice["task"], "task", shape, record_batches) for _ in range(dice["task"].randint(1, 3))]
    if "commit" in faults:
        batches = dice["commit"].sample(range(shape.batches), dice["commit"].randint(0, 2))
        traps += [Trap("commit", batch, 0, dice["commit"].choice((0, None))) for batch in batches]
    if "server" in faults:
        strikes += [_server(dice["server"], shape) for _ in range(dice["server"].randint(1, 2))]
    if "trim" in faults:
        strikes += [_strike(dice["trim"], "trim", shape) for _ in range(dice["trim"].randint(1, 3))]
    if "master" in faults:
        strikes += [_of_stream(dice["master"], "master", shape) for _ in range(dice["master"].randint(1, 2))]
    if "move" in faults:
        strikes += [_of_stream(dice["move"], "move", shape) for _ in range(dice["move"].randint(1, 4))]
    return Plan(seed, shape, tuple(sorted(strikes, key=lambda strike: _position(strike, shape))), tuple(traps))


def _position(strike: Strike, rows: Rows) -> float:
    """The approximate progress of the stream, from 0 to 1, when a strike is due."""
    if strike.when == "start":
        return 0.0
    return strike.at / (rows.count if strike.when == "rows" else rows.batches)


def _strike(dice: random.Random, kind: Kind, rows: Rows) -> Strike:
    """Draw a strike: usually during writing, sometimes at the edges of a micro-batch, where checkpoints are written."""
    when = dice.choices(("rows", "offsets", "commits"), (6, 2, 1))[0]
    if when == "rows":
        return Strike(kind, "rows", dice.randint(1, rows.count - 1), dice.choice((0.0, 0.0, 0.02, 0.1)))
    return Strike(kind, "offsets" if when == "offsets" else "commits", dice.randrange(rows.batches), dice.random() / 2)


def _driver(dice: random.Random, rows: Rows) -> Strike:
    drawn = _strike(dice, "driver", rows)
    if dice.random() < 0.1:
        drawn = Strike("driver", "start", 1, dice.random() * 2)
    freeze = dice.choice((0.05, 0.3)) if drawn.when == "rows" and dice.random() < 0.4 else 0.0
    return Strike("driver", drawn.when, drawn.at, drawn.delay, dice.random() < 0.5, freeze)


def _server(dice: random.Random, rows: Rows) -> Strike:
    drawn = _strike(dice, "server", rows)
    return Strike("server", drawn.when, drawn.at, drawn.delay, downtime=dice.choice((0.0, 0.2, 1.0)))


def _of_stream(dice: random.Random, kind: Kind, rows: Rows) -> Strike:
    drawn = _strike(dice, kind, rows)
    stream, way = dice.randrange(STREAMS), dice.choice(WAYS)
    downtime = dice.choice((0.0, 0.2, 1.0))
    return Strike(kind, drawn.when, drawn.at, drawn.delay, downtime=downtime, stream=stream, way=way)


def _trap(dice: random.Random, kind: Kind, rows: Rows, record_batches: int) -> Trap:
    batch = dice.randrange(rows.batches)
    after = None if dice.random() < 0.25 else dice.randint(1, record_batches)
    files = min(rows.files_per_batch, rows.files - batch * rows.files_per_batch)
    return Trap(kind, batch, dice.randrange(files), after)
