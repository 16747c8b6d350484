"""The faults of a group: changes that others make to it, and processes that share a name or are stopped."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from support.processes import wait_until

from . import read_kinds as kinds
from .journal import Failed, Handed, JournalView, Opened

if TYPE_CHECKING:
    from faults.proxy import Direction, Pair

    from .group_changes import GroupChanges
    from .read_episode import Episode

#: Seconds within which a fault that waits for a byte of the traffic must have struck.
_BYTE = 3.0


class GroupFaults:
    """Strikes the group of an episode."""

    def __init__(self, episode: Episode) -> None:
        self._episode = episode
        self._rng = episode.rng
        assert episode.group is not None
        self._group: GroupChanges = episode.group

    def strike(self, name: str) -> None:
        """Cause a fault of this kind. It counts if it struck."""
        if name == kinds.NAMESAKE:
            struck = self._run_namesake()
        elif name == kinds.STOP:
            struck = self._stop()
        elif name == kinds.SET_FORWARD:
            with self._episode.suspended():
                self._episode.add_entries(self._rng.choice([10, 100]))
                struck = self._group.move_forward()
        else:
            struck = self._change_at_byte(name)
        if struck:
            self._episode.struck.append(name)
        self._episode.update()
        self._group.end_claim()

    def _change_at_byte(self, name: str) -> bool:
        """Change the group while its consumers are working."""
        consumer = self._episode.process.config.consumer
        change = {
            kinds.SET_BACK: self._group.move_back,
            kinds.DELETE_CONSUMER: lambda: self._group.delete_consumer(consumer),
            kinds.DESTROY: self._group.destroy,
            kinds.CLAIM: self._group.claim,
        }[name]
        outcomes: list[bool] = []
        missed = self._missed_groups() + self._episode.count(Opened)
        direction: Direction = self._rng.choice(["requests", "replies"])

        def act(pair: Pair) -> None:
            del pair
            outcomes.append(change())

        self._episode.testbed.proxy.at(direction, self._rng.randint(0, 3_000), act)
        self._episode.add_entries(self._rng.choice([10, 100, 300]))
        deadline = time.monotonic() + _BYTE
        while not outcomes and time.monotonic() < deadline:
            time.sleep(0.002)
        self._episode.testbed.proxy.disarm()
        if name == kinds.DESTROY and any(outcomes):
            # A consumer created at this very moment creates the group, and misses nothing.
            self._episode.wait_for(
                lambda: self._missed_groups() + self._episode.count(Opened) > missed,
                "a report that the group is missing",
            )
        return any(outcomes)

    def _missed_groups(self) -> int:
        self._episode.update()
        failures = [record.error for record in self._episode.records if isinstance(record, Failed)]
        return sum("GroupMissingError" in error or "NOGROUP" in error for error in failures)

    def _run_namesake(self) -> bool:
        """Run a second process with the name of one that is running."""
        episode = self._episode
        journal = JournalView(episode.folder / f"journal-namesake-{len(episode.journals)}")
        episode.journals.append(journal)
        second = episode.start(journal, episode.process.config.consumer)
        try:
            episode.add_entries(self._rng.choice([10, 100, 300]))

            def has_read() -> bool:
                episode.update()
                found = {type(record) for record in journal.records}
                return {Opened, Handed} <= found

            deadline = time.monotonic() + _BYTE
            while not has_read() and time.monotonic() < deadline:
                episode.add_entries(1)
                time.sleep(0.01)
            if self._rng.random() < 0.5:
                second.kill()
            else:
                second.finish()
            wait_until(lambda: second.exit_code is not None, 30.0)
            if second.exit_code not in (0, -9):
                episode.failure(f"the second process ended with {second.exit_code}")
            # While the server lists a connection of it, a stopped consumer with the same name keeps its entries.
            wait_until(lambda: len(self._group.consumers_named(episode.process.config.consumer)) <= 1, 30.0)
            self._group.namesake_ended()
        finally:
            second.close()
        return has_read() and episode.process.exit_code is None

    def _stop(self) -> bool:
        """Stop a consumer gracefully while it works; another process takes its place."""
        episode = self._episode
        episode.add_entries(self._rng.choice([10, 100, 300]))
        time.sleep(self._rng.uniform(0.0, 0.05))
        episode.update()
        failures = episode.count(Failed)
        episode.process.finish()
        wait_until(lambda: episode.process.exit_code is not None, 30.0)
        is_well = episode.process.exit_code == 0
        episode.update()
        if not is_well:
            episode.failure(f"the process that was stopped ended with {episode.process.exit_code}")
        elif episode.count(Failed) == failures and episode.client.ours and episode.has_read():
            self._group.stopped(episode.process.config.consumer)
        episode.restart()
        return is_well
