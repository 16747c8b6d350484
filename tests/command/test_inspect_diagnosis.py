"""The diagnosis of `headrace inspect`, from plain values, and the quoting of its remedies."""

from __future__ import annotations

import subprocess

import pytest

from headrace_command.inspect.command_line import quoted
from headrace_command.inspect.diagnosis import diagnose
from headrace_command.inspect.facts import Consumer, Group, Pending, Stream
from headrace_command.text import duration, rate, size

HOUR = 3600.0


def group(
    *,
    lag: int | None = 0,
    consumers: list[Consumer] | None = None,
    entries: list[Pending] | None = None,
    pending: int | None = None,
    position: int = 100,
    read_rate: float | None = None,
    growth: float | None = None,
) -> Group:
    entries = entries or []
    return Group(
        name=b"g",
        last_delivered=(position, 0),
        entries_read=None,
        lag=lag,
        lag_unknown="the server does not say" if lag is None else None,
        lag_most=50 if lag is None else lag,
        trimmed_unread=None,
        pending=len(entries) if pending is None else pending,
        consumers=consumers if consumers is not None else [consumer(pending=len(entries))],
        entries=entries,
        read_rate=read_rate,
        lag_growth=growth,
    )


def consumer(name: bytes = b"c", *, pending: int = 0, idle: float = 0) -> Consumer:
    return Consumer(name, pending, idle, None)


def pending(number: int = 1, *, idle: float = 0, deliveries: int = 1, exists: bool = True, of: bytes = b"c") -> Pending:
    return Pending((number, 0), of, idle, deliveries, exists)


def codes(*groups: Group, added: float | None = None) -> list[str]:
    stream = Stream(
        key=b"s",
        now=1000.0,
        length=50,
        entries_added=None,
        first=(1, 0),
        last=(100, 0),
        last_generated=(100, 0),
        memory=None,
        rate=added,
        seconds=None if added is None else 1.0,
        dead_letters=None,
        groups=list(groups),
    )
    return [finding.code for finding in diagnose(stream, 60)]


def test_a_stream_without_groups_is_healthy() -> None:
    assert codes() == []


@pytest.mark.parametrize(
    "healthy",
    [
        group(),
        group(consumers=[]),  # nothing waits for it
        group(consumers=[consumer(idle=10 * HOUR)]),  # blocked at the end of the stream
        group(entries=[pending(idle=59)]),  # at work
        group(entries=[pending(deliveries=4)]),
        group(entries=[pending(idle=2 * HOUR, deliveries=2)]),  # it did ask for its own ones
        group(lag=30, read_rate=100, growth=0),
        group(lag=30, consumers=[consumer(idle=5)]),
        group(lag=99, read_rate=80, growth=20),  # less than the entries of a second
        group(lag=500, read_rate=100, growth=5),  # chance
    ],
)
def test_a_healthy_group_has_no_findings(healthy: Group) -> None:
    assert codes(healthy, added=100) == []


@pytest.mark.parametrize(
    ("stuck", "expected"),
    [
        (group(entries=[pending(idle=61)], consumers=[consumer(pending=1, idle=61)]), ["DEAD_CONSUMER"]),
        (group(pending=5000, consumers=[consumer(b"other", pending=9, idle=HOUR)]), ["DEAD_CONSUMER"]),
        (group(entries=[pending(idle=60)]), ["READS_ONLY_NEW"]),
        (group(entries=[pending(deliveries=5)]), ["POISON_ENTRY"]),
        # Up to 20 the counter holds deliveries; above, a consumer of headrace counts failures.
        (group(entries=[pending(deliveries=20)]), ["POISON_ENTRY"]),
        (group(entries=[pending(deliveries=21, idle=61)]), ["FAILED_ENTRY"]),
        (group(entries=[pending(deliveries=24, idle=61)]), ["FAILED_ENTRY"]),
        (group(entries=[pending(deliveries=25, idle=61)]), ["POISON_ENTRY"]),
        (group(entries=[pending(1, deliveries=6), pending(2, deliveries=22)]), ["POISON_ENTRY", "FAILED_ENTRY"]),
        (group(entries=[pending(deliveries=0, idle=61)]), []),
        (group(entries=[pending(exists=False)]), ["TRIMMED_PENDING"]),
        (group(entries=[pending()], lag=9, consumers=[consumer(pending=1, idle=6)]), ["SLOW_CONSUMER"]),
        (group(lag=1, consumers=[]), ["NO_CONSUMER"]),
        (group(lag=1, consumers=[consumer(idle=60)]), ["NO_LIVE_CONSUMER"]),
        (group(lag=None, consumers=[]), ["NO_CONSUMER", "LAG_UNKNOWN"]),
        (group(lag=None), ["LAG_UNKNOWN"]),
        (group(position=101), ["GROUP_AHEAD"]),
        (group(position=101, lag=None, consumers=[]), ["GROUP_AHEAD"]),
        (group(lag=100, read_rate=80, growth=20), ["PRODUCER_FASTER"]),
        (group(lag=5000, read_rate=1000, growth=-900), ["CATCHING_UP"]),
        # A trimmed entry is not one that its consumer holds.
        (
            group(entries=[pending(idle=HOUR, exists=False)], consumers=[consumer(pending=1, idle=HOUR)]),
            ["TRIMMED_PENDING"],
        ),
    ],
)
def test_each_cause_produces_its_finding(stuck: Group, expected: list[str]) -> None:
    assert codes(stuck, added=100) == expected


def test_alarms_come_before_notes() -> None:
    assert codes(group(lag=None), group(entries=[pending(deliveries=9)])) == ["POISON_ENTRY", "LAG_UNKNOWN"]


@pytest.mark.parametrize(
    "word", [b"s", b"", b"a b", b"$(id)", b"`id`", b"a'b", b"\\", b"\xff'\\1", b"\x1b[31m1", "größe".encode(), b"!x\n"]
)
def test_a_shell_parses_quoted_words_unchanged(word: bytes) -> None:
    line = quoted(word)
    assert line.isprintable()
    assert subprocess.run(["bash", "-c", f"printf %s {line}"], capture_output=True, check=True).stdout == word


def test_numbers_are_readable() -> None:
    shown = ["46 ms", "1.0 s", "59 s", "119 s", "2 min", "119 min", "2 h", "2 d"]
    assert [duration(n) for n in (0.0456, 1, 59, 119, 120, 7199, 7200, 172_800)] == shown
    assert [rate(n) for n in (0.0, 0.26, 12.4, 1234.0)] == ["0/s", "0.3/s", "12/s", "1,234/s"]
    assert [size(n) for n in (5, 1536, 20 << 20, 5 << 40)] == ["5 B", "1.5 KiB", "20 MiB", "5,120 GiB"]
