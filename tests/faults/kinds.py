"""The kinds of faults: each happens at one byte of the traffic, and passes by itself.

An act runs in the proxy's thread, while nothing moves. What it harms it also mends, by a timer.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from support.processes import wait_until

from .lab import USER, Lab
from .proxy import Direction, Pair

#: Seconds after which the senders of the laboratory take a server for silent.
TIMEOUT = 0.25

Strike = Callable[[Lab, Pair, random.Random], object]


@dataclass(frozen=True)
class Kind:
    """One sort of fault."""

    name: str
    of: Literal["network", "process", "server"]
    strike: Strike
    #: At a byte of which direction; None: either.
    direction: Direction | None = None
    #: What is made ready before the traffic.
    prepare: Callable[[Lab], object] | None = None
    #: Whether messages that the sender gave up may be written behind later ones.
    late: bool = False
    #: Whether messages may be refused by an error reply.
    refuses: bool = False
    #: Whether messages may fail that are not sent again by themselves.
    fails: bool = False
    #: How often it is drawn, beside the others: those that take long are drawn less.
    weight: int = 3


def _some(rng: random.Random, shortest: float, longest: float) -> float:
    return rng.uniform(shortest, longest)


# The network.


def _reset(lab: Lab, pair: Pair, rng: random.Random) -> None:
    pair.reset()


def _finish(lab: Lab, pair: Pair, rng: random.Random) -> None:
    pair.finish()


def _half_close(direction: Direction) -> Strike:
    def strike(lab: Lab, pair: Pair, rng: random.Random) -> None:
        pair.end(direction)

    return strike


def _stall(direction: Direction) -> Strike:
    def strike(lab: Lab, pair: Pair, rng: random.Random) -> None:
        pair.stall(direction)
        # Shorter or longer than the sender has patience.
        lab.proxy.after(_some(rng, 0.02, 2 * TIMEOUT), lambda: pair.resume(direction))

    return strike


def _late(lab: Lab, pair: Pair, rng: random.Random) -> None:
    pair.hold("requests", _some(rng, 0.05, 2 * TIMEOUT))
    lab.proxy.after(2.1 * TIMEOUT, lambda: None)  # nothing begins before it was delivered


def _byte_by_byte(lab: Lab, pair: Pair, rng: random.Random) -> None:
    pair.slow(1, 0.0)
    lab.proxy.after(0.05, lambda: pair.slow(0, 0.0))


def _narrow(lab: Lab, pair: Pair, rng: random.Random) -> None:
    pair.slow(rng.choice([16, 100, 1000]), 0.001)
    lab.proxy.after(_some(rng, 0.01, 0.1), lambda: pair.slow(0, 0.0))


#: No reply to XADD, nor a part of one.
GARBAGE = (
    b"\0",
    b"?\r\n",
    b"$-5\r\n",
    b"*1\r\n",
    b"$99999999999999999999\r\n",
    b"HTTP/1.1 400 Bad Request\r\n",
    b"+OK\r\n",
)


def _garbage(lab: Lab, pair: Pair, rng: random.Random) -> None:
    pair.inject("replies", rng.choice(GARBAGE))
    # What follows would be taken for replies, in part.
    pair.end("replies")


def _refused(lab: Lab, pair: Pair, rng: random.Random) -> None:
    lab.proxy.refuses = True
    lab.proxy.after(_some(rng, 0.0, 0.1), lambda: setattr(lab.proxy, "refuses", False))
    pair.reset()


def _not_accepted(lab: Lab, pair: Pair, rng: random.Random) -> None:
    lab.proxy.accepts = False
    lab.proxy.after(_some(rng, 0.0, 2 * TIMEOUT), lambda: setattr(lab.proxy, "accepts", True))
    pair.reset()


# The server's process.


def _stand_still(shortest: float, longest: float) -> Strike:
    def strike(lab: Lab, pair: Pair, rng: random.Random) -> None:
        lab.stop()
        lab.proxy.after(_some(rng, shortest, longest), lab.go_on)

    return strike


def _kill(lab: Lab, pair: Pair, rng: random.Random) -> None:
    lab.server.kill()
    lab.proxy.after(_some(rng, 0.0, 0.1), lab.server.restart)


# What the server does to its clients.


def _client_kill(lab: Lab, pair: Pair, rng: random.Random) -> None:
    lab.kill_clients()


def _pause(shortest: float, longest: float) -> Strike:
    def strike(lab: Lab, pair: Pair, rng: random.Random) -> None:
        lab.command("CLIENT", "PAUSE", 60_000, "WRITE")
        lab.proxy.after(_some(rng, shortest, longest), lambda: lab.command("CLIENT", "UNPAUSE"))

    return strike


def _out_of_memory(lab: Lab, pair: Pair, rng: random.Random) -> None:
    lab.config(maxmemory=1)
    for turn in range(1, rng.randint(1, 4)):  # it comes and goes
        lab.proxy.after(0.005 * (2 * turn - 1), lambda: lab.config(maxmemory=0))
        lab.proxy.after(0.005 * 2 * turn, lambda: lab.config(maxmemory=1))
    lab.proxy.after(_some(rng, 0.05, 0.1), lambda: lab.config(maxmemory=0))


def _no_permission(lab: Lab, pair: Pair, rng: random.Random) -> None:
    lab.allow("-xadd")
    lab.proxy.after(_some(rng, 0.0, 0.05), lab.allow_all)


def _no_user(lab: Lab, pair: Pair, rng: random.Random) -> None:
    lab.command("ACL", "DELUSER", USER)
    lab.proxy.after(_some(rng, 0.0, 0.05), lab.allow_all)


def _read_only(lab: Lab, pair: Pair, rng: random.Random) -> None:
    lab.control.replicaof("127.0.0.1", 1)  # nobody is there: it keeps what it has
    lab.proxy.after(_some(rng, 0.0, 0.1), lambda: lab.control.replicaof("NO", "ONE"))


def _fail_over(lab: Lab, pair: Pair, rng: random.Random) -> None:
    lab.fail_over()
    lab.proxy.after(_some(rng, 0.0, 0.3), lab.fail_back)


def _too_few_replicas(lab: Lab, pair: Pair, rng: random.Random) -> None:
    lab.config(min_replicas_to_write=1)
    lab.proxy.after(_some(rng, 0.0, 0.05), lambda: lab.config(min_replicas_to_write=0))


def _too_many_clients(lab: Lab, pair: Pair, rng: random.Random) -> None:
    # The laboratory's own connection is one of them.
    lab.config(maxclients=1)
    lab.kill_clients()
    lab.proxy.after(_some(rng, 0.01, 0.1), lambda: lab.config(maxclients=1000))


def _idle(lab: Lab, pair: Pair, rng: random.Random) -> None:
    """Connections that say nothing are closed after a second; the traffic stalls for longer than that."""
    pair.stall("requests")
    lab.config(timeout=1)

    def go_on() -> None:
        lab.config(timeout=0)
        pair.resume("requests")

    lab.proxy.after(1.3, go_on)


def _busy(lab: Lab, pair: Pair, rng: random.Random) -> None:
    """A script that does not end: every other command is answered by BUSY meanwhile."""
    runner = socket.socket(socket.AF_UNIX)
    runner.connect(lab.server.unix_socket)
    runner.sendall(b"EVAL 'while true do end' 0\r\n")
    wait_until(lambda: not lab.answers())

    def end() -> None:
        lab.control.script_kill()
        wait_until(lab.answers)
        runner.close()

    lab.proxy.after(_some(rng, 0.03, 0.15), end)


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("reset in requests", "network", _reset, "requests"),
        Kind("reset in replies", "network", _reset, "replies"),
        Kind("end in requests", "network", _finish, "requests"),
        Kind("end in replies", "network", _finish, "replies"),
        Kind("half-close to the client", "network", _half_close("replies"), late=True),
        Kind("half-close to the server", "network", _half_close("requests")),
        Kind("requests stall", "network", _stall("requests"), late=True),
        Kind("replies stall", "network", _stall("replies")),
        Kind("requests come late", "network", _late, "requests", late=True, weight=2),
        Kind("byte by byte", "network", _byte_by_byte),
        Kind("narrow", "network", _narrow),
        Kind("garbage in replies", "network", _garbage, "replies", late=True, fails=True),
        Kind("connections refused", "network", _refused),
        Kind("connections not accepted", "network", _not_accepted, weight=2),
        Kind("SIGSTOP, short", "process", _stand_still(0.005, 0.1), late=True),
        Kind("SIGSTOP, long", "process", _stand_still(1.1 * TIMEOUT, 2 * TIMEOUT), late=True, weight=2),
        Kind("SIGKILL", "process", _kill, refuses=True, weight=2),
        Kind("CLIENT KILL", "server", _client_kill),
        Kind("CLIENT PAUSE, short", "server", _pause(0.005, 0.1), late=True),
        Kind("CLIENT PAUSE, long", "server", _pause(1.1 * TIMEOUT, 2 * TIMEOUT), late=True, weight=2),
        Kind("maxmemory", "server", _out_of_memory, refuses=True),
        Kind("ACL -xadd", "server", _no_permission, refuses=True),
        Kind("ACL DELUSER", "server", _no_user, refuses=True),
        Kind("REPLICAOF", "server", _read_only, refuses=True),
        Kind("FAILOVER", "server", _fail_over, prepare=Lab.replicate, refuses=True, late=True, weight=1),
        Kind("min-replicas-to-write", "server", _too_few_replicas, refuses=True),
        Kind("maxclients", "server", _too_many_clients, refuses=True),
        Kind("idle timeout", "server", _idle, "requests", late=True, weight=1),
        Kind("BUSY script", "server", _busy, refuses=True, late=True),
    )
}
