"""The reports of a dispatcher whose failures were not read."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING

from headrace.report import DeliveryReport, UnhandledFailures

if TYPE_CHECKING:
    from headrace import _headrace
    from headrace.endpoint import Endpoint

__all__ = ["UnreadReports"]


class UnreadReports:
    """Keeps the failures of reports until they are read, so that closing the dispatcher can raise them."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._process = os.getpid()
        # Garbage collection may come back here.
        self._lock = threading.RLock()
        self._reports: list[tuple[weakref.ref[DeliveryReport], UnhandledFailures]] = []
        self._dropped: UnhandledFailures | None = None
        self._sweep_at = 16

    def add(self, native: _headrace.Report) -> DeliveryReport:
        """Make the report for the caller."""
        report = DeliveryReport(native, self._endpoint)
        if report._unhandled is not None:
            self._forget_after_fork()
            with self._lock:
                self._reports.append((weakref.ref(report), report._unhandled))
                if len(self._reports) >= self._sweep_at:
                    self._sweep()
        return report

    def take(self) -> list[UnhandledFailures]:
        """Take all unhandled failures."""
        self._forget_after_fork()
        with self._lock:
            self._sweep()
            unhandled = [unhandled for _, unhandled in self._reports]
            if self._dropped is not None:
                unhandled.insert(0, self._dropped)
            self._reports, self._dropped = [], None
        return unhandled

    def take_dropped(self) -> list[UnhandledFailures]:
        """Take the unhandled failures of reports that are gone: the others can still be read."""
        self._forget_after_fork()
        with self._lock:
            self._sweep()
            dropped, self._dropped = self._dropped, None
        return [] if dropped is None else [dropped]

    def _sweep(self) -> None:
        """Forget handled reports; keep the counts of those that were dropped unhandled. Call it with the lock."""
        kept = []
        for reference, unhandled in self._reports:
            if unhandled.handled:
                continue
            if reference() is not None:
                kept.append((reference, unhandled))
            elif self._dropped is None:
                self._dropped = unhandled
            else:
                self._dropped.absorb(unhandled)
        self._reports = kept
        # The next sweep is due when the list has doubled, so that many kept reports cost amortised constant time.
        self._sweep_at = 2 * len(kept) + 16

    def _forget_after_fork(self) -> None:
        """After a fork, forget failures from before it: they belong to the parent."""
        if self._process != os.getpid():
            self._process, self._lock = os.getpid(), threading.RLock()
            self._reports, self._dropped = [], None
