"""The tables of a campaign of reading: by server and client, by kind of violation, by kind of fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from faults.campaign import ShareResult
from faults.tables import markdown

from .clients import CLIENTS
from .read_campaign import is_ours
from .read_episode import ReadResult
from .read_kinds import OF

_HEADS = (
    "server", "client", "faults", "entries", "read", "trimmed unread", "reported", "replaced", "readers", "errors",
    "wrong",
)  # fmt: skip


def pairs_table(done: Sequence[ShareResult]) -> str:
    """What happened to the entries, in Markdown."""
    results: dict[tuple[str, str], ReadResult] = {}
    order = list(CLIENTS)
    for played in sorted(done, key=lambda played: (order.index(played.share.mode), played.share.server)):
        results.setdefault((played.share.server, played.share.mode), ReadResult()).__iadd__(played.result)
    ours, count = ReadResult(), 0
    for (_, client), result in results.items():
        if is_ours(client):
            ours += result
            count += 1
    rows = [_row(*pair, result) for pair, result in results.items()]
    if count > 1:
        rows.insert(count, _row("**all**", "", ours))
    return markdown(_HEADS, rows, left=2)


def kinds_table(done: Sequence[ShareResult]) -> str:
    """The number of faults of each kind, in Markdown."""
    clients = [client for client in CLIENTS if any(played.share.mode == client for played in done)]
    counts: dict[str, Counter[str]] = {client: Counter() for client in clients}
    for played in done:
        counts[played.share.mode].update(played.result.faults)
    rows = [(of, name, *(f"{counts[client][name]:,}" for client in clients)) for name, of in OF.items()]
    rows.append(("**all**", "", *(f"{counts[client].total():,}" for client in clients)))
    return markdown(("of", "fault", *(f"to {client}" for client in clients)), rows, left=2)


def steps_table(done: Sequence[ShareResult]) -> str:
    """The steps at which processes were killed, in Markdown."""
    clients = [client for client in CLIENTS if any(played.share.mode == client for played in done)]
    counts: dict[str, Counter[str]] = {client: Counter() for client in clients}
    for played in done:
        counts[played.share.mode].update(played.result.steps)
    steps = list(dict.fromkeys(step for each in counts.values() for step in each))
    rows = [(step, *(f"{counts[client][step]:,}" for client in clients)) for step in steps]
    return markdown(("SIGKILL at the step", *clients), rows, left=1)


def violations_table(done: Sequence[ShareResult]) -> str:
    """The entries that were read or reported incorrectly, by client, in Markdown."""
    clients = [client for client in CLIENTS if any(played.share.mode == client for played in done)]
    counts: dict[str, Counter[str]] = {client: Counter() for client in clients}
    for played in done:
        for violation in played.result.violations:
            counts[played.share.mode][violation.what] += len(violation.messages)
    kinds = sorted({what for each in counts.values() for what in each})
    rows = [(what, *(f"{counts[client][what]:,}" for client in clients)) for what in kinds]
    return markdown(("entries with a wrong fate", *clients), rows, left=1)


def _row(server: str, client: str, result: ReadResult) -> tuple[str, ...]:
    numbers = (
        result.faults.total(), result.entries, result.read, result.lost, result.reported, result.replaced,
        result.opened, result.errors, sum(len(violation.messages) for violation in result.violations),
    )  # fmt: skip
    return (server, client, *(f"{number:,}" for number in numbers))
