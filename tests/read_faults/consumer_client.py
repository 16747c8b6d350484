"""Consumer and AsyncConsumer as a service uses them: commit, acknowledge, and continue after every documented error."""

from __future__ import annotations

import random
import threading
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace import AsyncConsumer, Consumer, ConsumerBatch, GroupMissingError, LeaseLostError, RetryPolicy
from headrace.errors import CommandError, ConnectionFailedError
from support.on_a_loop import OnALoop

from .client_base import DEAD_LETTERS, GROUP, Config, Control, Ended, failed, pairs_of
from .journal import Acked, Closed, Done, Handed, Journal, Kept, LeaseLost, Opened, Returned, Row, digest
from .ledger import is_poison

#: The maximum number of batches that wait for their turn while others are read.
_MOST_WAITING = 3
#: The maximum delay of an entry that failed or was released.
LONGEST_DELAY = 0.05

Name = tuple[str, str]


def consume(config: Config, journal: Journal, control: Control) -> None:
    """Read through the group until everything was read; release the rest."""
    rng = random.Random(config.seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a second process with the same name
        while not control.is_last():
            control.step("begin")
            try:
                consumer = _consumer(config, rng)
            except (ConnectionFailedError, CommandError) as error:
                failed(journal, error)
                continue
            journal.add(Opened())
            _Worker(config, journal, control, consumer, rng).work()
    raise Ended


def _consumer(config: Config, rng: random.Random) -> Any:
    options = _options(config, rng)
    if config.client == "async-consumers":
        return OnALoop(AsyncConsumer(config.endpoint(), config.keys, **options), rng)
    return Consumer(config.endpoint(), config.keys, **options)


def _options(config: Config, rng: random.Random) -> dict[str, Any]:
    rules = config.rules
    return {
        "group": GROUP,
        "consumer": config.consumer,
        "min_idle": rules.min_idle,
        "max_failures": rules.max_failures,
        "dead_letter_key": None if rules.max_failures is None else DEAD_LETTERS,
        "batch_rows": rng.choice([1, 7, 100, 1_000]),
        "batch_bytes": rng.choice([1_000, 16 << 20]),
        "page_bytes": rng.choice([1, 3_000, 100_000, 1 << 20]),
        "block": rng.choice([0.01, 0.05, 1.0]),
        "linger": rng.choice([0.0, 0.002, 0.005]),
        "claim_interval": rng.choice([None, 0.02]),
        "retry": rng.choice([None, RetryPolicy(max_attempts=1), RetryPolicy(deadline=1.0, max_backoff=0.05)]),
        "fields_as": rng.choice(["map", "list"]),
        "names": "binary",
        "metadata": ["stream", "entry_id", "deliveries", "reclaimed"],
    }


@dataclass
class _Batch:
    """A batch, and the rows that are still to be processed."""

    batch: ConsumerBatch
    rows: list[Row]
    poison: list[bool]
    left: list[bool]

    def names(self, mask: Sequence[bool]) -> tuple[Name, ...]:
        return tuple((key, entry_id) for (key, entry_id, _), named in zip(self.rows, mask, strict=True) if named)


class _Worker:
    """The life of one consumer."""

    def __init__(self, config: Config, journal: Journal, control: Control, consumer: Any, rng: random.Random) -> None:
        self._config = config
        self._journal = journal
        self._control = control
        self._consumer = consumer
        self._rng = rng
        self._waiting: list[_Batch] = []
        self._lost = 0

    def work(self) -> None:
        """Work until everything was read, or until another consumer must be created."""
        releases = True
        while not self._control.is_last():
            try:
                self._turn()
            except GroupMissingError as error:
                failed(self._journal, error)
                releases = False
                break
            except (ConnectionFailedError, CommandError) as error:
                failed(self._journal, error)
                if self._rng.random() < 0.2:
                    break
            finally:
                self._count_lost()
        self._journal.add(Closed(time.monotonic()))
        self._control.step("close")
        try:
            self._consumer.close(release=releases)
        except (ConnectionFailedError, CommandError, GroupMissingError) as error:
            failed(self._journal, error)
        self._count_lost()

    def _count_lost(self) -> None:
        lost = self._consumer.report().lost
        if lost > self._lost:
            self._journal.add(Done((), lost=lost - self._lost, exact=False))
            self._lost = lost

    def _turn(self) -> None:
        self._control.step("poll")
        batch = self._consumer.poll(self._rng.choice([0.0, 0.05, 0.2]))
        if batch is not None:
            taken = self._take(batch)
            if len(self._waiting) < _MOST_WAITING and self._rng.random() < 0.05:
                self._waiting.append(taken)
            else:
                self._process(taken)
        elif self._waiting:
            self._process(self._waiting.pop(0))

    def _take(self, batch: ConsumerBatch) -> _Batch:
        at = time.monotonic()
        table = pa.record_batch(batch).to_pydict()
        pairs = [list(pairs_of(fields)) for fields in table["fields"]]
        keys, ids = table["stream"], table["entry_id"]
        poisons = self._config.rules.max_failures is not None
        taken = _Batch(
            batch,
            [(key, entry_id, digest(each)) for key, entry_id, each in zip(keys, ids, pairs, strict=True)],
            [poisons and is_poison(dict(each)) for each in pairs],
            [True] * batch.num_rows,
        )
        again = [count > 1 for count in table["deliveries"]]
        reclaimed = any(table["reclaimed"])
        for is_again in (False, True):
            if names := taken.names([each == is_again for each in again]):
                self._journal.add(Handed(names, is_again, reclaimed, at))
        self._control.step("handed out")
        return taken

    def _process(self, taken: _Batch) -> None:
        draw = self._rng.random()
        if draw < 0.05:
            self._release(taken, [self._rng.random() < 0.5 for _ in taken.rows])
        elif draw < 0.07:
            # May be longer than the lease, which is renewed.
            time.sleep(self._rng.uniform(0.1, 1.5) * self._config.rules.min_idle)
        self._fail_poison(taken)
        if not any(taken.left):
            return
        at = time.monotonic()
        if self._rng.random() < 0.9:
            try:
                taken.batch.check()
            except LeaseLostError as error:
                key = error.stream.decode()
                self._journal.add(LeaseLost(tuple((key, entry_id) for entry_id in error.entry_ids)))
                self._control.step("lease lost")
                self._release(taken, taken.left)
                return
            self._journal.add(Kept(taken.names(taken.left), at))
        self._commit(taken)

    def _fail_poison(self, taken: _Batch) -> None:
        mask = [is_left and poison for is_left, poison in zip(taken.left, taken.poison, strict=True)]
        if any(mask):
            self._journal.add(Returned(taken.names(mask)))
            delay = self._rng.choice([0.0, LONGEST_DELAY])
            self._consumer.fail(taken.batch, "poison", mask=mask, delay=delay)
            taken.left = _without(taken.left, mask)
            self._control.step("failed")

    def _release(self, taken: _Batch, mask: Sequence[bool]) -> None:
        mask = [is_left and named for is_left, named in zip(taken.left, mask, strict=True)]
        if any(mask):
            self._journal.add(Returned(taken.names(mask)))
            delay = self._rng.choice([0.0, LONGEST_DELAY])
            self._consumer.release(taken.batch, mask=mask, delay=delay)
            taken.left = _without(taken.left, mask)
            self._control.step("released")

    def _commit(self, taken: _Batch) -> None:
        """Process the remaining rows in one or two transactions, and acknowledge the rows of each after it."""
        first = [is_left and self._rng.random() < 0.5 for is_left in taken.left]
        parts = [taken.left] if self._rng.random() < 0.7 else [first, _without(taken.left, first)]
        for mask in parts:
            if not any(mask):
                continue
            rows = tuple(row for row, named in zip(taken.rows, mask, strict=True) if named)
            self._journal.add(Done(rows))
            self._control.step("committed")
            self._journal.add(Acked(taken.names(mask)))
            self._ack(taken, mask)
            self._control.step("acknowledged")
        if self._rng.random() < 0.1:
            self._consumer.flush(timeout=0.2)
            self._control.step("flushed")

    def _ack(self, taken: _Batch, mask: list[bool]) -> None:
        draw = self._rng.random()
        if draw < 0.2:
            by_key: dict[str, list[str]] = {}
            for key, entry_id in taken.names(mask):
                by_key.setdefault(key, []).append(entry_id)
            for key, ids in by_key.items():
                self._consumer.ack_ids(key, ids)
        elif draw < 0.3:
            thread = threading.Thread(target=self._consumer.ack, args=(taken.batch, mask))
            thread.start()
            thread.join()
        elif all(mask):
            self._consumer.ack(taken.batch)
        else:
            self._consumer.ack(taken.batch, mask)


def _without(mask: Sequence[bool], other: Sequence[bool]) -> list[bool]:
    return [is_left and not named for is_left, named in zip(mask, other, strict=True)]
