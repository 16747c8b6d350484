"""Readers that lie once: each lie must be found."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import pyarrow as pa

from headrace import CommandError, DataLossError, HeadraceError, ReadBatch, Reader, StreamReplacedError


@dataclass(frozen=True)
class Batch:
    """A batch, some of whose attributes may be lies."""

    table: pa.RecordBatch
    stream: bytes
    position: str
    lost: int
    is_lost_exact: bool

    def __arrow_c_array__(self, requested_schema: object = None) -> Any:
        return self.table.__arrow_c_array__(requested_schema)


def _batch_of(batch: ReadBatch) -> Batch:
    return Batch(pa.record_batch(batch), batch.stream, batch.position, batch.lost, batch.is_lost_exact)


def _changed(error: DataLossError, *, lost: int, exact: bool = True) -> DataLossError:
    return DataLossError(str(error), stream=error.stream, lost=lost, exact=exact, position=error.position)


class LyingReader:
    """Passes on what a reader says, but for the results that its lie changes."""

    def __init__(self, reader: Reader, lie: Lie) -> None:
        self.reader, self.lie = reader, lie
        #: What is returned before the reader is asked again.
        self.ready: list[Batch] = []
        #: What is raised before it is asked again.
        self.again: HeadraceError | None = None
        self.extra = 0

    def read(self, timeout: float | None = None) -> Batch | None:
        if self.ready:
            return self.ready.pop(0)
        if self.again:
            error, self.again = self.again, None
            raise error
        try:
            batch = self.reader.read(timeout)
        except DataLossError as error:
            if changed := self.lie.of_loss(error):
                raise changed from None
            return self.read(timeout)
        except (CommandError, StreamReplacedError) as error:
            self.again = self.lie.of_refusal(error)
            raise
        if batch is None:
            return None
        return self.lie.of_batch(_batch_of(batch))

    @property
    def position(self) -> str:
        return self.reader.position

    @property
    def lost(self) -> int:
        return self.reader.lost + self.extra

    @property
    def is_lost_exact(self) -> bool:
        return self.reader.is_lost_exact

    @property
    def is_finished(self) -> bool:
        return self.reader.is_finished and not self.ready

    def drop_stream(self, stream: bytes) -> None:
        if not self.lie.of_drop():
            self.reader.drop_stream(stream)

    def close(self) -> None:
        self.reader.close()


class Lie:
    """The truth. A lie replaces some of the methods, and asks `now` whether this is its moment."""

    #: Whether a reader lies once. Few positions are used, so a lie in a position is repeated.
    is_single = True

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(f"lie/{seed}")
        self.is_told = False
        #: The reader that was created last.
        self.reader: LyingReader

    def now(self) -> bool:
        if (self.is_told and self.is_single) or self._rng.random() < 0.5:
            return False
        self.is_told = True
        return True

    def open(self, *arguments: Any, **options: Any) -> Reader:
        self.reader = LyingReader(Reader(*arguments, **options), self)
        return cast(Reader, self.reader)

    def of_batch(self, batch: Batch) -> Batch | None:
        return batch

    def of_loss(self, error: DataLossError) -> DataLossError | None:
        return error

    def of_refusal(self, error: HeadraceError) -> HeadraceError | None:  # noqa: ARG002, lies use it
        """What is raised next."""
        return None

    def of_drop(self) -> bool:
        """Whether nothing is done."""
        return False


class SkipBatch(Lie):
    def of_batch(self, batch: Batch) -> Batch | None:
        return self.reader.read(0.1) if self.now() else batch


class RepeatBatch(Lie):
    def of_batch(self, batch: Batch) -> Batch | None:
        self.reader.ready += [batch] * self.now()
        return batch


class SkipEntry(Lie):
    """The first entry of a batch is missing."""

    def of_batch(self, batch: Batch) -> Batch | None:
        ids = batch.table.column("entry_id").to_pylist()
        if ids[0] == ids[-1] or not self.now():
            return batch
        return replace(batch, table=batch.table.slice(ids.count(ids[0])))


class SkipRow(Lie):
    """The last row of a batch is missing, and others of its entry are there."""

    def of_batch(self, batch: Batch) -> Batch | None:
        ids = batch.table.column("entry_id").to_pylist()
        if ids.count(ids[-1]) == 1 or not self.now():
            return batch
        return replace(batch, table=batch.table.slice(0, len(ids) - 1))


class _OtherCount(Lie):
    more: int

    def of_batch(self, batch: Batch) -> Batch | None:
        if not batch.lost or not batch.is_lost_exact or not self.now():
            return batch
        self.reader.extra += self.more
        return replace(batch, lost=batch.lost + self.more)

    def of_loss(self, error: DataLossError) -> DataLossError | None:
        if not error.exact or not self.now():
            return error
        self.reader.extra += self.more
        changed = error.lost + self.more
        return _changed(error, lost=changed) if changed else None


class OneTooMany(_OtherCount):
    more = 1


class OneTooFew(_OtherCount):
    more = -1


class LowBound(_OtherCount):
    """A bound is below the truth."""

    def of_loss(self, error: DataLossError) -> DataLossError | None:
        if error.lost < 2 or not self.now():
            return error
        return _changed(error, lost=1, exact=False)

    def of_batch(self, batch: Batch) -> Batch | None:
        return replace(batch, lost=1, is_lost_exact=False) if batch.lost > 1 and self.now() else batch


class SwallowLoss(Lie):
    def of_batch(self, batch: Batch) -> Batch | None:
        return replace(batch, lost=0) if batch.lost and self.now() else batch

    def of_loss(self, error: DataLossError) -> DataLossError | None:
        return None if self.now() else error


class NotExact(Lie):
    """An exact number is called a bound."""

    def of_batch(self, batch: Batch) -> Batch | None:
        return replace(batch, is_lost_exact=False) if batch.lost and batch.is_lost_exact and self.now() else batch

    def of_loss(self, error: DataLossError) -> DataLossError | None:
        if error.exact and self.now():
            return _changed(error, lost=error.lost, exact=False)
        return error


class InventLoss(Lie):
    def of_batch(self, batch: Batch) -> Batch | None:
        if not self.now():
            return batch
        self.reader.ready.append(batch)
        raise DataLossError("invented", stream=batch.stream, lost=1, exact=True, position=self.reader.position)


class InventReplacement(Lie):
    def of_batch(self, batch: Batch) -> Batch | None:
        if not self.now():
            return batch
        raise StreamReplacedError("invented", stream=batch.stream)


class RefuseAgain(Lie):
    """A stream is reported twice."""

    def of_refusal(self, error: HeadraceError) -> HeadraceError | None:
        return error if self.now() else None


class NameNothing(Lie):
    """A refusal does not say which stream it is about."""

    def of_refusal(self, error: HeadraceError) -> HeadraceError | None:
        if isinstance(error, CommandError) and self.now():
            error.stream = b""
        return None


class KeepStream(Lie):
    """A stream that is dropped is read."""

    def of_drop(self) -> bool:
        return self.now()


class PositionAhead(Lie):
    """The position of a batch is that of the next one."""

    is_single = False

    def of_batch(self, batch: Batch) -> Batch | None:
        if not self.now() or not (following := self.reader.read(0.1)):
            return batch
        self.reader.ready.insert(0, following)
        return replace(batch, position=following.position)


class PositionBehind(Lie):
    """The position of a batch is that of the reader when it was opened."""

    is_single = False
    first = ""

    def open(self, *arguments: Any, **options: Any) -> Reader:
        reader = super().open(*arguments, **options)
        self.first = reader.position
        return reader

    def of_batch(self, batch: Batch) -> Batch | None:
        return replace(batch, position=self.first) if self.now() else batch


LIES: dict[str, Callable[[int], Lie]] = {
    "skip a batch": SkipBatch,
    "repeat a batch": RepeatBatch,
    "skip an entry": SkipEntry,
    "skip a row": SkipRow,
    "count one too many": OneTooMany,
    "count one too few": OneTooFew,
    "report a low bound": LowBound,
    "swallow a loss": SwallowLoss,
    "call it a bound": NotExact,
    "invent a loss": InventLoss,
    "invent a replacement": InventReplacement,
    "refuse a stream again": RefuseAgain,
    "do not name a stream": NameNothing,
    "keep a stream that is dropped": KeepStream,
    "store a position ahead": PositionAhead,
    "store a position behind": PositionBehind,
}
