"""The kinds of faults. Each strikes at one byte of the traffic and ends by itself.

A strike runs in the proxy's thread, while no byte moves, and sets a timer that undoes it.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from support.processes import wait_until

from .proxy import Direction, Pair
from .testbed import USER, FaultTestbed

#: Seconds after which the senders consider a server silent.
TIMEOUT = 0.25

Strike = Callable[[FaultTestbed, Pair, random.Random], object]


@dataclass(frozen=True)
class FaultKind:
    """One kind of fault."""

    name: str
    of: Literal["network", "process", "server"]
    strike: Strike
    #: The direction of the byte that triggers it; None means either.
    direction: Direction | None = None
    #: What must be prepared before the messages are sent.
    prepare: Callable[[FaultTestbed], object] | None = None
    #: Whether messages that the sender gave up on may be written after later ones.
    late: bool = False
    #: Whether messages may get an error reply.
    refuses: bool = False
    #: Whether messages may fail without a possible retry.
    fails: bool = False
    #: Relative frequency with which it is drawn; slow kinds are drawn less often.
    weight: int = 3


def _duration(rng: random.Random, shortest: float, longest: float) -> float:
    return rng.uniform(shortest, longest)


# Faults of the network.


def _reset(testbed: FaultTestbed, pair: Pair, rng: random.Random) -> None:
    pair.reset()


def _finish(testbed: FaultTestbed, pair: Pair, rng: random.Random) -> None:
    pair.finish()


def _half_close(direction: Direction) -> Strike:
    def strike(testbed: FaultTestbed, pair: Pair, rng: random.Random) -> None:
        pair.end(direction)

    return strike


def _stall(direction: Direction) -> Strike:
    def strike(testbed: FaultTestbed, pair: Pair, rng: random.Random) -> None:
        pair.stall(direction)
        # Shorter or longer than the sender's timeout.
        testbed.proxy.after(_duration(rng, 0.02, 2 * TIMEOUT), lambda: pair.resume(direction))

    return strike


def _late(testbed: FaultTestbed, pair: Pair, rng: random.Random) -> None:
    pair.hold("requests", _duration(rng, 0.05, 2 * TIMEOUT))
    testbed.proxy.after(2.1 * TIMEOUT, lambda: None)  # the next fault counts none of these bytes


def _byte_by_byte(testbed: FaultTestbed, pair: Pair, rng: random.Random) -> None:
    pair.slow(1, 0.0)
    testbed.proxy.after(0.05, lambda: pair.slow(0, 0.0))


def _narrow(testbed: FaultTestbed, pair: Pair, rng: random.Random) -> None:
    pair.slow(rng.choice([16, 100, 1000]), 0.001)
    testbed.proxy.after(_duration(rng, 0.01, 0.1), lambda: pair.slow(0, 0.0))


#: Neither a reply to XADD nor part of one.
GARBAGE = (
    b"\0",
    b"?\r\n",
    b"$-5\r\n",
    b"*1\r\n",
    b"$99999999999999999999\r\n",
    b"HTTP/1.1 400 Bad Request\r\n",
    b"+OK\r\n",
)


def _garbage(testbed: FaultTestbed, pair: Pair, rng: random.Random) -> None:
    pair.inject("replies", rng.choice(GARBAGE))
    # Later bytes could otherwise be parsed as replies.
    pair.end("replies")


def _refused(testbed: FaultTestbed, pair: Pair, rng: random.Random) -> None:
    testbed.proxy.refuses = True
    testbed.proxy.after(_duration(rng, 0.0, 0.1), lambda: setattr(testbed.proxy, "refuses", False))
    pair.reset()


def _not_accepted(testbed: FaultTestbed, pair: Pair, rng: random.Random) -> None:
    testbed.proxy.accepts = False
    testbed.proxy.after(_duration(rng, 0.0, 2 * TIMEOUT), lambda: setattr(testbed.proxy, "accepts", True))
    pair.reset()


# Faults of the server's process.


def _suspend(shortest: float, longest: float) -> Strike:
    def strike(testbed: FaultTestbed, pair: Pair, rng: random.Random) -> None:
        testbed.suspend()
        testbed.proxy.after(_duration(rng, shortest, longest), testbed.resume)

    return strike


def _kill(testbed: FaultTestbed, pair: Pair, rng: random.Random) -> None:
    testbed.server.kill()
    testbed.proxy.after(_duration(rng, 0.0, 0.1), testbed.server.restart)


# Faults that the server causes itself.


def _client_kill(testbed: FaultTestbed, pair: Pair, rng: random.Random) -> None:
    testbed.kill_clients()


def _pause(shortest: float, longest: float) -> Strike:
    def strike(testbed: FaultTestbed, pair: Pair, rng: random.Random) -> None:
        testbed.command("CLIENT", "PAUSE", 60_000, "WRITE")
        testbed.proxy.after(_duration(rng, shortest, longest), lambda: testbed.command("CLIENT", "UNPAUSE"))

    return strike


def _out_of_memory(testbed: FaultTestbed, pair: Pair, rng: random.Random) -> None:
    testbed.config(maxmemory=1)
    for turn in range(1, rng.randint(1, 4)):  # memory runs out and is freed repeatedly
        testbed.proxy.after(0.005 * (2 * turn - 1), lambda: testbed.config(maxmemory=0))
        testbed.proxy.after(0.005 * 2 * turn, lambda: testbed.config(maxmemory=1))
    testbed.proxy.after(_duration(rng, 0.05, 0.1), lambda: testbed.config(maxmemory=0))


def _no_permission(testbed: FaultTestbed, pair: Pair, rng: random.Random) -> None:
    testbed.allow("-xadd")
    testbed.proxy.after(_duration(rng, 0.0, 0.05), testbed.allow_all)


def _no_user(testbed: FaultTestbed, pair: Pair, rng: random.Random) -> None:
    testbed.command("ACL", "DELUSER", USER)
    testbed.proxy.after(_duration(rng, 0.0, 0.05), testbed.allow_all)


def _read_only(testbed: FaultTestbed, pair: Pair, rng: random.Random) -> None:
    testbed.control.replicaof("127.0.0.1", 1)  # nothing listens there: it keeps its data
    testbed.proxy.after(_duration(rng, 0.0, 0.1), lambda: testbed.control.replicaof("NO", "ONE"))


def _fail_over(testbed: FaultTestbed, pair: Pair, rng: random.Random) -> None:
    testbed.fail_over()
    testbed.proxy.after(_duration(rng, 0.0, 0.3), testbed.fail_back)


def _too_few_replicas(testbed: FaultTestbed, pair: Pair, rng: random.Random) -> None:
    testbed.config(min_replicas_to_write=1)
    testbed.proxy.after(_duration(rng, 0.0, 0.05), lambda: testbed.config(min_replicas_to_write=0))


def _too_many_clients(testbed: FaultTestbed, pair: Pair, rng: random.Random) -> None:
    testbed.connect()
    testbed.config(maxclients=1)
    testbed.kill_clients()
    testbed.proxy.after(_duration(rng, 0.01, 0.1), lambda: testbed.config(maxclients=1000))


def _idle(testbed: FaultTestbed, pair: Pair, rng: random.Random) -> None:
    """The server closes idle connections after a second; the traffic stalls for longer."""
    pair.stall("requests")
    testbed.config(timeout=1)

    def resume() -> None:
        testbed.config(timeout=0)
        pair.resume("requests")

    testbed.proxy.after(1.3, resume)


def _busy(testbed: FaultTestbed, pair: Pair, rng: random.Random) -> None:
    """An endless script is running; the server replies to every other command with BUSY."""
    runner = socket.socket(socket.AF_UNIX)
    runner.connect(testbed.server.unix_socket)
    runner.sendall(b"EVAL 'while true do end' 0\r\n")
    wait_until(lambda: not testbed.answers())

    def end() -> None:
        testbed.control.script_kill()
        wait_until(testbed.answers)
        runner.close()

    testbed.proxy.after(_duration(rng, 0.03, 0.15), end)


KINDS: dict[str, FaultKind] = {
    kind.name: kind
    for kind in (
        FaultKind("reset in requests", "network", _reset, "requests"),
        FaultKind("reset in replies", "network", _reset, "replies"),
        FaultKind("end in requests", "network", _finish, "requests"),
        FaultKind("end in replies", "network", _finish, "replies"),
        FaultKind("half-close to the client", "network", _half_close("replies"), late=True),
        FaultKind("half-close to the server", "network", _half_close("requests")),
        FaultKind("requests stall", "network", _stall("requests"), late=True),
        FaultKind("replies stall", "network", _stall("replies")),
        FaultKind("requests come late", "network", _late, "requests", late=True, weight=2),
        FaultKind("byte by byte", "network", _byte_by_byte),
        FaultKind("narrow", "network", _narrow),
        FaultKind("garbage in replies", "network", _garbage, "replies", late=True, fails=True),
        FaultKind("connections refused", "network", _refused),
        FaultKind("connections not accepted", "network", _not_accepted, weight=2),
        FaultKind("SIGSTOP, short", "process", _suspend(0.005, 0.1), late=True),
        FaultKind("SIGSTOP, long", "process", _suspend(1.1 * TIMEOUT, 2 * TIMEOUT), late=True, weight=2),
        FaultKind("SIGKILL", "process", _kill, refuses=True, weight=2),
        FaultKind("CLIENT KILL", "server", _client_kill),
        FaultKind("CLIENT PAUSE, short", "server", _pause(0.005, 0.1), late=True),
        FaultKind("CLIENT PAUSE, long", "server", _pause(1.1 * TIMEOUT, 2 * TIMEOUT), late=True, weight=2),
        FaultKind("maxmemory", "server", _out_of_memory, refuses=True),
        FaultKind("ACL -xadd", "server", _no_permission, refuses=True),
        FaultKind("ACL DELUSER", "server", _no_user, refuses=True),
        FaultKind("REPLICAOF", "server", _read_only, refuses=True),
        FaultKind("FAILOVER", "server", _fail_over, prepare=FaultTestbed.replicate, refuses=True, late=True, weight=1),
        FaultKind("min-replicas-to-write", "server", _too_few_replicas, refuses=True),
        FaultKind("maxclients", "server", _too_many_clients, refuses=True),
        FaultKind("idle timeout", "server", _idle, "requests", late=True, weight=1),
        FaultKind("BUSY script", "server", _busy, refuses=True, late=True),
    )
}
