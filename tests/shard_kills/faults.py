"""What happens to members and servers. Each fault returns once it is over; `Stage.served` measures in between."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from cluster_faults.faults import FAULTS as IN_CLUSTERS
from cluster_faults.faults import LOSSY
from faults.proxy import Act, Pair
from support.processes import kill_and_restart, resume, stop

from .group import Group
from .servers import Cluster, OneServer, lease_key, members_key

#: The most members of a group.
MOST = 20
#: The fewest, except for a moment.
FEWEST = 2


class Stage(Protocol):
    """Where faults happen."""

    group: Group
    servers: OneServer | Cluster
    streams: list[str]
    lease: float

    def owned_by(self, name: str) -> Mapping[str, int]:
        """The shards of a member, and their epochs."""

    def served(self, before: Mapping[str, int]) -> None:
        """Wait until each shard has an owner that is alive, and took it behind the epochs of `before`."""


Fault = Callable[[Stage, random.Random], object]


def _one(stage: Stage, chance: random.Random) -> str:
    """A member at work, of at least two."""
    while len(stage.group.alive) < FEWEST:
        stage.group.start()
        stage.served({})
    return chance.choice(sorted(stage.group.alive))


def kill(stage: Stage, chance: random.Random) -> None:
    """Its shards go to others, or to one that is started under a new name."""
    name = _one(stage, chance)
    lost = stage.owned_by(name)
    stage.group.kill(name)
    if chance.random() < 0.5:
        stage.group.start()
    stage.served(lost)


def kill_and_start_again(stage: Stage, chance: random.Random) -> None:
    """It has the same name, and gets its own back."""
    name = _one(stage, chance)
    lost = stage.owned_by(name)
    stage.group.kill(name)
    stage.group.start(name)
    stage.served(lost)


def suspend(stage: Stage, chance: random.Random) -> None:
    """A member stands still beyond its lease, and goes on with what it has in hand."""
    name = _one(stage, chance)
    lost = stage.owned_by(name)
    stage.group.stop(name)
    ends = time.monotonic() + stage.lease * chance.uniform(1.0, 2.5)
    try:
        stage.served(lost)
        time.sleep(max(0.0, ends - time.monotonic()))
    finally:
        stage.group.resume(name)


def suspend_shortly(stage: Stage, chance: random.Random) -> None:
    """About as long as its lease: some are taken, some are not."""
    name = _one(stage, chance)
    stage.group.stop(name)
    time.sleep(stage.lease * chance.uniform(0.5, 1.1))
    stage.group.resume(name)
    stage.served({})


def suspend_all(stage: Stage, chance: random.Random) -> None:
    """All leases end, and nobody takes them; then all go on at once."""
    names = sorted(stage.group.alive)
    for name in names:
        stage.group.stop(name)
    time.sleep(stage.lease * chance.uniform(1.0, 1.5))
    for name in names:
        stage.group.resume(name)
    stage.served({})


def leave(stage: Stage, chance: random.Random) -> None:
    name = _one(stage, chance)
    stage.group.terminate(name)
    stage.served({})


def start_again(stage: Stage, chance: random.Random) -> None:
    """It closes, and another one starts under its name: as for a new version."""
    name = _one(stage, chance)
    stage.group.terminate(name)
    stage.group.start(name)
    stage.served({})


def join(stage: Stage, _chance: random.Random) -> None:
    if len(stage.group.alive) < MOST // 2:
        stage.group.start()
    stage.served({})


def many_join(stage: Stage, chance: random.Random) -> None:
    for _ in range(min(chance.randint(2, MOST), MOST - len(stage.group.alive))):
        stage.group.start()
    stage.served({})


def many_leave(stage: Stage, chance: random.Random) -> None:
    names = sorted(stage.group.alive)
    stay = chance.randint(FEWEST, 6)
    chance.shuffle(names)
    stage.group.terminate(*names[stay:])
    stage.served({})


def many_die(stage: Stage, chance: random.Random) -> None:
    names = sorted(stage.group.alive)
    chance.shuffle(names)
    dead = names[chance.randint(FEWEST, 4) :]
    lost = {shard: epoch for name in dead for shard, epoch in stage.owned_by(name).items()}
    for name in dead:
        stage.group.kill(name)
    stage.served(lost)


def cut(stage: Stage, chance: random.Random) -> None:
    """A connection of a member ends at one of its bytes."""
    name = _one(stage, chance)
    ways: list[Act] = [Pair.reset, Pair.finish, lambda pair: pair.end("requests"), lambda pair: pair.end("replies")]
    stage.group.proxy(name).at(chance.choice(["requests", "replies"]), chance.randrange(3_000), chance.choice(ways))
    time.sleep(chance.uniform(0.1, 0.4))
    stage.group.proxy(name).disarm()
    stage.served({})


def cut_off(stage: Stage, chance: random.Random) -> None:
    """The network of a member is away beyond its lease; then everything that was under way arrives."""
    name = _one(stage, chance)
    lost = stage.owned_by(name)
    proxy = stage.group.proxy(name)
    stage.group.mark(name, is_away=True)

    def stall(pair: Pair) -> None:
        pair.stall("requests")
        pair.stall("replies")

    def go_on(pair: Pair) -> None:
        pair.resume("requests")
        pair.resume("replies")

    proxy.each(stall)
    try:
        stage.served(lost)
        time.sleep(stage.lease * chance.uniform(0.0, 1.0))
    finally:
        proxy.each(go_on)
        stage.group.mark(name, is_away=False)


def deliver_late(stage: Stage, chance: random.Random) -> None:
    """The connections of a member end, and the server gets the last bytes of them only later."""
    name = _one(stage, chance)
    seconds = stage.lease * chance.uniform(0.1, 1.5)

    def hold(pair: Pair) -> None:
        pair.hold("requests", seconds)
        pair.end("replies")

    proxy = stage.group.proxy(name)
    proxy.at("requests", chance.randrange(3_000), hold)
    time.sleep(chance.uniform(0.1, 0.4))
    proxy.disarm()
    time.sleep(seconds)
    stage.served({})


def end_connections(stage: Stage, _chance: random.Random) -> None:
    with stage.servers.client(stage.streams[0]) as client:
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    stage.served({})


def flush_scripts(stage: Stage, chance: random.Random) -> None:
    with stage.servers.client(chance.choice(stage.streams)) as client:
        client.script_flush()
    time.sleep(0.1)
    stage.served({})


def delete_lease(stage: Stage, chance: random.Random) -> None:
    """The group's own position remains."""
    shard = chance.choice(stage.streams)
    with stage.servers.client(shard) as client:
        client.delete(lease_key(shard))
    stage.served({})


