"""The laboratories with the fault proxy; those of reading, in `read_faults`, are made of the same functions."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from laboratory import JOBS, PAIRS, RECORD, SEED, Option, Run, laboratory

from . import campaign as campaigns
from .campaign import WRITING, Campaign, Share, ShareResult, async_pairs, pairs, redis_py_pairs, thread_pairs
from .sweep import SweepResult
from .sweep import sweep as sweep_pair
from .tables import calls_table, kinds_table, markdown, pairs_table, violations_table
from .testbed import FaultTestbed

CAMPAIGN = (
    Option("faults", 900, "faults for headrace, over all pairs"),
    *(SEED, PAIRS, JOBS, RECORD),
    Option("seconds", math.inf, "no further share of the faults begins after that"),
    Option("episode", "", "only the episode SEED/SERVER/MODE/…, as a failure prints it"),
)
SWEEP = (PAIRS, Option("step", 1, "bytes between cuts"), RECORD)

#: A server and a mode.
Pair = tuple[str, str]
#: Makes a table of the shares of a campaign, in Markdown.
Table = Callable[[Sequence[ShareResult]], str]


@laboratory(*CAMPAIGN)
def campaign(this: Run) -> str:
    """Cut, stall, kill and refuse at random bytes while messages are sent, and check every outcome.

    10,000 faults, and as many on each server to redis-py, take half an hour on two cores.
    """
    every = [*pairs(), *redis_py_pairs()]
    return run_campaign(this, WRITING, every, [pairs_table, violations_table, kinds_table])


@laboratory(*CAMPAIGN)
def campaign_async(this: Run) -> str:
    """The same faults under tasks of an AsyncDispatcher, some of which are cancelled."""
    # The document takes the faults from the campaign above it.
    return run_campaign(this, WRITING, async_pairs(), [pairs_table, calls_table], [violations_table, kinds_table])


@laboratory(*CAMPAIGN)
def campaign_threads(this: Run) -> str:
    """The same faults under 16 threads that share a Dispatcher.

    1,000 faults are a million messages.
    """
    return run_campaign(this, WRITING, thread_pairs(), [pairs_table, calls_table], [violations_table, kinds_table])


@laboratory(*SWEEP)
def sweep(this: Run) -> str:
    """Cut a pipeline after each of its bytes, in every mode on every server: some minutes."""
    reported = {"delivered": "delivered", "not written": "no", "unknown": "unknown"}

    def counts(swept: SweepResult) -> list[int]:
        return [swept.reported.get(what, 0) for what in reported.values()]

    return run_sweep(this, pairs(), sweep_pair, ("mode", *reported), counts)


def run_campaign(
    this: Run, what: Campaign, every: list[Pair], tables: Sequence[Table], unrecorded: Sequence[Table] = ()
) -> str:
    """Run a campaign on these pairs, or the chosen ones."""
    options = this.options
    if options.episode:
        return _run_episode(this, what)
    chosen = _chosen(this, every)
    # Another client gets as many faults per server as one mode of headrace.
    ours = sum(what.is_ours(mode) for _, mode in chosen) or len(chosen)
    total = -(-options.faults // ours) * len(chosen)
    with this.progress(total, "faults") as add:

        def on_result(played: ShareResult) -> None:
            add(played.result.faults.total())
            for text, repeat in played.failures if what.is_ours(played.share.mode) else ():
                this.is_wrong(text, repeat)

        done = campaigns.run(chosen, total, options.seed, options.jobs, on_result, what, options.seconds)
    this.say("\n\n".join(table(done) for table in (*tables, *unrecorded)))
    this.record(*(table(done) for table in tables))
    return f"{sum(played.result.faults.total() for played in done):,} faults"


def _run_episode(this: Run, what: Campaign) -> str:
    seed, server, mode, number, faults, episode = this.options.episode.split("/")
    share = Share(int(seed), server, mode, int(number), int(faults), what)
    played = campaigns.run_share(share, int(episode))
    for text, _ in played.failures:
        this.is_wrong(text)
    this.say(played.result)
    return "1 episode"


def run_sweep(
    this: Run,
    every: list[Pair],
    sweep_pair: Callable[[FaultTestbed, str, int], Any],
    heads: Sequence[str],
    counts: Callable[[Any], list[int]],
) -> str:
    """Cut the sessions of these pairs, or the chosen ones. The columns `heads` have the mode and the `counts`."""
    rows: list[tuple[str, ...]] = []
    cuts, chosen = 0, _chosen(this, every)
    with this.progress(len(chosen), "pairs") as add:
        for label, mode in chosen:
            began = time.monotonic()
            with FaultTestbed(campaigns.program_of(label), durable=False) as testbed:
                swept = sweep_pair(testbed, mode, this.options.step)
            for where, violation in swept.violations:
                this.is_wrong(f"{label}/{mode}, cut in {where}: {violation}", this.repeat(pairs=[f"{label}/{mode}"]))
            cuts += swept.cuts
            numbers = (*swept.bytes.values(), swept.cuts, *counts(swept), len(swept.violations))
            rows.append((label, mode, *(f"{number:,}" for number in (*numbers, round(time.monotonic() - began)))))
            add(1)
    columns = ("server", heads[0], "bytes out", "bytes in", "cuts", *heads[1:], "wrong", "seconds")
    tables = markdown(columns, rows, left=2), f"{cuts:,} cuts, {this.wrong} violations."
    this.say("\n\n".join(tables))
    this.record(*tables)
    return f"{len(rows)} pairs"


def _chosen(this: Run, every: list[Pair]) -> list[Pair]:
    """The pairs that `--pairs` names, or all."""
    names: list[str] | None = this.options.pairs
    chosen = [pair for pair in every if names is None or "/".join(pair) in names]
    if names and len(chosen) < len(names):
        raise SystemExit(f"--pairs {','.join(names)}: this machine has {', '.join(map('/'.join, every))}")
    return chosen
