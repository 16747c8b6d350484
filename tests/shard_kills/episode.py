"""One episode: members under faults, and what is wrong at the end."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace import Endpoint
from support.patience import PATIENCE

from .check import Lease, Verdict, check_log, check_positions, check_report, check_rows
from .faults import OF_CLUSTERS, OF_LEASES, OF_MEMBERS, OF_ONE_SERVER, UNDOING, Fault
from .group import Group
from .member import STREAM_KEY, Setting
from .producer import Producer
from .servers import Cluster, OneServer, end, entries, group_position, leases, masters
from .sink import Sink
from .watch import Watch

#: Seconds without progress after which what is missing is lost.
STILL = 30.0
#: A replica took over where none was to: a server of a busy machine stood still.
UNPLANNED = "cluster: unplanned failover"
#: Errors that say that something is gone: a failover explains them, nothing else.
GONE = ("DataLossError", "StreamReplacedError")
#: Errors of servers that are away, and of those that refuse a command because they change.
AWAY = ("ConnectionFailedError", "CommandError")


@dataclass(frozen=True)
class Plan:
    """What an episode is made of."""

    seed: int
    faults: int
    kind: str = "headrace"
    shards: int = 12
    members: int = 5
    lease: float = 1.0
    rate: int = 300
    styles: tuple[str, ...] = ("batch", "entry", "check")
    #: The most seconds of work before a batch is written.
    work: float = 0.01


@dataclass
class Outcome:
    """What became of an episode."""

    faults: list[str] = field(default_factory=list)
    verdict: Verdict = field(default_factory=Verdict)
    #: Seconds until each shard had an owner, and until the shares were even, behind faults that happened alone.
    served: list[tuple[str, float]] = field(default_factory=list)
    settled: list[tuple[str, float]] = field(default_factory=list)
    #: How often a shard changed its owner.
    moves: int = 0
    #: Errors that members were told of, by class.
    errors: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "verdict": vars(self.verdict)}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Outcome:
        counters = {name: Counter(kept["verdict"][name]) for name in ("wrong", "log", "explained")}
        verdict = {**kept["verdict"], **counters}
        pairs = {name: [(fault, seconds) for fault, seconds in kept[name]] for name in ("served", "settled")}
        return cls(**{**kept, **pairs, "verdict": Verdict(**verdict), "errors": Counter(kept["errors"])})


class Episode:
    """An episode as it happens: the stage of the faults."""

    def __init__(self, plan: Plan, servers: OneServer | Cluster, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._plan = plan
        self._folder = folder
        self._chance = random.Random(f"{plan.seed} faults")
        self.servers = servers
        self.lease = plan.lease
        endpoint = Endpoint(**servers.endpoint, stream_key=STREAM_KEY, shards=plan.shards)
        self.streams = [key.decode() for key in endpoint.stream_keys]
        Sink.create(folder, self.streams)
        self._sink = Sink(folder)
        setting = Setting(folder, plan.kind, servers.endpoint, plan.shards, plan.lease, plan.styles, plan.work)
        self.outcome = Outcome()
        self._is_ours = plan.kind == "headrace"
        #: Whether the fault that happens is alone, so that what it causes can be measured.
        self._measures: str | None = None
        self._began = 0.0
        proxied = servers.server.port if isinstance(servers, OneServer) else None
        self.group = Group(setting, plan.seed, proxied)
        self._producer = Producer(endpoint, plan.rate, plan.seed)
        self._watch = Watch(servers, self.streams, self.outcome.verdict) if self._is_ours else None

    def run(self) -> Outcome:
        began = time.monotonic()
        before = masters(self.servers)
        try:
            self._producer.start()
            for _ in range(self._plan.members):
                self.group.start()
            self._settle(None)
            while len(self.outcome.faults) < self._plan.faults:
                self._strike(1 if self._chance.random() < 0.7 else self._chance.randint(2, 4))
            if masters(self.servers) != before and not any(name.startswith("cluster") for name in self.outcome.faults):
                self.outcome.faults.append(UNPLANNED)
            self._drain()
            self.group.terminate(*sorted(self.group.alive))
        finally:
            self._producer.stop()
            self.group.close()
            if self._watch is not None:
                self._watch.stop()
        self._judge()
        self._sink.close()
        self.outcome.seconds = time.monotonic() - began
        return self.outcome

    # What faults need.

    def owned_by(self, name: str) -> Mapping[str, int]:
        return self._watch.owned_by(name) if self._watch is not None else {}

    def served(self, before: Mapping[str, int]) -> None:
        if self._watch is None:
            time.sleep(self.lease * 1.2)
            return
        watch, began = self._watch, time.monotonic()
        took = watch.wait(lambda: watch.is_served(self.group.alive, before), PATIENCE)
        if took is None:
            self.outcome.verdict.add("a shard had no owner", (self.outcome.faults[-1:], self._state()))
        elif self._measures:
            self.outcome.served.append((self._measures, time.monotonic() - began))

    def _strike(self, count: int) -> None:
        """Let some faults happen, one directly behind the other."""
        for _ in range(count):
            name, fault = self._draw()
            self.outcome.faults.append(name)
            if name in UNDOING and self._watch is not None:
                self._watch.checker.is_lossy = True
            # Their work goes on meanwhile.
            time.sleep(self._chance.uniform(0.0, 0.1))
            self._measures = name if count == 1 else None
            fault(self, self._chance)
            self.group.check()
            if len(self.outcome.faults) >= self._plan.faults:
                break
        self._settle(self._measures)

    def _draw(self) -> tuple[str, Fault]:
        kinds = [OF_MEMBERS, OF_ONE_SERVER if isinstance(self.servers, OneServer) else OF_CLUSTERS]
        if self._is_ours:
            kinds.append(OF_LEASES)
        weights = [5, 4, 1][: len(kinds)]
        (kind,) = self._chance.choices(kinds, weights)
        if len(self.group.alive) > 12:
            kind = {name: OF_MEMBERS[name] for name in ("many leave", "many die")}
        return self._chance.choice(list(kind.items()))

    def _settle(self, measured: str | None) -> None:
        if self._watch is None:
            return
        watch, began = self._watch, time.monotonic()
        if watch.wait(lambda: watch.is_settled(self.group.alive), PATIENCE) is None:
            self.outcome.verdict.add("shares did not become even", (self.outcome.faults[-1:], self._state()))
        elif measured:
            self.outcome.settled.append((measured, time.monotonic() - began))

    def _state(self) -> dict[str, Any]:
        found: dict[str, Lease] = self._watch.leases() if self._watch is not None else {}
        return {"alive": sorted(self.group.alive), "leases": found}

    def _drain(self) -> None:
        """Wait until everything was processed, or nothing happens any more."""
        self._producer.stop()
        self.servers.whole()
        size, changed = self._sink.log_size(), time.monotonic()
        while time.monotonic() - changed < STILL:
            if (now := self._sink.log_size()) != size:
                size, changed = now, time.monotonic()
            if self._is_drained():
                return
            self.group.check()
            time.sleep(0.05)
        if self._is_ours:
            self.outcome.verdict.add("the end was not reached", self._state())

    def _is_drained(self) -> bool:
        if not self._is_ours:
            wanted = {(stream, entry.entry_id) for stream in self.streams for entry in entries(self.servers, stream)}
            return wanted <= {(row.shard, row.entry_id) for row in self._sink.log()}
        done = self._sink.ends()
        return all(done[stream] >= end(self.servers, stream) for stream in self.streams)

    def _judge(self) -> None:
        verdict = self.outcome.verdict
        is_lossy = bool((UNDOING | {UNPLANNED}) & {*self.outcome.faults}) or bool(self._producer.codes)
        streams = {stream: entries(self.servers, stream) for stream in self.streams}
        check_log(verdict, streams, self._sink.log(), counts=not self._is_ours)
        if self._watch is None:
            verdict.entries = sum(map(len, streams.values()))
            return
        check_rows(verdict, streams, self._sink.rows(), is_lossy=is_lossy)
        groups = {stream: group_position(self.servers, stream) for stream in self.streams}
        now = {shard: lease for shard, (lease, _) in leases(self.servers, self.streams).items()}
        check_positions(verdict, streams, now, groups)
        for each in self._lines("reports"):
            check_report(verdict, each["report"], each["withheld"])
            verdict.log.update({f"counted as {name}": each["report"][name] for name in ("fenced", "unknown")})
        for each in self._lines("errors"):
            self.outcome.errors[each["error"]] += 1
            if each["error"] in GONE:
                verdict.add("a member was told of a loss", each, verdict.explained if is_lossy else None)
            elif each["error"] not in AWAY:
                verdict.add("an error that no fault explains", each)
        self.outcome.moves = self._watch.checker.moves

    def _lines(self, name: str) -> list[dict[str, Any]]:
        path = self._folder / name
        lines = path.read_text().splitlines() if path.exists() else []
        # A member may have been killed as it wrote.
        return [json.loads(line) for line in lines if line.endswith("}")]
