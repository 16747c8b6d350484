"""`headrace send`."""

from __future__ import annotations

import os
import re
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from typing import TYPE_CHECKING

from headrace_command.exit_code import ExitCode, UsageError
from headrace_command.options import producer_options, with_flags
from headrace_command.run import Run
from headrace_command.send.batches import Batches, BatchRows
from headrace_command.send.csv_rows import CsvRows
from headrace_command.send.form import HEAD, check_head, form_of
from headrace_command.send.inputs import Input, inputs_of, without_compression
from headrace_command.send.json_rows import JsonRows
from headrace_command.send.letters import Letters
from headrace_command.send.records import Records
from headrace_command.send.rows import Block, Layout, RawRows, Rows
from headrace_command.send.sender import Sender, StoppedError
from headrace_command.send.tally import BAD_ROW, Progress, Tally
from headrace_command.text import count, printable

if TYPE_CHECKING:
    from headrace import Dispatcher, Endpoint

__all__ = ["run"]

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_LARGEST_ROW = 512 << 20
#: A block of a resumable import: at most 16 MiB, including the read that ends it.
_BLOCK_BYTES = 15 << 20
_TOKEN_TTL = 86_400
#: Seconds to wait for outcomes after a signal.
_LAST_FLUSH = 5.0


def run(run: Run) -> ExitCode:
    """Send the rows, and report their outcomes."""
    from headrace import HeadraceError

    arguments = run.arguments
    inputs = inputs_of(arguments.files)
    form = arguments.format or form_of([without_compression(file.name) for file in inputs])
    max_row_bytes = _bytes(arguments.max_row_bytes)
    rows = _rows(arguments, form, max_row_bytes)
    source = _source(inputs, form, arguments, max_row_bytes)
    of_endpoint, of_dispatcher = producer_options(arguments)
    endpoint = run.endpoint(run.stream, of_endpoint)
    if any(file.is_terminal for file in inputs):
        run.messages.say("rows are read from the terminal, one per line: Ctrl-D ends them")
    tally = Tally()
    progress = Progress(run.messages, arguments.progress, _total(inputs))
    with ExitStack() as resources:
        dispatcher = resources.enter_context(_dispatcher(endpoint, arguments, of_dispatcher))
        letters = _letters(run, tally)
        if letters is not None:
            resources.callback(letters.close)
        linger = arguments.linger if any(file.size is None for file in inputs) else 0.0
        sender = Sender(
            dispatcher,
            rows,
            letters,
            tally,
            stops=arguments.on_bad_row == "stop",
            resumes=arguments.exactly_once is not None,
            linger=linger,
        )
        blocks = _shown(source, sender, tally, progress)
        code, is_stopped = ExitCode.OK, False
        try:
            if arguments.exactly_once is None:
                sender.send_all(blocks)
            else:
                # What they import takes longer than sending a row.
                from headrace_command.send.checkpoint import Checkpoints
                from headrace_command.send.resumed import ResumedImport

                options = _reading(arguments, form, inputs)
                ttl = int(of_dispatcher.get("token_ttl", _TOKEN_TTL))
                with closing(Checkpoints(endpoint, run.stream, arguments.exactly_once, options, ttl)) as checkpoints:
                    run.messages.say(f"until {checkpoints.until} it can be resumed, with the same --exactly-once")
                    resumed = ResumedImport(dispatcher, sender, rows, checkpoints, arguments.exactly_once, tally)
                    resumed.send(blocks)
        except StoppedError:
            is_stopped = True
        except (UsageError, HeadraceError) as error:
            code = _broken_off(run, sender, tally, error)
        except KeyboardInterrupt:
            code = _interrupted(run, sender)
        finally:
            progress.finish()
    _say(run, tally, progress, is_stopped=is_stopped)
    return ExitCode.worst(code, tally.exit_code)


def _shown(source: Records | Batches, sender: Sender, tally: Tally, progress: Progress) -> Iterator[Block | None]:
    """The blocks of a source, with progress after each."""
    for block in source.blocks():
        yield block
        progress.show(tally.delivered + sender.open, tally.compared, source.bytes_read)


