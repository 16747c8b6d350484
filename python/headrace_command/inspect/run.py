"""`headrace inspect`."""

from __future__ import annotations

import os
import time
from datetime import datetime
from typing import TYPE_CHECKING

from headrace_command.absent import absent
from headrace_command.exit_code import ExitCode, UsageError
from headrace_command.inspect.command_line import CommandLine, address_of, own_options
from headrace_command.inspect.diagnosis import diagnose
from headrace_command.inspect.facts import Look, compare, sharing
from headrace_command.inspect.look import look
from headrace_command.inspect.report import document, lines
from headrace_command.run import Run
from headrace_command.text import count, duration

if TYPE_CHECKING:
    from headrace import Endpoint

__all__ = ["run"]

_DAY = 86_400
#: The most groups that are named if the requested one does not exist.
_MOST_NAMED = 10


def run(run: Run) -> ExitCode:
    """Look at the stream once, or repeatedly."""
    arguments = run.arguments
    if arguments.watch is not None and arguments.output == "json":
        raise UsageError("--watch has no end, and -o json is one document: use -o jsonl")
    for option in ("watch", "sample", "stuck_after"):
        value = getattr(arguments, option)
        least = 0 if option == "sample" else 0.001
        if value is not None and not least <= value <= _DAY:
            name = option.replace("_", "-")
            raise UsageError(f"--{name} must be from {least:g} to {_DAY} seconds, got {value:g}")
    if not run.stream:
        raise UsageError("STREAM must be a non-empty key")
    endpoint = run.endpoint(run.stream)
    inspection = _Inspection(run, endpoint)
    if arguments.watch is not None:
        inspection.watch(arguments.watch)
    return inspection.once(arguments.sample)


class _Inspection:
    """Looks at the streams of an endpoint, and shows what it finds."""

    def __init__(self, run: Run, endpoint: Endpoint) -> None:
        from headrace.admin import Commands, Survey

        arguments = run.arguments
        self._run = run
        self._keys = endpoint.stream_keys
        self._commands = Commands(endpoint)
        self._survey = Survey(endpoint)
        self._endpoint = endpoint
        self._own = own_options(arguments, endpoint)
        self._group = None if arguments.group is None else os.fsencode(arguments.group)
        self._dead_key = (
            run.stream + b":dead" if arguments.dead_letters is None else os.fsencode(arguments.dead_letters)
        )
        self._before: dict[bytes, Look] = {}

    def once(self, sample: float) -> ExitCode:
        """Look, wait, look again to get the rates, and show the result."""
        if sample:
            self._before = self._look()
            time.sleep(sample if self._before else 0)
        return self._show(self._look())

    def watch(self, interval: float) -> None:
        """Show the result repeatedly until interrupted, even while the server is unreachable."""
        from headrace import ConnectionFailedError

        while True:
            try:
                looks = self._look()
            except ConnectionFailedError as error:
                self._run.messages.warn(str(error))
            else:
                if self._run.output.is_terminal and self._run.output.form == "text":
                    self._run.output.clear()
                    now = datetime.now().astimezone()
                    self._run.output.text(f"{now:%H:%M:%S}, every {duration(interval)}; Ctrl-C ends it")
                self._show(looks, is_watched=True)
                self._run.output.flush()
                self._before = looks
            time.sleep(interval)

    def _look(self) -> dict[bytes, Look]:
        found = {}
        for key in self._keys:
            of_key = look(self._commands, self._survey, key, self._group, self._dead_key)
            if of_key is not None:
                found[key] = of_key
        return found

    def _show(self, looks: dict[bytes, Look], *, is_watched: bool = False) -> ExitCode:
        code = ExitCode.OK
        documents = []
        screen: list[str] = []
        # Done at each look, because sentinels may name another master.
        command_line = CommandLine(self._endpoint, address_of(self._endpoint, self._commands), self._own)
        streams = {key: compare(self._before.get(key), look) for key, look in looks.items()}
        shared = sharing(streams.values(), len(self._keys) if self._endpoint.shards else None)
        for number, key in enumerate(self._keys):
            if key not in looks:
                self._run.messages.error(absent(self._commands, key, names_similar=not self._endpoint.shards))
                code = ExitCode.FAILED
                continue
            now = looks[key]
            if self._group is not None and not now.groups:
                name = os.fsdecode(self._group)
                self._run.messages.error(f"the stream {os.fsdecode(key)!r} has no group {name!r}{_others(now)}")
                code = ExitCode.FAILED
                if now.group_names and self._run.output.form == "text":
                    continue
            stream = streams[key]
            stuck_after = self._run.arguments.stuck_after
            findings = diagnose(stream, stuck_after, shared)
            if any(finding.is_alarm for finding in findings):
                code = ExitCode.FAILED
            if self._run.output.form != "text":
                documents.append(document(stream, findings, command_line, shared))
                continue
            if number:
                screen.append("")
            screen += lines(stream, findings, command_line, stuck_after, self._run.output.width, shared)
        for line in self._run.output.fitting(screen, above=1) if is_watched else screen:
            self._run.output.text(line)
        if self._run.output.form == "jsonl":
            for value in documents:
                self._run.output.row(value)
        elif documents and self._run.output.form == "json":
            self._run.output.value(documents if len(self._keys) > 1 else documents[0])
        return code


def _others(stream: Look) -> str:
    """The groups that exist, as text."""
    names = ", ".join(repr(os.fsdecode(name)) for name in stream.group_names[:_MOST_NAMED])
    more = len(stream.group_names) - _MOST_NAMED
    return (names and f": there is {names}") + (f" and {count(more, 'more group')}" if more > 0 else "")
