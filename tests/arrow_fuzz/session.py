"""A dispatcher that runs executions, and the comparison of accepted rows, outcomes and stream content."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import redis

import headrace
from headrace import Dispatcher, Endpoint, HeadraceError
from support.c_arrow import Held
from support.json_rows import read_row

from .execution import Execution

KEY = "fuzz"
#: The text of an error and a log record after a caught panic, which no input may cause.
_DEFECT = "a defect in headrace"


@dataclass(frozen=True)
class Finding:
    """What is wrong with an execution."""

    number: int
    what: str
    execution: str
    details: str


@dataclass(frozen=True)
class _Taken:
    number: int
    rows: int
    execution: Execution


class Session:
    """A dispatcher and the executions since its last flush."""

    def __init__(self, unix_socket: str) -> None:
        self._endpoint = Endpoint(unix_socket=unix_socket, stream_key=KEY)
        self._client: Any = redis.Redis(unix_socket_path=unix_socket)
        self._log = _Log()
        self.findings: list[Finding] = []
        self.counts: Counter[str] = Counter()
        self._begin()

    def run(self, number: int, execution: Execution) -> None:
        """Hand over an execution, and judge the result of the call."""
        expected = _expected(execution)
        ended = self._produce(number, execution)
        if ended is None:
            execution.give_up()
            return
        taken, error = ended
        refused = error is not None
        self.counts[f"{execution.kind}, {'refused' if refused else 'taken'}"] += 1
        if taken not in expected[refused]:
            what = "valid data is refused" if refused and execution.broken is None else "other rows taken"
            wanted = " or ".join(map(str, expected[refused])) or "no such end"
            self._find(number, execution, what, f"{taken} rows, where {wanted} were to be, {error!r}")
        if error is not None:
            self._judge(number, execution, error)
        if execution.twice and not refused:
            ended = self._produce(number, execution)
            if ended and (ended[0] or not isinstance(ended[1], headrace.SchemaError)):
                self._find(number, execution, "capsules that were read are taken", repr(ended))
        if self._log.panics:
            self._find(number, execution, "a panic inside a call", self._log.panics.pop())
        execution.give_up()

    def check(self) -> None:
        """Flush, and compare outcomes with what was taken and with what is in the stream."""
        last = self._taken[-1].number if self._taken else 0
        try:
            report = self._dispatcher.flush()
            outcomes = pa.table(report.to_arrow())
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._findings(last, "flush raises", repr(error))
            self._renew()
            return
        self._compare(outcomes["entry_id"].to_pylist(), outcomes["code"].to_pylist(), last)
        self._client.delete(KEY)
        self._taken.clear()
        for fault in Held.faults:
            self._findings(last, "a wrong release", fault)
        if left := Held.left():
            self._findings(last, "structures that were not released", repr(Counter(left)))
        Held.forget()

    def close(self) -> None:
        """Check what is left, and end."""
        self.check()
        self._dispatcher.close()
        self._client.close()
        self._log.close()

    def _begin(self) -> None:
        self._client.delete(KEY)
        self._dispatcher = Dispatcher(self._endpoint)
        self._taken: list[_Taken] = []

    def _renew(self) -> None:
        """Another dispatcher, after one that does no more."""
        with contextlib.suppress(BaseException):
            self._dispatcher.close()
        self._begin()
        Held.forget()

    def _produce(self, number: int, execution: Execution) -> tuple[int, HeadraceError | None] | None:
        """Make the call: the rows that it took and its error. None: what it raised must leave no call."""
        before = self._dispatcher.unreported
        refused = strange = None
        try:
            self._dispatcher.produce_batch(execution.data, **execution.layout)
        except HeadraceError as error:
            refused = error.with_traceback(None)  # its frames hold the structures
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            strange = error
            self._find(number, execution, f"{type(error).__name__} leaves a call", str(error))
        try:
            taken = self._dispatcher.unreported - before
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._find(number, execution, "the dispatcher is lost", str(error))
            self._renew()
            return None
        self._taken.append(_Taken(number, taken, execution))
        return None if strange else (taken, refused)

    def _judge(self, number: int, execution: Execution, error: HeadraceError) -> None:
        """Whether the error is precise enough."""
        if not isinstance(error, headrace.SchemaError | headrace.ReaderError):
            self._find(number, execution, "an error of another class", repr(error))
        text = str(error)
        if _DEFECT in text:
            self._find(number, execution, "a panic inside a call", text)
        if execution.text not in text:
            self._find(number, execution, "the error leaves out what the source said", text)
        columns = execution.columns
        if None not in columns and not any(str(column) in text for column in columns):
            self._find(number, execution, "the error names no column", text)

    def _compare(self, ids: list[str | None], codes: list[str | None], last: int) -> None:
        total = sum(taken.rows for taken in self._taken)
        if total != len(ids):
            self._findings(last, "outcomes are lost", f"{len(ids)} outcomes of {total} messages")
            return
        entries = {entry_id.decode(): fields for entry_id, fields in self._client.xrange(KEY)}
        delivered = [entry_id for entry_id, _ in itertools.groupby(ids) if entry_id is not None]
        if delivered != list(entries):
            self._findings(last, "the stream has other entries", f"{len(delivered)} delivered, {len(entries)} there")
            return
        at = 0
        for taken in self._taken:
            own, at = slice(at, at + taken.rows), at + taken.rows
            self.counts["rows delivered"] += sum(entry_id is not None for entry_id in ids[own])
            self.counts["rows failed"] += sum(entry_id is None for entry_id in ids[own])
            execution = taken.execution
            if "INTERNAL" in codes[own]:
                self._find(taken.number, execution, "a panic inside a call", "outcomes are INTERNAL")
            if execution.values is None or not taken.rows:
                continue
            failed = [code for code in codes[own] if code is not None]
            if len(failed) != execution.failed:
                self._find(taken.number, execution, "other rows fail", repr(failed))
                continue
            self._compare_values(taken, [entries[one] for one, _ in itertools.groupby(ids[own]) if one is not None])

    def _compare_values(self, taken: _Taken, entries: list[dict[bytes, bytes]]) -> None:
        execution = taken.execution
        got: list[Any]
        try:
            if "arrow_ipc" in execution.layout:
                got = [row for fields in entries for row in pa.table(headrace.unpack_arrow(fields)).to_pylist()]
            elif "fields_from" in execution.layout:
                got = entries
            else:
                got = [payload for fields in entries for payload in headrace.unpack(fields)]
                if "json" in execution.layout:
                    got = [read_row(payload) for payload in got]
        except Exception as error:
            self._find(taken.number, execution, "an entry cannot be read back", repr(error))
            return
        if got != execution.values:
            pairs = itertools.zip_longest(got, execution.values or [])
            first = next(pair for pair in pairs if pair[0] != pair[1])
            self._find(taken.number, execution, "other values", f"{first[0]!r} where {first[1]!r} was to be")

    def _find(self, number: int, execution: Execution, what: str, details: str) -> None:
        self.findings.append(Finding(number, what, str(execution), details[:600]))

    def _findings(self, number: int, what: str, details: str) -> None:
        self.findings.append(Finding(number, what, "one of those since the last flush", details[:600]))


class _Log(logging.Handler):
    """What headrace logs of panics that it caught."""

    def __init__(self) -> None:
        super().__init__()
        self.panics: list[str] = []
        logging.getLogger("headrace").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if _DEFECT in (text := record.getMessage()):
            self.panics.append(text)

    def close(self) -> None:
        logging.getLogger("headrace").removeHandler(self)
        super().close()


def _expected(execution: Execution) -> dict[bool, list[int]]:
    """Rows that may have been taken, if the call refused (True) and if it did not."""
    whole = sum(execution.lengths)
    if execution.broken is None:
        return {False: [whole], True: []}
    before = sum(execution.lengths[: execution.broken])
    if execution.certain or execution.kind in ("failing stream", "odd stream"):
        return {False: [], True: [before]}
    if not any(spoil.startswith("schema.") for spoil in execution.spoils):
        return {False: [whole], True: [before]}
    # Keys and offsets of another width are refused at the record batch where they lead nowhere.
    later = [sum(execution.lengths[:count]) for count in range(execution.broken + 1, len(execution.lengths))]
    return {False: [whole], True: [before, *later]}
