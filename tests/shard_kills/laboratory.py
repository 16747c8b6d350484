"""The laboratory of members that share shards."""

from __future__ import annotations

import traceback
from collections import defaultdict

import redis

from faults.tables import markdown
from headrace.errors import LocalServerError
from laboratory import KEEP, ONE_SERVER, RESULTS, SEED, SERVERS, Option, Run, laboratory
from support.servers import Program, program_named

from . import balance, pauses
from .contenders import CONTENDERS
from .episode import Episode, Outcome, Plan
from .group import MemberError
from .member import STYLES
from .servers import TOPOLOGIES, start
from .tables import BALANCE, PAUSES, balance_row, faults_table, outcomes_table, pauses_row, percentile

#: Seconds beyond a lease within which each shard has an owner: members look every half second, and one for the work.
BEYOND = 2.0


@laboratory(
    Option("faults", 300, "faults, on all servers together"),
    *(SEED, SERVERS, RESULTS, KEEP),
    Option("topology", "server", "one server, or a cluster of three masters with a replica each", choices=TOPOLOGIES),
    Option("members", 5, "members at the beginning; there are up to 20"),
    Option("shards", 12, "shards of the stream"),
    Option("lease", 0.0, "seconds of a lease; 0: 1 to 3, by the seed"),
    Option("rate", 300, "rows per second"),
    Option("styles", list(STYLES), "how members go about it"),
    Option("contenders", False, "also what people use in the place of a ShardConsumer, on one server"),
    Option("per_episode", 20, "faults of an episode"),
)
def shard_kills(this: Run) -> str:
    """Kill, stop, cut off and start the members that share shards, and check each row, each key and each lease.

    On one server a fault takes about two seconds, in a cluster four.
    """
    options = this.options
    programs = [program_named(name) for name in options.servers]
    kinds = ["headrace", *(CONTENDERS if options.contenders and options.topology == "server" else ())]
    outcomes: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    with this.progress(options.faults, "faults") as add:
        for program in programs:
            done, seed = 0, options.seed
            while done < options.faults / len(programs):
                # Also where an episode cannot be done, there is an end.
                done += 1
                for kind in kinds:
                    if outcome := _outcome(this, program, kind, seed):
                        outcomes[program.label, kind].append(outcome)
                        done += len(outcome.faults) - 1
                        add(len(outcome.faults))
                seed += 1
    this.say(f"{outcomes_table(outcomes)}\n\n{faults_table(outcomes)}")
    return f"{sum(map(len, outcomes.values()))} episodes"


def _outcome(this: Run, program: Program, kind: str, seed: int) -> Outcome | None:
    """The outcome of an episode, now or earlier. `None`: a fault did not happen, or did not end, in time."""
    options = this.options
    lease = options.lease or (1.0, 2.0, 3.0, 1.0)[seed % 4]
    plan = Plan(
        seed=seed,
        faults=min(options.per_episode, options.faults),
        kind=kind,
        shards=options.shards,
        members=options.members,
        lease=lease,
        rate=options.rate,
        styles=tuple(options.styles),
    )
    name = {"server": program.label, "topology": options.topology, "seed": seed, "kind": kind}
    repeat = this.repeat(seed=seed, servers=[program.label], faults=plan.faults)
    if kept := this.results.find(name):
        outcome = Outcome.from_json(kept)
    else:
        servers = start(options.topology, program)
        try:
            outcome = Episode(plan, servers, this.folder / f"{program.label}-{kind}-{seed}").run()
        except MemberError as error:
            this.is_wrong(f"{program.label}, {kind}, seed {seed}: {error}", repeat)
            return None
        except (AssertionError, LocalServerError, redis.RedisError, OSError):
            this.say(f"{program.label}, {kind}, seed {seed}: not done\n{traceback.format_exc()}")
            return None
        finally:
            servers.stop()
        this.results.add(name, outcome.as_json())
    if kind == "headrace":
        for sort, count in outcome.verdict.wrong.items():
            examples = "\n    ".join(outcome.verdict.examples.get(sort, []))
            text = f"{program.label}, seed {seed}, lease {lease:g} s: {sort}: {count}\n    {examples}"
            this.is_wrong(text, repeat)
        _say(this, f"{program.label}, seed {seed}", lease, outcome)
    else:
        this.say(f"{program.label}, {kind}, seed {seed}: {dict(outcome.verdict.log)}")
    return outcome


def _say(this: Run, name: str, lease: float, outcome: Outcome) -> None:
    late = [(fault, seconds) for fault, seconds in outcome.served if seconds > lease + BEYOND]
    served = [seconds for _, seconds in outcome.served] or [0.0]
    shown = ", ".join(f"{fault} {seconds:.2f} s" for fault, seconds in late) or "none"
    this.say(
        f"{name}, lease {lease:g} s: {len(outcome.faults)} faults, {outcome.verdict.entries:,} entries, "
        f"{outcome.moves} moves in {outcome.seconds:.0f} s; owned: p50 {percentile(served, 0.5):.2f} s, most "
        f"{max(served):.2f} s, beyond the lease and {BEYOND:g} s: {shown}; log: {dict(outcome.verdict.log)}; "
        f"explained: {dict(outcome.verdict.explained)}; errors: {dict(outcome.errors)}"
    )


@laboratory(
    *(SEED, ONE_SERVER),
    Option("what", ["pauses", "balance"], "what is measured"),
    Option("lease", 3.0, "seconds of a lease while members are restarted; the balance has 10"),
    Option("shards", ["12", "64", "256"], "shards of the stream, for the balance"),
    Option("rate", 1_200, "rows per second while members are restarted"),
    Option("rounds", 3, "how often all members are restarted in turn"),
    Option("seconds", 4.0, "how long an idle group is looked at"),
)
def shard_pauses(this: Run) -> str:
    """Measure how long shards stand still while members restart, how shares settle, and what idle members cost."""
    options = this.options
    programs = [program_named(name) for name in options.servers]
    for program in programs:
        if "pauses" in options.what:
            rows = []
            for number, (how, names) in enumerate(pauses.WAYS):
                found = pauses.measure(
                    program,
                    this.folder / f"{program.label}-{number}",
                    how,
                    names,
                    shards=12,
                    lease=options.lease,
                    rate=options.rate,
                    rounds=options.rounds,
                )
                rows.append(pauses_row(program.label, found))
            this.say(markdown(PAUSES, rows, left=3) + "\n")
        if "balance" in options.what:
            for shards in map(int, options.shards):
                steps = balance.measure(program, shards, 10, options.seconds)
                this.say(markdown(BALANCE, [balance_row(program.label, step) for step in steps], left=1) + "\n")
    return f"{len(programs)} servers"
