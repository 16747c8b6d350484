"""A progress line: rewritten on a terminal, otherwise printed at intervals."""

from __future__ import annotations

import time

import pytest

#: Seconds between two lines without a terminal.
PAUSE = 15.0


class Progress:
    """A pytest plugin that shows the name of the test and its parameters, instead of pytest's dots."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._all = self._begun = 0
        self._started = self._last = 0.0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._all = len(session.items)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        terminal, now = self._config.get_terminal_writer(), time.monotonic()
        self._started = self._started or now
        self._begun += 1
        if not terminal.hasmarkup and now - self._last < PAUSE and self._begun < self._all:
            return
        self._last = now
        name = getattr(item, "originalname", item.name).removeprefix("test_").replace("_", " ")
        words = item.callspec.id if hasattr(item, "callspec") else ""
        line = f"{self._begun} of {self._all}, {now - self._started:.0f} s: {name}: {words}"
        if terminal.hasmarkup:
            terminal.write(f"\r\033[K{line[: terminal.fullwidth - 1]}", flush=True)
        else:
            terminal.line(line)

    def pytest_sessionfinish(self) -> None:
        if (terminal := self._config.get_terminal_writer()).hasmarkup:
            terminal.write("\r\033[K", flush=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        return ("passed" if report.when == "call" else "", "", "") if report.passed else None
