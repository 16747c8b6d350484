"""Every error text of the servers, and the outcome of the message that it answers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any, Self

import pyarrow as pa
import pytest

import faults.disruptive_scenarios  # noqa: F401 - adds to SCENARIOS
from faults.error_scenarios import COMMANDS
from faults.error_texts import BY_NAME, CLASSIFY, ERROR_TEXTS, Classify, ErrorText
from faults.scenario import SCENARIOS, ErrorSource, ScenarioTools, read_error_from
from headrace.testing import LocalServer
from support import Program
from support.fixture_types import StartServer
from support.modes import MODES, can, dispatcher
from support.pipelines import DELIVERED, Outcome, endpoint_to, outcomes

pytestmark = pytest.mark.thorough

Connect = Callable[..., Any]

#: Errors of a cluster node are outcomes, as for a client that uses it as a single server.
ONE_SERVER = {"topology": "single"}
#: A part of every payload; no error message may repeat it.
PAYLOAD = "canary"


class Sender:
    """A dispatcher for an error source, which sends messages one by one."""

    def __init__(self, source: ErrorSource, mode: str, classify: Classify) -> None:
        self.mode, self.classify = mode, classify
        self._entry_id = source.entry_id
        self._dispatcher = dispatcher(
            endpoint_to(source.server, **{**ONE_SERVER, **source.options}), mode, classify=classify
        )

    def send(self) -> Outcome:
        if self.mode != "off":
            self._dispatcher.skip_failed()  # earlier failures block nothing
        columns = {"payload": [PAYLOAD.encode()], "id": pa.array([self._entry_id], pa.string())}
        self._dispatcher.produce_batch(pa.record_batch(columns), entry_id="id" if self._entry_id else None)
        (outcome,) = outcomes(self._dispatcher.flush())
        return outcome

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._dispatcher.close()


def check_refused(error: ErrorText, program: Program, sender: Sender) -> None:
    text = error.of(program)
    assert text
    for _ in range(2):
        reported = sender.send()
        assert reported.label == (error.kind(sender.classify), error.code, "no"), (
            sender.mode,
            sender.classify,
            reported,
        )
        assert reported.message
        assert PAYLOAD not in reported.message
        if sender.mode == "off":
            assert text.partition(", with args")[0][:150] in reported.message


@pytest.mark.parametrize("names", SCENARIOS, ids="+".join)
def test_a_real_server_returns_each_error_text(
    names: tuple[str, ...], program: Program, start_server: StartServer, connect: Connect
) -> None:
    """The text is that of the table; messages fail with it on old and new connections; later ones are delivered."""
    expected = [name for name in names if BY_NAME[name].of(program)]
    if not expected:
        return
    seen: list[str] = []
    with ExitStack() as stack:

        def senders(source: ErrorSource) -> list[Sender]:
            """A sender for each mode and each value of `classify`."""
            modes = [mode for mode in source.modes if can(program, mode)]
            ways = [(mode, way) for mode in modes for way in (source.classify if mode == "off" else CLASSIFY[:1])]
            return [stack.enter_context(Sender(source, *way)) for way in ways]

        steps = stack.enter_context(closing(SCENARIOS[names](ScenarioTools(program, start_server, connect))))
        source = next(steps)
        assert isinstance(source, ErrorSource)
        live: list[Sender] = []
        for step in itertools.chain([source], steps):
            if isinstance(step, ErrorSource):
                source = step
                live = senders(source) if source.live else []
            elif step is not None:
                seen.append(step)
                assert source.read_error() == BY_NAME[step].of(program)
                live += senders(source)
                for sender in live:
                    check_refused(BY_NAME[step], program, sender)
            if step is None or isinstance(step, ErrorSource):
                for sender in live:
                    assert sender.send().label == DELIVERED, (sender.mode, sender.classify)
    assert seen == expected


def test_a_real_server_returns_the_error_texts_of_other_commands(program: Program, start_server: StartServer) -> None:
    server = start_server(program)
    expected = {name: text for name in COMMANDS if (text := BY_NAME[name].of(program))}
    assert {name: read_error_from(server, COMMANDS[name]) for name in expected} == expected


def test_every_error_text_is_verified_or_explained() -> None:
    """A real server returns it, or the table names its origin."""
    said = {*COMMANDS, *(name for names in SCENARIOS for name in names)}
    assert len(said) > 50
    assert {error.name for error in ERROR_TEXTS if not error.unverified} == said
    assert len(BY_NAME) == len(ERROR_TEXTS)


@pytest.mark.parametrize("mode", MODES)
def test_names_that_look_like_codes_are_ignored(
    program: Program, start_server: StartServer, connect: Connect, mode: str
) -> None:
    """Only the first word of a reply counts: users, keys and payloads may have any name."""
    if not can(program, mode):
        return
    server = start_server(program)
    client = connect(server)
    name = "OOM-NOAUTH"
    client.execute_command("ACL", "SETUSER", name, "on", ">secret", "~*", "+@all")
    client.set("READONLY", "no stream")
    payloads = [f"WRONGTYPE {PAYLOAD} {number}".encode() for number in range(3)]
    user = {"username": name, "password": "secret"}
    with dispatcher(endpoint_to(server, stream_key="NOAUTH", **user), mode) as sending:
        # With idmp all messages go to one stream.
        keys = [None, "READONLY" if mode != "idmp" else None, None]
        rows = pa.record_batch({"payload": payloads, "key": pa.array(keys, pa.string())})
        sending.produce_batch(rows, stream_key="key" if any(keys) else None)
        reported = outcomes(sending.flush())
        refused = ("permanent", "WRONGTYPE", "no")
        assert [outcome.label for outcome in reported] == [refused if key else DELIVERED for key in keys]
        client.execute_command("ACL", "SETUSER", name, "-xadd")
        sending.produce(payloads[0])
        reported += outcomes(sending.flush())
        assert reported[-1].label == ("permanent", "NOPERM", "no")
    assert not [outcome for outcome in reported if PAYLOAD in (outcome.message or "")]


def test_a_long_refusal_in_a_script_fits_into_its_reply(server: LocalServer, connect: Connect) -> None:
    """An ACL refusal contains the user's name: a long name is truncated, and the connection stays open."""
    client = connect(server)
    name = "writer-" + "x" * 3_000
    client.execute_command("ACL", "SETUSER", name, "on", ">secret", "~*", "+@all")
    user = {"username": name, "password": "secret"}
    with dispatcher(endpoint_to(server, **user), "script") as sending:
        sending.produce(b"first")
        reported = outcomes(sending.flush())
        (mine,) = [each["id"] for each in client.client_list() if each["user"] == name]
        client.execute_command("ACL", "SETUSER", name, "-xadd")
        sending.produce(b"second")
        reported += outcomes(sending.flush())
        assert [outcome.label for outcome in reported] == [DELIVERED, ("permanent", "NOPERM", "no")]
        assert len(reported[-1].message or "") < 1_024
        client.execute_command("ACL", "SETUSER", name, "+xadd")
        sending.skip_failed()
        sending.produce(b"third")
        assert sending.flush().ok
        assert [each["id"] for each in client.client_list() if each["user"] == name] == [mine]