def delete_members(stage: Stage, _chance: random.Random) -> None:
    with stage.servers.client(stage.streams[0]) as client:
        client.delete(members_key(stage.streams[0]))
    stage.served({})


def restart_server(stage: Stage, _chance: random.Random) -> None:
    """It is killed, and comes back with its data."""
    assert isinstance(stage.servers, OneServer)
    kill_and_restart(stage.servers.server)
    stage.served({})


def stop_server(stage: Stage, chance: random.Random) -> None:
    """It stands still, for less or for more than a lease."""
    assert isinstance(stage.servers, OneServer)
    stop(stage.servers.server)
    time.sleep(stage.lease * chance.uniform(0.2, 1.5))
    resume(stage.servers.server)
    stage.served({})


def _in_cluster(name: str, *, first: bool = False) -> Fault:
    """A fault of `campaign-cluster`, to the node of a shard. `first`: to that with the list of members."""

    def fault(stage: Stage, chance: random.Random) -> None:
        assert isinstance(stage.servers, Cluster)
        IN_CLUSTERS[name](stage.servers.cluster, stage.streams[0] if first else chance.choice(stage.streams), chance)
        stage.servers.whole()
        stage.served({})

    return fault


def stop_node_of_members(stage: Stage, chance: random.Random) -> None:
    """The owners of all other shards keep what they own."""
    assert isinstance(stage.servers, Cluster)
    cluster = stage.servers.cluster
    node = cluster.owner(stage.streams[0])
    for each in (node, *cluster.replicas_of(node)):
        stop(each)
    try:
        time.sleep(stage.lease * chance.uniform(0.5, 2.0))
    finally:
        for each in cluster.servers:
            resume(each)
    stage.servers.whole()
    stage.served({})


#: Those that happen to members.
OF_MEMBERS: dict[str, Fault] = {
    "kill": kill,
    "kill, same name": kill_and_start_again,
    "suspend": suspend,
    "suspend shortly": suspend_shortly,
    "suspend all": suspend_all,
    "leave": leave,
    "leave, same name": start_again,
    "join": join,
    "many join": many_join,
    "many leave": many_leave,
    "many die": many_die,
}
#: Those that need a `ShardConsumer`.
OF_LEASES: dict[str, Fault] = {
    "delete a lease": delete_lease,
    "delete the members": delete_members,
    "flush scripts": flush_scripts,
}
OF_ONE_SERVER: dict[str, Fault] = {
    "cut": cut,
    "cut off": cut_off,
    "deliver late": deliver_late,
    "end connections": end_connections,
    "restart server": restart_server,
    "stop server": stop_server,
}
#: `cut` and `delay` need an act at a byte that a quiet shard may not have.
OF_CLUSTERS: dict[str, Fault] = {
    **{f"cluster: {name}": _in_cluster(name) for name in IN_CLUSTERS if name not in ("cut", "cut target", "delay")},
    "cluster: move the members": _in_cluster("move", first=True),
    "cluster: fail the members over": _in_cluster("failover", first=True),
    "cluster: kill the node of the members": _in_cluster("kill", first=True),
    "cluster: stop the node of the members": stop_node_of_members,
}
#: A failover that may undo what only the old master has.
UNDOING = frozenset(f"cluster: {name}" for name in LOSSY) | {
    "cluster: kill the node of the members",
    "cluster: stop the node of the members",
}
