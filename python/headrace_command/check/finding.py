"""What a check found, and how stdout shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import wrap
from typing import Any, Literal

from headrace_command.output import Output
from headrace_command.text import printable

__all__ = ["Finding", "State", "write"]

State = Literal["ok", "warn", "fail", "unknown"]
_WORDS = {"ok": "ok", "warn": "warn", "fail": "FAIL", "unknown": "unknown", "no": "no"}
#: The narrowest column, in characters, to which a text is wrapped.
_LEAST_ROOM = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One step.

    Attributes:
        name: The step.
        state: "unknown" if it could not be determined.
        text: A sentence; for a failure, also what to do.
        seconds: How long it took.
        node: The server, unless it is the one with the stream.
        passes: Whether a failure may be temporary.
        code: The error code of a failure.
        details: Numbers and names for programs.
    """

    name: str
    state: State
    text: str
    seconds: float | None = None
    node: str | None = None
    passes: bool = False
    code: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_mode(self) -> bool:
        """Whether it concerns a mode rather than a connection or a server."""
        return self.name.startswith("mode ")


def write(output: Output, findings: Sequence[Finding], target: str, *, is_good: bool, modes: Sequence[str]) -> None:
    """Write all findings.

    Args:
        output: Where they go.
        findings: What was found.
        target: The endpoint, without a secret.
        is_good: Whether all requirements are met.
        modes: The modes that were asked for.
    """
    is_connected = not any(finding.state == "fail" and not finding.is_mode for finding in findings)
    if output.form == "json":
        rows = [_row(finding) for finding in findings]
        output.value({"endpoint": target, "ok": is_good, "for": list(modes), "steps": rows})
        return
    if output.form == "jsonl":
        for finding in findings:
            output.row(_row(finding))
        return
    width = max(len(_name(finding)) for finding in findings)
    title = None
    for finding in findings:
        if finding.is_mode and not is_connected:
            continue
        section = "modes" if finding.is_mode else target if finding.name == "node" else finding.node or target
        if section != title:
            output.text(printable(section))
            title = section
        where = f"{finding.node}: " if finding.name == "node" else ""
        word = "no" if finding.is_mode and finding.state == "fail" and _name(finding) not in modes else finding.state
        head = f"  {_WORDS[word]:<7}  {_name(finding):<{width}}  {_time(finding.seconds):>8}  "
        for place, part in enumerate(_wrapped(output, printable(where + finding.text), len(head))):
            output.text((" " * len(head) if place else printable(head)) + part)


def _wrapped(output: Output, text: str, indent: int) -> list[str]:
    """Wrap a text to the room after an indent; only on a terminal into more than one line."""
    room = output.width - indent
    if not output.is_terminal or room < _LEAST_ROOM:
        return [text]
    return wrap(text, room, break_long_words=False, break_on_hyphens=False) or [text]


def _name(finding: Finding) -> str:
    return finding.name.removeprefix("mode ")


def _row(finding: Finding) -> dict[str, Any]:
    row: dict[str, Any] = {"step": finding.name, "state": finding.state, "text": finding.text}
    for name in ("seconds", "node", "code"):
        if (value := getattr(finding, name)) is not None:
            row[name] = round(value, 6) if name == "seconds" else value
    if finding.state == "fail":
        row["passes"] = finding.passes
    return {**row, **finding.details}


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
