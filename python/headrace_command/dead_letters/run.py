"""`headrace dead-letters`: lists letters, shows them, writes their entries again, deletes them."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from headrace import ConnectionFailedError
from headrace.admin import Commands, DeadLetter
from headrace_command.dead_letters.entry_command import EntryCommand
from headrace_command.dead_letters.letter_stream import LetterStream
from headrace_command.dead_letters.listing import Listing
from headrace_command.dead_letters.mover import Item, Mover, RowWriter
from headrace_command.dead_letters.selection import Destination, Selection
from headrace_command.dead_letters.tally import Tally
from headrace_command.exit_code import ExitCode, UsageError
from headrace_command.options import producer_options
from headrace_command.output import Messages
from headrace_command.run import Run
from headrace_command.text import count, printable

__all__ = ["run"]

_ONCE = "once"
_AT_LEAST_ONCE = "at least once"

Pages = Callable[[], Iterable[list[DeadLetter]]]


def run(run: Run) -> ExitCode:
    """Run the action of the arguments."""
    _check(run)
    endpoint = run.endpoint(run.stream)
    if endpoint.shards is not None:
        raise UsageError("dead-letters takes the stream of letters itself: leave --shards out")
    commands = Commands(endpoint)
    letters = LetterStream(commands, run.stream)
    is_cluster = endpoint.topology == "cluster" or (
        endpoint.topology == "auto" and endpoint.nodes is not None and endpoint.sentinel_master is None
    )
    try:
        if run.arguments.action == "list":
            return _list(run, letters)
        if run.arguments.action == "show":
            return _show(run, letters)
        if run.arguments.action == "drop":
            return _drop(run, letters)
        return _replay(run, letters, commands, is_cluster=is_cluster)
    finally:
        commands.close()


def _check(run: Run) -> None:
    """Refuse arguments that have no meaning for the action."""
    given, action = run.arguments, run.arguments.action
    changes = action in ("replay", "drop")
    if changes and given.all == bool(given.ids):
        raise UsageError(f"{action} needs the IDs of letters, or --all" + " and no ID" * given.all)
    if action == "show" and not given.ids:
        raise UsageError("show needs the IDs of letters: list shows them")
    if action == "list" and given.ids:
        raise UsageError("list takes no ID: show does")
    if given.limit is not None and (action != "list" or given.limit < 1):
        raise UsageError("--limit is for list, and at least 1")
    of_replay = {
        "--to": given.to,
        "--allow-stream": given.allow_stream,
        "--include-unknown": given.include_unknown,
        "--payload": given.payload,
        "--fields": given.fields,
        "--json": given.json,
        "--ts-field": given.ts_field,
        **{"--" + name.replace("_", "-"): True for name in producer_options(given)[0]},
    }
    of_changes = {"--all": given.all, "--dry-run": given.dry_run, "--yes": given.yes}
    for flag, value in (of_replay if action != "replay" else {}).items():
        if value:
            raise UsageError(f"{flag} is for replay")
    for flag, value in (of_changes if not changes else {}).items():
        if value:
            raise UsageError(f"{flag} is for replay and drop")
    if given.only_code is not None and action == "show":
        raise UsageError("--only-code is not for show")


def _list(run: Run, letters: LetterStream) -> ExitCode:
    tail = letters.tail()
    origins: Counter[str] = Counter()
    code = None if run.arguments.only_code is None else run.arguments.only_code.encode()

    def chosen() -> Iterator[list[DeadLetter]]:
        left = run.arguments.limit
        for page in letters.pages(tail) if tail is not None else ():
            kept = [letter for letter in page if code is None or letter.code == code][:left]
            origins.update(letter.origin for letter in kept)
            if kept:
                yield kept
            if left is not None:
                left -= len(kept)
                if left == 0:
                    return

    Listing(run.output, time.time()).write(chosen())
    names = {"consumer": "of a consumer group", "spark": "of the Spark writer", "send": "of headrace send"}
    others = origins.pop("other", 0)
    parts = [f"{number:,} {names[origin]}" for origin, number in origins.items()]
    key = printable(run.stream)
    run.messages.say(f"{count(origins.total(), 'letter')}: {', '.join(parts)}" if parts else f"no letters in {key}")
    if others:
        what = "1 entry is not a dead letter" if others == 1 else f"{others:,} entries are not dead letters"
        run.messages.say(f"{what}: give the stream of dead letters, such as {key}:dead")
    return ExitCode.OK


def _show(run: Run, letters: LetterStream) -> ExitCode:
    found, missing = letters.find(run.arguments.ids)
    listing = Listing(run.output, time.time())
    for place, letter in enumerate(found):
        if place and run.output.form == "text":
            run.output.text("")
        listing.show(letter)
    return _missing(run, missing)


def _missing(run: Run, missing: Sequence[str]) -> ExitCode:
    for text in missing:
        run.messages.error(f"there is no letter {text} in {printable(run.stream)}")
    return ExitCode.FAILED if missing else ExitCode.OK


def _pages(run: Run, letters: LetterStream) -> tuple[Pages, ExitCode]:
    """A function that returns the letters named by the arguments, and the exit code for those that do not exist."""
    if run.arguments.ids:
        found, missing = letters.find(run.arguments.ids)
        return lambda: [found] if found else [], _missing(run, missing)
    tail = letters.tail()
    return lambda: [] if tail is None else letters.pages(tail), ExitCode.OK


def _drop(run: Run, letters: LetterStream) -> ExitCode:
    pages, code = _pages(run, letters)
    selection = Selection(run.arguments, is_replay=False)
    number = sum(selection.takes(letter) for page in pages() for letter in page)
    tally = Tally(run.output, "dropped")
    question = f"drop {count(number, 'letter')} of {printable(run.stream)}, which cannot be undone"
    if number and _goes_on(run, question):
        chosen = Selection(run.arguments, is_replay=False)
        left = _each_page(
            run, pages, lambda page: letters.remove([one for one in page if chosen.takes(one)], tally), tally
        )
        if left is not None:
            code = ExitCode.worst(code, left)
    tally.write(selection.skipped, None)
    return ExitCode.worst(code, tally.exit_code)


def _replay(run: Run, letters: LetterStream, commands: Commands, *, is_cluster: bool) -> ExitCode:
    destination = Destination(run.arguments, run.stream, is_cluster=is_cluster)
    options = producer_options(run.arguments)[0]
    layout = run.endpoint(run.stream, options)
    entry = EntryCommand(run.stream, layout, run.arguments.payload_field, run.arguments.ts_field)
    pages, code = _pages(run, letters)
    targets: Counter[bytes] = Counter()
    selection = Selection(run.arguments, is_replay=True)
    apart: set[str] = set()
    for letter, to in _items(pages(), selection, destination):
        targets[to] += 1
        is_wide = entry.is_wide(letter)
        if letter.row is not None:
            apart.add("rows without a payload")
        elif not destination.is_beside(to, is_wide=is_wide):
            apart.add("letters with too many fields for a script" if is_wide else "streams in another slot")
    delivery = _AT_LEAST_ONCE if apart else _ONCE
    tally = Tally(run.output, "replayed")
    names = ", ".join(f"{number} to {printable(to)}" for to, number in islice(targets.most_common(), 10))
    question = f"replay {count(targets.total(), 'letter')} of {printable(run.stream)}: {names}"
    if delivery == _AT_LEAST_ONCE:
        run.messages.say(
            f"at least once: entries of {' and '.join(sorted(apart))} are added before the letter is deleted; "
            "after a crash in between, the next replay adds them again"
        )
    if targets and _goes_on(run, question):
        mover = Mover(
            commands,
            run.stream,
            entry,
            destination,
            lambda: RowWriter(run.arguments, lambda to: run.endpoint(to, options)),
            tally,
        )
        chosen = Selection(run.arguments, is_replay=True)
        mover.check()
        try:
            left = _each_page(run, pages, lambda page: mover.move(_items([page], chosen, destination)), tally)
        finally:
            mover.close()
        if left is not None:
            code = ExitCode.worst(code, left)
            if tally.counts["unknown"] and delivery == _ONCE:
                run.messages.say(
                    "run the command again: replayed letters have been deleted, and the rest are replayed once"
                )
    tally.write(selection.skipped, delivery)
    return ExitCode.worst(code, tally.exit_code)


def _items(pages: Iterable[list[DeadLetter]], selection: Selection, destination: Destination) -> Iterator[Item]:
    """The letters to replay, each with its destination."""
    for page in pages:
        for letter in page:
            if not selection.takes(letter):
                continue
            to = destination.of(letter)
            if to is None:
                selection.skipped["of a stream that --allow-stream does not name"] += 1
            else:
                yield letter, to


def _goes_on(run: Run, question: str) -> bool:
    """Whether to proceed."""
    if run.arguments.dry_run:
        run.messages.say(f"dry run: {question}")
        return False
    if _consents(question, run.messages, is_given=run.arguments.yes):
        return True
    run.messages.say("nothing was done")
    return False


def _each_page(run: Run, pages: Pages, do: Callable[[list[DeadLetter]], object], tally: Tally) -> ExitCode | None:
    """Process page by page, up to one that fails entirely. Return the exit code of an early end, or None."""
    try:
        for page in pages():
            before = tally.counts.copy()
            do(page)
            now = tally.counts - before
            if len(page) > 1 and now["failed"] == now.total() > 0:
                run.messages.error("stopped: all letters of this page failed")
                return ExitCode.FAILED
    except ConnectionFailedError as error:
        run.messages.error(str(error))
        return ExitCode.NO_CONNECTION
    except KeyboardInterrupt:
        run.messages.error("interrupted")
        return run.signals.exit_code
    return None


def _consents(question: str, messages: Messages, *, is_given: bool) -> bool:
    """Return whether the user agrees, on the terminal or by `--yes`.

    Raises:
        UsageError: There is no terminal to ask on.
    """
    if is_given:
        messages.say(question)
        return True
    if not (sys.stdin.isatty() and messages.is_terminal):
        raise UsageError(f"{question}: without a terminal this needs --yes")
    messages.ask(f"{question}? [y/N]")
    answer = sys.stdin.readline().strip().lower()
    return answer in ("y", "yes")