def _broken_off(run: Run, sender: Sender, tally: Tally, error: Exception) -> ExitCode:
    """Wait for the outcomes of what was sent before. If no row was sent, the error is raised as usual.

    Raises:
        Exception: `error`.
    """
    from headrace import CommandError, ConnectionFailedError

    with suppress(StoppedError):
        sender.settle()
    if not tally.delivered and not tally.failed:
        raise error
    run.messages.error(str(error))
    is_of_server = isinstance(error, ConnectionFailedError | CommandError)
    return ExitCode.NO_CONNECTION if is_of_server else ExitCode.FAILED


def _interrupted(run: Run, sender: Sender) -> ExitCode:
    """Wait briefly for the rows without an outcome."""
    rows = count(sender.open, "row")
    run.messages.say(f"interrupted: waiting for the outcomes of {rows}; a second signal ends the command immediately")
    with suppress(StoppedError):
        sender.settle(_LAST_FLUSH)
    sender.reconcile()
    return run.signals.exit_code


def _say(run: Run, tally: Tally, progress: Progress, *, is_stopped: bool) -> None:
    from headrace.tables import advice, advised

    shown = _causes(tally)
    for place, code, message in shown:
        text, remedy = advised(code, message), advice(code, message)
        text = f"{code}: {text if remedy is None else text.replace(remedy, with_flags(remedy))}"
        # A row is not at fault if its server is away or refuses the user.
        of_others = f"{text}; the first row without an entry is {place}"
        run.messages.error(f"{place}: {text}" if _is_of_row(code) else of_others)
    if (more := tally.failures - len(shown)) > 0:
        run.messages.error(f"… and {more:,} more")
    if is_stopped and not tally.unreachable:
        run.messages.say(_stopped(run, tally))
    if run.output.form == "text":
        seconds = progress.seconds
        run.messages.say(f"{tally} in {seconds:,.1f} s" if seconds >= 1 else f"{tally} in {seconds * 1000:.0f} ms")
    else:
        run.output.row(tally.to_json())
    if tally.dead_letters:
        key = printable(_letters_key(run))
        run.messages.say(f"the dead letters are in {key}: headrace dead-letters list shows them")


def _causes(tally: Tally) -> list[tuple[str, str, str]]:
    """The first failures. A cause other than a row, and a type that consecutive rows do not have, is shown once."""
    shown: dict[tuple[object, ...], tuple[str, str, str]] = {}
    for number, (place, code, message) in enumerate(tally.first):
        cause: tuple[object, ...] = (place, code) if _is_of_row(code) else (code, message)
        if message.startswith("column "):
            file, _, line = place.rpartition(":")
            cause = (message.partition(": ")[0], file, int(line) - number)
        shown.setdefault(cause, (place, code, message))
    return list(shown.values())


def _is_of_row(code: str) -> bool:
    from headrace.tables import ROW_CODES

    return code == BAD_ROW or code in ROW_CODES


def _stopped(run: Run, tally: Tally) -> str:
    """Where it stopped, and how to continue."""
    is_of_row = any(map(_is_of_row, tally.failed))
    if run.arguments.exactly_once is None and is_of_row:
        return "stopped at the first bad row: the rest was not sent; with --on-bad-row skip or dead-letter it is"
    if run.arguments.exactly_once is None:
        return "stopped where the server refused a row: the rest was not sent"
    if run.arguments.on_bad_row == "stop" and is_of_row:
        # Other options are refused.
        return "stopped at the first bad row: the rest was not sent; correct the row, and run the command again"
    return (
        "stopped where the server refused a row: the rest was not sent; run the command again, and it continues there"
    )


def _rows(arguments: Namespace, form: str, max_row_bytes: int) -> Rows:
    """The object that makes rows of the input."""
    payload, fields, json = arguments.payload, _names(arguments.fields), _names(arguments.json)
    key = arguments.shard_key
    if key is not None and "shards" not in arguments:
        raise UsageError("--shard-key needs --shards")
    if form == "lines":
        for name in ("payload", "fields", "json", "shard_key"):
            if getattr(arguments, name) is not None:
                raise UsageError(
                    f"--{name.replace('_', '-')} needs rows with names: --format jsonl, csv, tsv, parquet, arrow"
                )
        return RawRows(max_row_bytes, skips_blank=False)
    if form == "jsonl":
        if payload is None and fields is None and json is None and key is None:
            return RawRows(max_row_bytes, skips_blank=True)
        return JsonRows(max_row_bytes, payload=payload, fields=fields, members=json, shard_key=key)
    layout = Layout(payload, fields, json, key)
    if form in ("csv", "tsv"):
        header = None if arguments.header is None else arguments.header.split(",")
        delimiter, stops = "," if form == "csv" else "\t", arguments.on_bad_row == "stop"
        return CsvRows(max_row_bytes, delimiter, header, _types(arguments.types), layout, stops=stops)
    return BatchRows(layout)


