"""What a schedule does, step by step. All of it follows from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .packing import PACKINGS


class Step(NamedTuple):
    """An action, and what its choices follow from: they do not depend on the steps before it."""

    action: str
    seed: int


@dataclass(frozen=True)
class Plan:
    streams: int
    packing: str
    is_reverse: bool
    #: Whether all streams are in one slot of a cluster.
    has_one_slot: bool
    steps: tuple[Step, ...]

    def only(self, numbers: Sequence[int]) -> Plan:
        """The same with some of its steps."""
        steps = tuple(self.steps[number] for number in numbers)
        return Plan(self.streams, self.packing, self.is_reverse, self.has_one_slot, steps)


#: The actions of the program; the others change the streams.
PROGRAM = ("open", "read")
#: How often an action occurs.
_WEIGHTS = {
    "add": 26,
    "trim": 13,
    "delete": 5,
    "set_id": 3,
    "replace": 3,
    "spoil": 1,
    "last": 1,
    "open": 20,
    "read": 28,
}


def plan_of(seed: object) -> Plan:
    """The plan of a schedule. Some streams have entries before it begins."""
    rng = random.Random(f"positions/{seed}")
    streams = rng.choice([1, 1, 1, 2, 2, 3, 4, 5])
    names = ["add"] * rng.randint(0, 2 * streams)
    if rng.random() < 0.3:
        names.append("trim")
    weights = dict(_WEIGHTS)
    for name in ("trim", "delete", "set_id", "replace", "spoil", "last"):
        # Few kinds of changes at a time: after some of them little is promised.
        if name != "trim" and rng.random() < 0.6:
            del weights[name]
    names += ["open", *rng.choices(list(weights), list(weights.values()), k=rng.randint(4, 24))]
    steps = tuple(Step(name, rng.getrandbits(32)) for name in names)
    return Plan(streams, rng.choice(list(PACKINGS)), rng.random() < 0.1, rng.random() < 0.5, steps)
