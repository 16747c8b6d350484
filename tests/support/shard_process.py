"""A member in a process of its own, which does what it is told: it can be killed and suspended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headrace import Endpoint, LeaseLostError
from headrace.testing import LocalServer
from support.paths import TESTS
from support.processes import wait_until

__all__ = ["MemberProcess"]


class MemberProcess:
    """A process with a member. The keyword arguments are those of `support.shard_consumers.member_of`."""

    def __init__(self, server: LocalServer, name: str = "a", streams: list[str] | None = None, **options: Any) -> None:
        self.name = name
        given = json.dumps([str(server.unix_socket), name, streams, options])
        path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [sys.executable, __file__, given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )

    def ask(self, what: str) -> Any:
        """Have it do something, and return what came of it."""
        self.tell(what)
        return self.answer()

    def tell(self, what: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._process.kill()
        self._process.wait()

    def suspend(self) -> None:
        self._process.send_signal(signal.SIGSTOP)
        stat = Path(f"/proc/{self._process.pid}/stat")
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()


def main() -> None:
    from support.pipelines import KEY
    from support.shard_consumers import ids_of, member_of, next_batch

    socket, name, streams, options = json.loads(sys.argv[1])
    revoked: list[str] = []
    endpoint = Endpoint(unix_socket=socket, stream_key=KEY)
    member = member_of(
        endpoint, name, streams, on_revoked=lambda keys: revoked.extend(key.decode() for key in keys), **options
    )
    held: list[Any] = []

    def do(what: str) -> Any:
        if what == "poll":
            held.append(next_batch(member))
            return held[-1].stream.decode(), ids_of(held[-1]), held[-1].epoch
        if what == "look":
            if (batch := member.poll(0.0)) is not None:
                held.append(batch)
            return batch is not None
        if what == "check":
            try:
                held[-1].check()
            except LeaseLostError as error:
                return [str(error.stream), error.entry_ids, str(error)]
            return []
        if what == "commit":
            member.commit(held[-1])
            return member.flush()._asdict()
        if what == "note":  # a commit without waiting for it
            return member.commit(held[-1])
        if what == "report":
            return member.report()._asdict()
        if what == "assignment":
            return sorted(key.decode() for key in member.assignment)
        assert what == "revoked"
        return sorted(revoked)

    for line in sys.stdin:
        print(json.dumps(do(line.strip())), flush=True)


if __name__ == "__main__":
    main()
