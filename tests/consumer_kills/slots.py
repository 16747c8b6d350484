"""What a worker is doing, in memory that its parent reads: it stays there when the worker is killed."""

from __future__ import annotations

import mmap
import struct
from enum import IntEnum
from pathlib import Path

_NUMBER = struct.Struct("=Q")
_NAMES = ("phase", "batches", "committed", "late", "lost_leases")


class Phase(IntEnum):
    """What a worker is doing."""

    STARTING = 0
    #: It has no batch.
    WAITING = 1
    #: It has a batch, and has not committed it.
    WORKING = 2
    COMMITTING = 3
    #: It has committed a batch, and has not acknowledged it.
    COMMITTED = 4


#: Kills in these are kills in mid-work.
MID_WORK = frozenset({Phase.WORKING, Phase.COMMITTING, Phase.COMMITTED})


class Slot:
    """The numbers of one place in the group. One worker at a time writes them; they add up over all its workers."""

    def __init__(self, path: Path, place: int) -> None:
        size = len(_NAMES) * _NUMBER.size
        with open(path, "a+b") as file:
            file.truncate(max(path.stat().st_size, (place + 1) * size))
            self._memory = mmap.mmap(file.fileno(), 0)
        self._at = place * size

    @property
    def phase(self) -> Phase:
        return Phase(self.get("phase"))

    @phase.setter
    def phase(self, phase: Phase) -> None:
        self._set("phase", phase)

    def get(self, name: str) -> int:
        number: int = _NUMBER.unpack_from(self._memory, self._offset(name))[0]
        return number

    def add(self, name: str, count: int) -> None:
        self._set(name, self.get(name) + count)

    def _set(self, name: str, number: int) -> None:
        _NUMBER.pack_into(self._memory, self._offset(name), number)

    def _offset(self, name: str) -> int:
        return self._at + _NAMES.index(name) * _NUMBER.size
