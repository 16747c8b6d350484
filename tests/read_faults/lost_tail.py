"""A server that comes back without its latest entries."""

from __future__ import annotations

from pathlib import Path

from faults.testbed import FaultTestbed


class LostTail:
    """The current data of a server, which will lose everything that is added later."""

    def __init__(self, testbed: FaultTestbed, by_failover: bool) -> None:
        self._testbed = testbed
        self._by_failover = by_failover
        self._folder = Path(testbed.server.unix_socket).parent
        if by_failover:
            testbed.replicate()
            testbed.detach_replica()
        else:
            # Acknowledged writes are in the files, because appendfsync is `always`.
            self._files = {path: path.read_bytes() for path in self._append_only_files()}

    def lose(self) -> None:
        if self._by_failover:
            self._testbed.take_over()
            return
        self._testbed.server.kill()
        for path in self._append_only_files():
            path.unlink()
        for path, data in self._files.items():
            path.write_bytes(data)
        self._testbed.server.restart()

    def _append_only_files(self) -> list[Path]:
        return [path for path in self._folder.rglob("*append*") if path.is_file()]
