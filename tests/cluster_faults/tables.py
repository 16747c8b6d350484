"""The tables of a campaign: what became of the rows, and which faults there were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from faults.tables import markdown

from .episode import MODES, REDIS_PY, Verdict
from .faults import FAILOVERS, FAULTS, UNPLANNED

#: By server and mode.
Verdicts = Mapping[tuple[str, str], Sequence[Verdict]]

_HEADS = (
    "server", "mode", "episodes", "faults", "failovers", "rows", "redirects",
    "twice", "acknowledged, lost", "out of order", "wrong",
)  # fmt: skip


def outcomes_table(verdicts: Verdicts) -> str:
    """What became of the rows, in Markdown: of headrace, then of redis-py."""
    ours = [pair for pair in verdicts if pair[1] in MODES]
    rows = [_row(*pair, verdicts[pair]) for pair in sorted(ours)]
    rows.append(_row("**all**", "", [verdict for pair in ours for verdict in verdicts[pair]]))
    rows += [_row(*pair, verdicts[pair]) for pair in sorted(verdicts) if pair[1] in REDIS_PY]
    return markdown(_HEADS, rows, left=2)


def faults_table(verdicts: Verdicts) -> str:
    """How many faults of each kind there were, and their share, in Markdown."""
    ours = _faults(verdict for (_, mode), found in verdicts.items() if mode in MODES for verdict in found)
    theirs = _faults(verdict for (_, mode), found in verdicts.items() if mode in REDIS_PY for verdict in found)
    every = ours + theirs
    names = [name for name in (*FAULTS, UNPLANNED) if every[name]]
    rows = [_line(name, ours[name], theirs[name], every.total()) for name in names]
    failovers = {name: sum(faults[one] for one in FAILOVERS) for name, faults in (("ours", ours), ("theirs", theirs))}
    rows.append(_line("**failovers**", failovers["ours"], failovers["theirs"], every.total()))
    rows.append(_line("**all**", ours.total(), theirs.total(), every.total()))
    return markdown(("fault", "to headrace", "to redis-py", "share"), rows, left=1)


def _faults(verdicts: Iterable[Verdict]) -> Counter[str]:
    return Counter(fault for verdict in verdicts for fault in verdict.faults)


def _line(name: str, ours: int, theirs: int, every: int) -> tuple[str, ...]:
    return (name, f"{ours:,}", f"{theirs:,}", f"{(ours + theirs) / max(every, 1):.1%}")


def _row(server: str, mode: str, verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    faults = _faults(verdicts)
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
