"""The tables of a campaign: what became of the rows, and which faults there were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from faults.tables import markdown

from .episode import CONTENDERS, MODES, Verdict
from .faults import FAILOVERS, FAULTS, UNPLANNED

#: By server and mode.
Verdicts = Mapping[tuple[str, str], Sequence[Verdict]]

_HEADS = (
    "server", "mode", "episodes", "faults", "failovers", "rows", "redirects",
    "twice", "acknowledged, lost", "out of order", "wrong",
)  # fmt: skip


def outcomes_table(verdicts: Verdicts) -> str:
    """What became of the rows, in Markdown: of headrace, then of the others."""
    ours = [pair for pair in verdicts if pair[1] in MODES]
    rows = [_row(*pair, verdicts[pair]) for pair in sorted(ours)]
    rows.append(_row("**all**", "", [verdict for pair in ours for verdict in verdicts[pair]]))
    rows += [_row(*pair, verdicts[pair]) for pair in sorted(verdicts) if pair[1] in CONTENDERS]
    return markdown(_HEADS, rows, left=2)


def faults_table(verdicts: Verdicts) -> str:
    """How many faults of each kind there were for each client, and their share, in Markdown."""
    counts = {"headrace": _faults(verdicts, MODES)}
    for client in ("redis-py", "redis-rs"):
        if faults := _faults(verdicts, [mode for mode in CONTENDERS if mode.startswith(client)]):
            counts[client] = faults
    every = sum(counts.values(), Counter[str]())
    rows = [_line(name, counts.values(), [name], every) for name in (*FAULTS, UNPLANNED) if every[name]]
    rows.append(_line("**failovers**", counts.values(), FAILOVERS, every))
    rows.append(_line("**all**", counts.values(), list(every), every))
    return markdown(("fault", *(f"to {client}" for client in counts), "share"), rows, left=1)


def _faults(verdicts: Verdicts, modes: Collection[str]) -> Counter[str]:
    found = (verdict for (_, mode), each in verdicts.items() if mode in modes for verdict in each)
    return Counter(fault for verdict in found for fault in verdict.faults)


def _line(head: str, counts: Iterable[Counter[str]], names: Collection[str], every: Counter[str]) -> tuple[str, ...]:
    numbers = [sum(faults[name] for name in names) for faults in counts]
    return (head, *(f"{number:,}" for number in numbers), f"{sum(numbers) / max(every.total(), 1):.1%}")


def _row(server: str, mode: str, verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    faults = Counter(fault for verdict in verdicts for fault in verdict.faults)
    numbers = (
        len(verdicts),
        faults.total() - faults[UNPLANNED],
        sum(faults[name] for name in FAILOVERS),
        sum(verdict.rows for verdict in verdicts),
        sum(verdict.redirects for verdict in verdicts),
        sum(verdict.duplicates for verdict in verdicts),
        sum(verdict.lost for verdict in verdicts),
        sum(verdict.reordered for verdict in verdicts),
        sum(len(verdict.wrong) for verdict in verdicts),
    )
    return (server, mode, *(f"{number:,}" for number in numbers))
