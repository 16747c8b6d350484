"""`headrace check`: one line per step of the connection, and per thing that a program may need of the server."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from headrace_command.check.finding import Finding, write
from headrace_command.check.survey import Survey, required
from headrace_command.exit_code import ExitCode, UsageError
from headrace_command.run import Run

if TYPE_CHECKING:
    from headrace import Endpoint

__all__ = ["run"]

#: The pause between two checks with `--wait`, in seconds: initially and at most.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 2.0


def run(run: Run) -> ExitCode:
    """Check, and exit with 3 if a requirement is not met."""
    given = run.arguments
    key = None if given.stream is None else os.fsencode(given.stream)
    if given.modes and key is None:
        raise UsageError("--for needs STREAM: rights are those for a key")
    endpoint = run.endpoint(key)
    survey = Survey(endpoint, key, given.replicas)
    findings, failures = _until_good(run, survey)
    write(run.output, findings, _target(endpoint, key), is_good=not failures, modes=given.modes)
    if not failures:
        return ExitCode.OK
    if run.output.form != "text" or not run.output.is_terminal:
        run.messages.error(f"{failures[0].name}: {failures[0].text}")
    return ExitCode.NO_CONNECTION


def _until_good(run: Run, survey: Survey) -> tuple[list[Finding], list[Finding]]:
    """The last findings, and the failures among them."""
    given = run.arguments
    end = time.monotonic() + given.wait
    pause, said = _FIRST_PAUSE, ""
    while True:
        findings = list(survey.take())
        failures = required(findings, given.modes, is_strict=given.strict)
        left = end - time.monotonic()
        if not failures or left <= 0 or not all(failure.passes for failure in failures):
            run.messages.end_progress()
            return findings, failures
        if failures[0].text != said:
            said = failures[0].text
            run.messages.say(f"waiting for up to {round(left, 1):g} s: {failures[0].name}: {said}")
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE)


def _target(endpoint: Endpoint, key: bytes | None) -> str:
    """The endpoint as text."""
    if endpoint.unix_socket is not None:
        where = str(endpoint.unix_socket)
    elif endpoint.nodes is not None:
        where = ", ".join(endpoint.nodes)
    else:
        host = str(endpoint.host)
        port = 6379 if endpoint.port is None else endpoint.port
        where = f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
    stream = "" if key is None else f", stream {os.fsdecode(key)}"
    return where + stream
