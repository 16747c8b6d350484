"""The laboratory of faults in clusters."""

from __future__ import annotations

import traceback
from collections import Counter, defaultdict
from contextlib import closing

import redis

from headrace.errors import LocalServerError
from laboratory import RECORD, RESULTS, SEED, SERVERS, Option, Run, laboratory
from support.certs import Certs, make_certs
from support.servers import Program, program_named

from .episode import CONTENDERS, MODES, Verdict, run
from .proxied import ProxiedCluster
from .tables import faults_table, outcomes_table


@laboratory(
    Option("faults", 300, "faults, on all servers together"),
    *(SEED, SERVERS, RESULTS, RECORD),
    Option("modes", "", "such as `plain;script, wait;redis-py`; default: all"),
    Option("redis_rs", False, "also redis-rs, which `make bench-programs` has built"),
)
def campaign_cluster(this: Run) -> str:
    """Move slots, fail masters over and cut connections while rows go into clusters, and check each outcome.

    redis-py's cluster pipeline is held to the same rules, and counted. A fault takes a second and a half: 1,000 faults
    on one server took 26 minutes, while two other servers ran theirs in commands of their own.
    """
    certs, programs = make_certs(this.folder), [program_named(name) for name in this.options.servers]
    verdicts: dict[tuple[str, str], list[Verdict]] = defaultdict(list)
    contenders = [mode for mode in CONTENDERS if this.options.redis_rs or "redis-rs" not in mode]
    every = this.options.modes.split(";") if this.options.modes else [*MODES, *contenders]
    with this.progress(this.options.faults, "faults") as add:
        for program in programs:
            modes = [mode for mode in every if mode != "idmp" or program.can("idmp")]
            done, seed = 0, this.options.seed
            with closing(_Clusters(this, program, certs)) as clusters:
                while done < this.options.faults / len(programs):
                    mode = modes[seed % len(modes)]
                    if verdict := clusters.verdict(mode, seed):
                        verdicts[program.label, mode].append(verdict)
                        done += len(verdict.faults)
                        add(len(verdict.faults))
                    seed += 1
    tables = outcomes_table(verdicts), faults_table(verdicts)
    this.say("\n\n".join(tables))
    this.record(*tables)
    return f"{sum(map(len, verdicts.values()))} episodes"


class _Clusters:
    """A cluster for all episodes. Another one where it did not become whole again, or where TLS begins or ends."""

    def __init__(self, this: Run, program: Program, certs: Certs) -> None:
        self._this = this
        self._program = program
        self._certs = certs
        self._cluster: ProxiedCluster | None = None

    def verdict(self, mode: str, seed: int) -> Verdict | None:
        """The verdict of an episode, now or earlier. `None`: a fault did not happen, or did not end, in time."""
        this, server = self._this, self._program.label
        episode = {"server": server, "seed": seed, "mode": mode}
        if kept := this.results.find(episode):
            verdict = Verdict(**{**kept, "codes": Counter(kept["codes"])})
        elif found := self._run(mode, seed):
            verdict = found
            this.results.add(episode, vars(verdict))
        else:
            return None
        for what in verdict.wrong if mode not in CONTENDERS else ():
            repeat = this.repeat(faults=1, seed=seed, servers=[server], modes=mode)
            this.is_wrong(f"{server}, {mode}, seed {seed}, {', '.join(verdict.faults)}: {what}", repeat)
        return verdict

    def _run(self, mode: str, seed: int) -> Verdict | None:
        if self._cluster is not None and self._cluster.tls != ("tls" in mode):
            self.close()
        if self._cluster is None:
            self._cluster = ProxiedCluster(self._program.path, self._certs if "tls" in mode else None)
        try:
            return run(self._cluster, mode, seed, f"s{seed}")
        except (AssertionError, LocalServerError, redis.RedisError, OSError) as failure:
            self.close()
            if "BUSYKEY" in str(failure):
                # A row was written to the node that a slot moves to, while its stream was still at the other.
                return Verdict(mode, ["move"], wrong=[f"a stream was split: {failure}"])
            self._this.say(f"{self._program.label}, {mode}, seed {seed}: not done\n{traceback.format_exc()}")
            return None

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.stop()
            self._cluster = None
