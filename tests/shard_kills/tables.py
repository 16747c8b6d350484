"""The tables of the laboratory."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from faults.tables import markdown

from .balance import Step
from .episode import Outcome
from .pauses import Pauses

#: By server and what the members were.
Outcomes = Mapping[tuple[str, str], Sequence[Outcome]]
#: What the log shows, in the order of the columns.
LOG = ("repeated", "out of order", "behind the next owner", "keys that end with an old row", "lost")


def outcomes_table(outcomes: Outcomes) -> str:
    """What became of the rows: of the log, and of the database that fences."""
    heads = ("server", "members", "episodes", "faults", "entries", "shards moved", *LOG, "wrong")
    rows = []
    for (server, kind), each in sorted(outcomes.items()):
        log = sum((outcome.verdict.log for outcome in each), Counter[str]())
        wrong = sum(outcome.verdict.wrong.total() for outcome in each) if kind == "headrace" else None
        numbers = (
            len(each),
            sum(len(outcome.faults) for outcome in each),
            sum(outcome.verdict.entries for outcome in each),
            sum(outcome.moves for outcome in each) or None,
            *(log[name] for name in LOG),
            wrong,
        )
        rows.append((server, kind, *("-" if number is None else f"{number:,}" for number in numbers)))
    return markdown(heads, rows, left=2)


def faults_table(outcomes: Outcomes) -> str:
    """How long shards had no owner after each kind of fault, and until shares were even."""
    counts: Counter[str] = Counter()
    served: dict[str, list[float]] = defaultdict(list)
    settled: dict[str, list[float]] = defaultdict(list)
    for (_, kind), each in outcomes.items():
        for outcome in each if kind == "headrace" else ():
            counts.update(outcome.faults)
            for name, seconds in outcome.served:
                served[name].append(seconds)
            for name, seconds in outcome.settled:
                settled[name].append(seconds)
    rows = [(name, f"{counts[name]:,}", *_seconds(served[name]), *_seconds(settled[name])) for name in sorted(counts)]
    every = [seconds for each in served.values() for seconds in each]
    even = [seconds for each in settled.values() for seconds in each]
    rows.append(("**all**", f"{counts.total():,}", *_seconds(every), *_seconds(even)))
    return markdown(("fault", "number", "owned: p50", "p99", "most", "even: p50", "p99", "most"), rows, left=1)


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share of all does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _seconds(values: Sequence[float]) -> tuple[str, str, str]:
    if not values:
        return "", "", ""
    return f"{percentile(values, 0.5):.2f} s", f"{percentile(values, 0.99):.2f} s", f"{max(values):.2f} s"


PAUSES = (
    "server", "ended by", "next one", "restarts", "its shards: p50", "p99", "most",
    "others: p50", "p99", "most", "shards moved", "rows", "repeated",
)  # fmt: skip


def pauses_row(server: str, found: Pauses) -> tuple[str, ...]:
    """How long shards stood still."""
    restarts = len(found.its) + len(found.others)
    numbers = (f"{number:,}" for number in (found.moves, found.rows, found.repeated))
    shown = f"{restarts // len({*range(12)}):,}"
    return (server, found.how, found.names, shown, *_seconds(found.its), *_seconds(found.others), *numbers)


BALANCE = (
    "server", "shards", "members", "even after", "moved", "at least", "calls/s", "commands/s",
    "processor of the server",
)  # fmt: skip


def balance_row(server: str, step: Step) -> tuple[str, ...]:
    """How shares settled, and what the idle group costs."""
    idle = ("", "", "")
    if step.members > step.before:
        idle = (f"{step.calls:,.0f}", f"{step.commands:,.0f}", f"{step.processor:.1%}")
    members = f"{step.before} to {step.members}"
    return (server, f"{step.shards}", members, f"{step.seconds:.2f} s", f"{step.moves}", f"{step.fewest}", *idle)
