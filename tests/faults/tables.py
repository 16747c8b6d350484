"""The tables of a campaign: a row for each pair of server and mode, and a row for each kind of fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from .campaign import ShareResult
from .episode import CRASH, REDIS_PY, ROW_TOO_LARGE, EpisodeResult
from .fault_kinds import KINDS

_HEADS = (
    "server", "mode", "faults", "messages", "delivered", "unknown", "twice", "possibly twice",
    "connections", "begun again", "wrong",
)  # fmt: skip


def pairs_table(done: Sequence[ShareResult]) -> str:
    """The outcomes of the messages, in Markdown."""
    results: dict[tuple[str, str], EpisodeResult] = {}
    for played in sorted(done, key=lambda played: (played.share.mode == REDIS_PY, played.share.server)):
        results.setdefault((played.share.server, played.share.mode), EpisodeResult()).__iadd__(played.result)
    ours, all_of_ours = EpisodeResult(), 0
    for (_, mode), result in results.items():
        if mode != REDIS_PY:
            ours += result
            all_of_ours += 1
    rows = [_row(*pair, result) for pair, result in results.items()]
    if all_of_ours > 1:
        rows.insert(all_of_ours, _row("**all**", "", ours))
    return markdown(_HEADS, rows, left=2)


def kinds_table(done: Sequence[ShareResult]) -> str:
    """The number of faults of each kind, in Markdown."""
    ours: Counter[str] = Counter()
    theirs: Counter[str] = Counter()
    for played in done:
        (theirs if played.share.mode == REDIS_PY else ours).update(played.result.faults)
    groups = {**{name: kind.of for name, kind in KINDS.items()}, ROW_TOO_LARGE: "message", CRASH: "sender"}
    rows = [(of, name, f"{ours[name]:,}", f"{theirs[name]:,}") for name, of in groups.items()]
    rows.append(("**all**", "", f"{ours.total():,}", f"{theirs.total():,}"))
    return markdown(("of", "fault", "to headrace", "to redis-py"), rows, left=2)


def violations_table(done: Sequence[ShareResult]) -> str:
    """The messages with a wrong outcome, of redis-py and of headrace, in Markdown."""
    counts: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    for played in done:
        for violation in played.result.violations:
            counts[played.share.mode == REDIS_PY][violation.what] += len(violation.messages)
    kinds = dict.fromkeys([*counts[True], *counts[False]])
    rows = [(what, f"{counts[False][what]:,}", f"{counts[True][what]:,}") for what in kinds]
    return markdown(("messages with a wrong outcome", "headrace", "redis-py"), rows, left=1)


def calls_table(done: Sequence[ShareResult]) -> str:
    """Where tasks or threads received outcomes, and which calls were cancelled, in Markdown."""
    counts: Counter[str] = Counter()
    for played in done:
        counts += played.result.calls
    rows = [(what, f"{count:,}") for what, count in sorted(counts.items())]
    return markdown(("messages, flushes and episodes", "number"), rows, left=1)


def _row(server: str, mode: str, result: EpisodeResult) -> tuple[str, ...]:
    numbers = (
        result.faults.total(), result.messages, result.delivered, result.unknown, result.duplicates,
        result.reported_duplicates, result.connections, result.replays,
        sum(len(violation.messages) for violation in result.violations),
    )  # fmt: skip
    return (server, mode, *(f"{number:,}" for number in numbers))


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> str:
    """A Markdown table; the first `left` columns are left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.ljust(width) if number < left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return f"| {' | '.join(padded)} |"

    rule = [("-" * width) if number < left else "-" * (width - 1) + ":" for number, width in enumerate(widths)]
    return "\n".join([line(heads), f"| {' | '.join(rule)} |", *map(line, rows)])
