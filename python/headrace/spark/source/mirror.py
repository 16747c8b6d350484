"""The consumer group that shows how far a streaming query has read (the option `commit_group`). It reads no entry."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Literal

from headrace.endpoint import Endpoint
from headrace.errors import CommandError, ConnectionFailedError, GroupMissingError, StateError
from headrace.group import Group
from headrace.spark.source.entry_ids import show
from headrace.spark.source.place import GroupState, Place
from headrace.spark.source.survey import Survey

__all__ = ["GroupMirror", "step"]

logger = logging.getLogger("headrace.spark")


def step(group: GroupState | None, place: Place) -> Literal["create", "move", "stay", "ahead", "used"]:
    """Return what to do with a group (None if it does not exist) to show that a query has read up to a place."""
    if group is None:
        return "create"
    if group.use:
        return "used"
    if group.place.id > place.id:
        return "ahead"
    if group.place.id == place.id and place.added in (None, group.place.added):
        return "stay"
    return "move"


class GroupMirror:
    """Moves a group of each stream to where a query has read. The checkpoint holds the position, not the group.

    The group is checked right before it is moved, but not in the same step: a consumer that joins in between may miss
    the entries of one micro-batch. The next check sees the consumer, and the group then stays where it is.
    """

    def __init__(self, survey: Survey, endpoint: Endpoint, name: str) -> None:
        self._survey = survey
        self._endpoint = endpoint
        self._name = name
        #: The last place that the group was to show, in each stream.
        self._shown: dict[str, Place] = {}
        self._has_moved = False
        self._logged: set[str] = set()

    def check(self, keys: Sequence[str]) -> None:
        """Refuse a group that is in use.

        Raises:
            StateError: It has consumers or pending entries.
            CommandError: A right is missing.
        """
        for key, group in self._survey.groups(keys, self._name).items():
            if group is not None and group.use:
                raise StateError(
                    f"commit_group={self._name!r}: the group of stream {key!r} has {group.use}, and moving it would "
                    "make its consumers miss entries: name a group that nothing reads from, or destroy this one"
                )

    def follow(self, places: Mapping[str, Place]) -> None:
        """Show that the query has read up to these places, unless the group shows it already.

        A failure is logged: nothing that the query reads depends on the group.

        Raises:
            CommandError: A right is missing, or the server is a replica; only before the group has moved once.
        """
        changed = {key: place for key, place in places.items() if self._shown.get(key) != place}
        if not changed:
            return
        self._shown |= changed
        try:
            # A stream that does not exist has no group.
            for key, group in self._survey.groups(list(changed), self._name).items():
                self._move(key, group, changed[key])
        except CommandError as error:
            if not self._has_moved:
                raise
            self._warn("failed", f"was not moved: {error}")
        except (ConnectionFailedError, GroupMissingError) as error:
            self._warn("failed", f"was not moved: {error}")

    def _move(self, key: str, found: GroupState | None, place: Place) -> None:
        what = step(found, place)
        if what in ("create", "move"):
            group = Group(self._endpoint._with_stream_key(key), self._name)
            if what == "create":
                group.create(f"({show(place.id)}", mkstream=False)
            group.set_position(f"({show(place.id)}", entries_read=place.added)
            self._has_moved = True
        elif found is not None and what == "used":
            text = f"the group of stream {key!r} has {found.use} now: it is not moved as long as it does"
            self._warn(f"used {key}", text)
        elif found is not None and what == "ahead":
            at = f"is at {show(found.place.id)}, and the query at {show(place.id)}"
            text = f"the group of stream {key!r} {at}: it is not moved back, but moves again once the query is ahead"
            self._warn(f"ahead {key}", text)

    def _warn(self, case: str, text: str) -> None:
        """Log a case only once: it recurs with each micro-batch."""
        if case not in self._logged:
            self._logged.add(case)
            logger.warning("commit_group=%r: %s", self._name, text)
