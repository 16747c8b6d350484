"""A campaign of faults on clusters. Exits with 1 if headrace reported an outcome that was not true."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from pathlib import Path
from types import TracebackType
from typing import Self

import redis

from faults.tables import record
from headrace.errors import LocalServerError
from support.certs import make_certs
from support.servers import Program, find_programs

from .episode import CONTENDERS, MODES, Verdict, run
from .proxied import ProxiedCluster
from .tables import faults_table, outcomes_table


def main() -> int:
    arguments = _parser().parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the servers are ended
    programs = [program for name in arguments.servers for program in _programs(name)]
    chosen = arguments.modes or [*MODES, *(mode for mode in CONTENDERS if arguments.redis_rs or "redis-rs" not in mode)]
    earlier = _read(arguments.results)
    verdicts: dict[tuple[str, str], list[Verdict]] = defaultdict(list)
    wrong = 0
    for program in programs:
        modes = [mode for mode in chosen if mode != "idmp" or program.can("idmp")]
        with _Clusters(program) as clusters:
            done, began, seed = 0, time.monotonic(), arguments.seed
            while done < arguments.faults / len(programs):
                mode = modes[seed % len(modes)]
                verdict = earlier.get((program.label, seed, mode)) or clusters.run(mode, seed)
                if verdict is None:
                    seed += 1
                    continue
                if (program.label, seed, mode) not in earlier:
                    _write(arguments.results, program.label, seed, verdict)
                verdicts[program.label, mode].append(verdict)
                done += len(verdict.faults)
                for what in verdict.wrong if mode not in CONTENDERS else ():
                    wrong += 1
                    print(f"{program.label}, {mode}, seed {seed}, {', '.join(verdict.faults)}: {what}", flush=True)
                if seed % 20 == 0:
                    seconds = time.monotonic() - began
                    print(f"{program.label}: {done} faults in {seconds:.0f} s, {wrong} outcomes wrong", flush=True)
                seed += 1
    tables = outcomes_table(verdicts), faults_table(verdicts)
    print("\n\n".join(tables))
    if arguments.record:
        record(arguments.record, "campaign-cluster", f"make campaign-cluster FAULTS={arguments.faults}", *tables)
    return 1 if wrong else 0


class _Clusters:
    """A cluster for all episodes. Another one where it did not become whole again, or where TLS begins or ends."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._cluster: ProxiedCluster | None = None
        self._folder = tempfile.TemporaryDirectory()
        self._certs = make_certs(Path(self._folder.name))

    def run(self, mode: str, seed: int) -> Verdict | None:
        """The verdict of an episode. `None`: a fault did not happen, or did not end, in time."""
        if self._cluster is not None and self._cluster.tls != ("tls" in mode):
            self._end()
        if self._cluster is None:
            self._cluster = ProxiedCluster(self._program.path, self._certs if "tls" in mode else None)
        try:
            return run(self._cluster, mode, seed, f"s{seed}")
        except (AssertionError, LocalServerError, redis.RedisError, OSError) as failure:
            if "BUSYKEY" in str(failure):
                # A row was written to the node that a slot moves to, while its stream was still at the other.
                self._end()
                return Verdict(mode, ["move"], wrong=[f"a stream was split: {failure}"])
            print(f"{self._program.label}, {mode}, seed {seed}: not done: {failure!r}", flush=True)
            traceback.print_exc()
            self._end()
            return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        self._folder.cleanup()

    def _end(self) -> None:
        if self._cluster is not None:
            self._cluster.stop()
            self._cluster = None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m cluster_faults", description=__doc__)
    parser.add_argument("--faults", type=int, default=300, help="on all servers together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--servers", type=lambda text: text.split(","), default=["7.0", "8.6", "valkey"])
    parser.add_argument("--modes", type=lambda text: text.split(";"), help="separated by semicolons")
    parser.add_argument("--redis-rs", action="store_true", help="also redis-rs, which `make bench-programs` has built")
    parser.add_argument("--results", type=Path, help="a file of episodes: those in it are not run again")
    parser.add_argument("--record", type=Path, help="a document that gets the tables")
    return parser


def _read(path: Path | None) -> dict[tuple[str, int, str], Verdict]:
    """The episodes of an earlier campaign, by server, seed and mode."""
    lines = path.read_text().splitlines() if path and path.exists() else []
    found = [json.loads(line) for line in lines]
    return {
        (each["server"], each["seed"], each["verdict"]["mode"]): Verdict(
            **{**each["verdict"], "codes": Counter(each["verdict"]["codes"])}
        )
        for each in found
    }


def _write(path: Path | None, server: str, seed: int, verdict: Verdict) -> None:
    if path:
        with path.open("a") as file:
            file.write(json.dumps({"server": server, "seed": seed, "verdict": vars(verdict)}) + "\n")


def _programs(name: str) -> list[Program]:
    found = [program for program in find_programs() if name in (program.name, program.label, program.label[6:])]
    if not found:
        sys.exit(f"no server {name} here, only {', '.join(program.label for program in find_programs())}")
    return [max(found)]


if __name__ == "__main__":
    sys.exit(main())