def _source(inputs: Sequence[Input], form: str, arguments: Namespace, max_row_bytes: int) -> Records | Batches:
    if form not in ("csv", "tsv"):
        for name in ("types", "header"):
            if getattr(arguments, name) is not None:
                raise UsageError(f"--{name} is for csv and tsv; the format is {form}")
    if form in ("parquet", "arrow"):
        return Batches(inputs, form)

    def check(file: Input, head: bytes, *, is_all: bool = False) -> None:
        check_head(head[:HEAD], file.name, form, is_given=arguments.format is not None, is_all=is_all)

    for file in inputs:
        if found := file.head(HEAD):
            head, is_all = found
            check(file, head, is_all=is_all)
    return Records(
        inputs,
        max_row_bytes,
        quoted=form in ("csv", "tsv"),
        linger=arguments.linger,
        block_bytes=None if arguments.exactly_once is None else _BLOCK_BYTES,
        check=check,
    )


def _dispatcher(endpoint: Endpoint, arguments: Namespace, options: dict[str, str]) -> Dispatcher:
    from headrace.admin import dispatcher_from_text

    given: dict[str, str | None] = {**options}
    if arguments.retry or any(name.startswith("retry_") for name in options):
        given["retry"] = "true"
    if arguments.exactly_once is not None:
        if "shards" in arguments:
            raise UsageError("--exactly-once is for one stream: not with --shards")
        given["exactly_once"] = "script"
    if arguments.payload_field is not None:
        given["payload_field"] = arguments.payload_field
    if arguments.ts_field is not None:
        given["ts_field"] = arguments.ts_field or None
    return dispatcher_from_text(endpoint, given)


def _letters(run: Run, tally: Tally) -> Letters | None:
    """The stream of dead letters, if bad rows go to one."""
    arguments = run.arguments
    if arguments.on_bad_row != "dead-letter":
        if arguments.dead_letters is not None:
            raise UsageError("--dead-letters needs --on-bad-row dead-letter")
        return None
    return Letters(run.endpoint(_letters_key(run)), run.stream, tally)


def _letters_key(run: Run) -> bytes:
    key = run.arguments.dead_letters
    return run.stream + b":dead" if key is None else os.fsencode(key)


def _reading(arguments: Namespace, form: str, inputs: Sequence[Input]) -> dict[str, object]:
    """How the input is read: a resumed import must read it the same way."""
    names = ("types", "header", "payload", "fields", "json", "max_row_bytes", "payload_field", "ts_field", "on_bad_row")
    options: dict[str, object] = {"format": form, **{name: getattr(arguments, name) for name in names}}
    if form in ("parquet", "arrow"):
        options["sha256"] = [_sha256(file) for file in inputs]
    return options


def _sha256(file: Input) -> str:
    """The hash of a file whose rows have no bytes of their own."""
    import hashlib

    with open(file.path, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _total(inputs: Sequence[Input]) -> int | None:
    sizes = [file.size for file in inputs if file.name == without_compression(file.name)]
    return None if len(sizes) < len(inputs) or None in sizes else sum(size for size in sizes if size is not None)


def _names(text: str | None) -> list[str] | None:
    """Names separated by commas; '*' is all of them, which is an empty list."""
    return None if text is None else [] if text == "*" else [name.strip() for name in text.split(",")]


def _types(text: str | None) -> dict[str, str]:
    types = {}
    for part in text.split(",") if text else []:
        name, found, its = part.partition("=")
        if not found or not name or not its:
            raise UsageError(f"--types must be NAME=TYPE, separated by commas, got {part!r}")
        types[name.strip()] = its.strip()
    return types


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+)([kmg]?)", text.lower())
    size = int(found[1]) * _UNITS[found[2]] if found else 0
    if not 1 <= size <= _LARGEST_ROW:
        raise UsageError(f"--max-row-bytes must be from 1 to 512m, got {text!r}")
    return size
