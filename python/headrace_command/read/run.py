"""`headrace read`."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from headrace_command.absent import absent, is_absent
from headrace_command.exit_code import ExitCode, UsageError
from headrace_command.output import Messages
from headrace_command.read.printer import Entry, Printer, Rows
from headrace_command.read.span import Span, span_of
from headrace_command.run import Run

if TYPE_CHECKING:
    from headrace import Endpoint, ReadBatch, Reader
    from headrace.reader import ReaderOptions

__all__ = ["run"]

#: How long `--follow` waits for an unreachable server, in seconds.
_PATIENCE = 86_400.0
#: How many of the entries that cannot be unpacked are named.
_NAMED = 10


def run(run: Run) -> ExitCode:
    """Print the entries."""
    arguments = run.arguments
    if arguments.payload and (arguments.output != "text" or (arguments.fields and not arguments.unpack)):
        raise UsageError("--payload prints bare payloads: leave out -o and --fields")
    if arguments.follow and arguments.output == "json":
        raise UsageError("--follow has no end, and -o json is one document: use -o jsonl")
    if arguments.unpack == "payload" and arguments.fields:
        raise UsageError("--fields chooses members of --unpack json and columns of --unpack arrow_ipc")
    streams = [os.fsencode(stream) for stream in arguments.streams]
    if b"" in streams:
        raise UsageError("STREAM must be a non-empty key")
    endpoint = run.endpoint(streams[0])
    if endpoint.shards and len(streams) > 1:
        raise UsageError("--shards needs a single stream")
    reading = _Reading(run, endpoint, streams)
    with _shown(run.messages):
        return reading.print_all(span_of(arguments, endpoint))


class _Reading:
    """Reads entries, and prints them as they arrive."""

    def __init__(self, run: Run, endpoint: Endpoint, streams: list[bytes]) -> None:
        arguments = run.arguments
        self._run = run
        self._endpoint = endpoint
        self._streams = None if endpoint.shards else streams
        fields = None if arguments.fields is None else arguments.fields.split(",")
        unpack = arguments.unpack or ("payload" if arguments.payload else None)
        self._rows = None if unpack is None else Rows(unpack, arguments.payload_field, fields)
        names_stream = len(streams) > 1 or bool(endpoint.shards)
        self._printer = Printer(run.output, fields, names_stream=names_stream)
        self._is_plain = (
            arguments.output == "jsonl" and unpack is None and fields is None and not run.output.is_terminal
        )
        self._bad = 0
        self._has_line_ends = False
        self._is_empty = True
        self._notices: list[str] = []

    def print_all(self, span: Span) -> ExitCode:
        """Print the entries of the span."""
        if span.last is not None:
            span = self._before_the_end(span, span.last)
        flushes = self._run.arguments.follow or self._run.output.is_terminal
        show = self._shower()
        self._printer.begin()
        with self._reader(span, follows=self._run.arguments.follow) as reader:
            try:
                for batch in reader:
                    self._is_empty = False
                    show(batch)
                    if flushes:
                        self._run.output.flush()
            finally:
                self._printer.end()
            return self._ended(reader)

    def _reader(self, span: Span, *, follows: bool) -> Reader:
        from headrace import Reader, RetryPolicy

        noticed = self._noticed

        class Noticing(Reader):
            def _notice(self, text: str, /) -> None:
                noticed(text)

        options: ReaderOptions = {
            # What `admin.entries` and `admin.json_lines` need.
            "metadata": ["entry_id", "entry_ms"],
            "fields_as": "list",
            "on_loss": "report",
            "start": span.start,
            "end": span.end,
            "reverse": span.reverse,
            "limit": span.limit,
            "retry": RetryPolicy(deadline=_PATIENCE) if follows else None,
        }
        return Noticing(self._endpoint, self._streams, **options)

    def _before_the_end(self, span: Span, last: int) -> Span:
        """The same span, starting at the last entries, which are found by reading backwards from the end."""
        backward = Span("latest" if span.end in (None, "latest") else str(span.end), "earliest", True, last, None)
        first = None
        with self._reader(backward, follows=False) as reader:
            for batch in reader:
                first = batch.last_id
        return span._replace(start="latest" if first is None and self._run.arguments.follow else first or "earliest")

    def _shower(self) -> Callable[[ReadBatch], None]:
        from headrace.admin import json_lines

        if self._is_plain:
            return lambda batch: self._run.output.payload(json_lines(batch), end=b"")
        return self._show_entries if self._rows is None else self._show_rows

    def _show_entries(self, batch: ReadBatch) -> None:
        from headrace.admin import entries

        stream = batch.stream
        for entry in entries(batch):
            self._printer.entry(stream, Entry(*entry))

    def _show_rows(self, batch: ReadBatch) -> None:
        from headrace import HeadraceError
        from headrace.admin import entries

        assert self._rows is not None
        is_bare, is_terminal, stream = self._run.arguments.payload, self._run.output.is_terminal, batch.stream
        for values in entries(batch):
            entry = Entry(*values)
            try:
                rows = self._rows.of(entry)
            except (HeadraceError, ValueError) as error:
                self._name_bad(stream, entry, error)
                continue
            for place, row in enumerate(rows):
                if is_bare:
                    self._has_line_ends = self._has_line_ends or (not is_terminal and b"\n" in row.payload)
                    self._run.output.payload(row.payload)
                else:
                    self._printer.row(stream, entry, place, row)

    def _name_bad(self, stream: bytes, entry: Entry, error: Exception) -> None:
        self._bad += 1
        if self._bad <= _NAMED:
            key = stream.decode(errors="surrogateescape")
            self._run.messages.warn(f"{key} {entry.id} cannot be unpacked, and is left out: {error}")

    def _noticed(self, text: str) -> None:
        """Warn of what the reader noticed; at the end, unless that may never come."""
        if self._run.arguments.follow and text not in self._notices:
            self._run.messages.warn(text)
        self._notices.append(text)

    def _say_empty(self) -> bool:
        """Say which streams do not exist, and that the others have no entries to print. Return whether one does not."""
        from headrace.admin import Commands

        given, empty, is_one_absent = self._run.arguments, [], False
        with closing(Commands(self._endpoint)) as commands:
            for name in given.streams:
                key = os.fsencode(name)
                (info,) = commands.call([(key, [b"XINFO", b"STREAM", key])], writes=False)
                if is_absent(info) and not self._endpoint.shards:
                    is_one_absent = True
                    self._run.messages.error(absent(commands, key))
                else:
                    empty.append(name)
        if empty:
            has_ends = any(end is not None for end in (given.start, given.since, given.end))
            self._run.messages.say(f"no entries in {', '.join(empty)}{' within this range' if has_ends else ''}")
        return is_one_absent

    def _ended(self, reader: Reader) -> ExitCode:
        messages = self._run.messages
        is_one_absent = bool(self._notices)
        if self._is_empty and not reader.lost:
            is_one_absent = self._say_empty()
        else:
            for text in self._notices:
                messages.error(text)
        if self._has_line_ends:
            messages.warn("some payloads contain line ends, and span several lines here: -o jsonl keeps them apart")
        if self._bad > _NAMED:
            messages.warn(f"{self._bad:,} entries could not be unpacked, and were left out")
        if reader.lost:
            most = "" if reader.is_lost_exact else "at most "
            messages.error(f"{most}{reader.lost:,} entries were trimmed before they were read")
        return ExitCode.FAILED if reader.lost or self._bad or is_one_absent else ExitCode.OK


class _Handler(logging.Handler):
    def __init__(self, messages: Messages) -> None:
        super().__init__(logging.WARNING)
        self._messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        self._messages.warn(record.getMessage())


@contextmanager
def _shown(messages: Messages) -> Iterator[None]:
    """Write the records of the logger `headrace` and Python's warnings to stderr as messages."""
    handler = _Handler(messages)
    logger = logging.getLogger("headrace")
    logger.addHandler(handler)
    logger.propagate = False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = lambda message, *_, **__: messages.warn(str(message))
            yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = True
