"""An error reply anywhere in a pipeline fails the message that it answers, and no other."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from faults.error_texts import CLASSIFY, ERROR_TEXTS, Classify, ErrorText, Kind
from faults.refusing_server import RefusingServer, payload_of
from headrace import Dispatcher, Endpoint
from support.fake_server import FakeServer, Peer, Script
from support.modes import MODES, SOON, dispatcher
from support.pipelines import DELIVERED, Outcome, labels, outcomes

pytestmark = pytest.mark.thorough

ROWS = 50
#: Rows per script call: the batch needs several calls, the last of them incomplete.
RUN = 8
BLOCKED = ("retryable", "BLOCKED", "no")
KINDS: tuple[Kind, Kind] = ("permanent", "retryable")

REFUSED = [error for error in ERROR_TEXTS if not error.ends]
UNREADABLE = [error for error in ERROR_TEXTS if error.ends]


def to(fake: FakeServer, **options: Any) -> Endpoint:
    return Endpoint(host="127.0.0.1", port=fake.port, stream_key="s", command_timeout=20, **options)


def send(sending: Dispatcher, mode: str, batch: int) -> list[Outcome]:
    """Send a batch, whose row numbers continue those of earlier batches; returns its outcomes."""
    if mode != "off":
        sending.skip_failed()  # earlier failures block nothing
    for row in range(batch * ROWS, (batch + 1) * ROWS):
        sending.produce(payload_of(row), row)
    reported = outcomes(sending.flush())
    assert [outcome.message_id for outcome in reported] == [str(row) for row in range(batch * ROWS, (batch + 1) * ROWS)]
    for outcome in reported:
        assert "canary" not in (outcome.message or "")
    return reported


def labels_of(reported: list[Outcome]) -> list[object]:
    return [outcome.label for outcome in reported]


def starts_alike(text: str, message: str | None) -> bool:
    """Whether a message starts with the error text, up to the length limit, without the arguments that it repeats."""
    return (message or "").startswith(text.partition(", with args")[0][:200])


def run_rows(mode: str, rows: int = RUN) -> dict[str, Any]:
    return {"script_run_rows": rows} if mode == "script" else {}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("error", REFUSED, ids=str)
def test_a_refused_row_has_its_own_outcome_at_any_position(error: ErrorText, mode: str) -> None:
    """First, in the middle, last; in script mode later rows of the same stream are blocked."""
    cases = list(enumerate(itertools.product(error.different, [0, 17, ROWS // 2, ROWS - 1])))
    server = RefusingServer({batch * ROWS + place: text for batch, (text, place) in cases})
    refused = (error.kind("default"), error.code, "no")
    with FakeServer(server) as fake, dispatcher(to(fake), mode, **run_rows(mode)) as sending:
        for batch, (text, place) in cases:
            reported = send(sending, mode, batch)
            behind = BLOCKED if mode == "script" else DELIVERED
            expected = [DELIVERED] * place + [refused] + [behind] * (ROWS - place - 1)
            assert labels_of(reported) == expected
            assert starts_alike(text, reported[place].message)
            delivered = [row for row in range(ROWS) if reported[row].label == DELIVERED]
            assert [row - batch * ROWS for row in server.accepted if row >= batch * ROWS] == delivered
        assert fake.accepted == 1


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("error", REFUSED, ids=str)
def test_several_refused_commands_have_their_own_outcomes(error: ErrorText, mode: str) -> None:
    """All rows are refused, then three; in script mode whole calls, as if the server did not run the script."""
    some = [1, 20, 42]
    cases = list(enumerate(itertools.product(error.different, [range(ROWS), some])))
    refusals = {batch * ROWS + row: text for batch, (text, rows) in cases for row in rows}
    refused = (error.kind("default"), error.code, "no")
    with (
        FakeServer(RefusingServer(refusals, whole=True)) as fake,
        # If rows carry their time, rows of different seconds are in different calls.
        dispatcher(to(fake), mode, ts_field=None, **run_rows(mode)) as sending,
    ):
        for batch, (text, rows) in cases:
            reported = send(sending, mode, batch)
            if mode == "script":
                runs = {row // RUN for row in rows}
                assert labels_of(reported) == [refused if row // RUN in runs else BLOCKED for row in range(ROWS)]
            else:
                assert labels_of(reported) == [refused if row in rows else DELIVERED for row in range(ROWS)]
            assert all(starts_alike(text, reported[row].message) for row in rows)
        assert fake.accepted == 1


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", [0, ROWS // 2, ROWS - 1])
@pytest.mark.parametrize("error", UNREADABLE, ids=str)
def test_a_row_that_the_server_cannot_parse_ends_the_connection(error: ErrorText, place: int, mode: str) -> None:
    """The server closes without reading any later row: these are not written and may be sent again."""
    (text,) = error.different
    server = RefusingServer({place: text}, whole=True, ends=True)
    refused = (error.kind("default"), error.code, "no")
    assert refused == ("permanent", "TOO_LARGE", "no")
    with FakeServer(server, server) as fake, dispatcher(to(fake), mode, **run_rows(mode, 1)) as sending:
        reported = send(sending, mode, 0)
        assert labels_of(reported[: place + 1]) == [DELIVERED] * place + [refused]
        behind = labels_of(reported[place + 1 :])
        lost = behind.count(("retryable", "RESET", "no"))
        assert behind[:lost] == [("retryable", "RESET", "no")] * lost
        assert behind[lost:] == ([BLOCKED] if mode == "script" else [DELIVERED]) * (len(behind) - lost)
        assert server.accepted == [row for row in range(ROWS) if reported[row].label == DELIVERED]
        assert labels_of(send(sending, mode, 1)) == [DELIVERED] * ROWS
        assert fake.accepted == 2


@pytest.mark.parametrize("classify", CLASSIFY)
@pytest.mark.parametrize("error", ERROR_TEXTS, ids=str)
def test_classify_decides_the_kind(error: ErrorText, classify: Classify) -> None:
    texts = dict(enumerate(error.different))
    server = RefusingServer(texts, ends=error.ends)
    with FakeServer(*[server] * len(texts)) as fake, Dispatcher(to(fake), classify=classify) as sending:
        for row in texts:
            sending.produce(payload_of(row))
            assert labels(sending.flush()) == [(error.kind(classify), error.code, "no")]


@pytest.mark.parametrize("error", ERROR_TEXTS, ids=str)
def test_error_overrides_take_precedence(error: ErrorText) -> None:
    text = error.different[0]
    for classify, kind in itertools.product(CLASSIFY, KINDS):
        server = RefusingServer({0: text}, ends=error.ends)
        overrides = {error.code: kind, "ELSE": KINDS[kind == "permanent"]}
        with FakeServer(server) as fake, Dispatcher(to(fake), classify=classify, error_overrides=overrides) as sending:
            sending.produce(payload_of(0))
            assert labels(sending.flush()) == [(kind, error.code, "no")]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("classify", ["default", "failover"])
@pytest.mark.parametrize("error", REFUSED, ids=str)
def test_temporary_errors_are_retried(error: ErrorText, mode: str, classify: Classify) -> None:
    """Other errors are not. In script mode the order is kept."""
    place = 20
    server = RefusingServer({place: error.different[0]}, once=True)
    passes = error.passes and error.kind(classify) == "retryable"
    options = {"retry": SOON, "classify": classify, **run_rows(mode)}
    with FakeServer(server) as fake, dispatcher(to(fake), mode, **options) as sending:
        reported = send(sending, mode, 0)
        if passes:
            assert set(labels_of(reported)) == {DELIVERED}
            assert sorted(server.accepted) == list(range(ROWS))
            assert mode != "script" or server.accepted == list(range(ROWS))
        else:
            assert reported[place].label == (error.kind(classify), error.code, "no")
            assert place not in server.accepted
        assert fake.accepted == 1


# --- errors in the handshake


def shaken(command: bytes, text: str) -> Script:
    """A script for the fake server that refuses one command of the handshake."""

    def script(peer: Peer) -> None:
        while commands := peer.commands(1):
            peer.send(f"-{text}\r\n".encode() if commands[0][0] == command else b"+OK\r\n")

    return script


HANDSHAKE: dict[bytes, dict[str, Any]] = {
    b"AUTH": {"password": "secret"},
    b"SELECT": {"db": 3},
    b"XGROUP": {"consumer_group": "g"},
}


@pytest.mark.parametrize("command", HANDSHAKE, ids=bytes.decode)
@pytest.mark.parametrize("error", ERROR_TEXTS, ids=str)
def test_an_error_in_the_handshake_fails_every_message(error: ErrorText, command: bytes) -> None:
    """The kind is as for XADD; an error of AUTH is permanent, unless the server returns it to every command."""
    kind = "retryable" if error.ends else error.kind("default")
    if command == b"AUTH":
        kind = error.kind_in_auth("default")
    for mode in MODES:
        tries = 2 if mode != "off" and error.passes and kind == "retryable" else 1
        with FakeServer(*[shaken(command, error.different[0])] * tries, handshake=False) as fake:
            with dispatcher(to(fake, **HANDSHAKE[command]), mode) as sending:
                reported = send(sending, mode, 0)
            assert set(labels_of(reported)) == {(kind, error.first_word, "no")}
            assert fake.accepted == tries


# --- only the first word counts


MISLEADING = [
    ("ERR user said OOM NOAUTH WRONGTYPE", "ERR", "retryable"),
    ("ERR OOM command not allowed when used memory > 'maxmemory'.", "ERR", "retryable"),
    ("LOADING NOAUTH Authentication required.", "LOADING", "retryable"),
    ("OOMX command not allowed", "OOMX", "retryable"),
    ("XOOM command not allowed", "XOOM", "retryable"),
    ("OOM: command not allowed", "ERR", "retryable"),
    ("oom command not allowed", "ERR", "retryable"),
    (" OOM command not allowed", "ERR", "retryable"),
    (" ", "ERR", "retryable"),
    ("user WRONGTYPE", "ERR", "retryable"),
    ("ERR the key AUTH was called", "ERR", "retryable"),
    ("ERR it says Protocol error: invalid bulk length", "ERR", "retryable"),
    ("ERR no max number of clients reached", "ERR", "retryable"),
    ("WRONGTYPE ERR Protocol error: invalid bulk length", "WRONGTYPE", "permanent"),
    ("OOM LOADING BUSY MASTERDOWN", "OOM", "permanent"),
    ("NOAUTH ERR max number of clients reached", "NOAUTH", "permanent"),
    ("NOPERM No permissions to access the key LOADING", "NOPERM", "permanent"),
]


@pytest.mark.parametrize("mode", MODES)
def test_only_the_first_word_of_a_reply_counts(mode: str) -> None:
    place = 20
    server = RefusingServer({batch * ROWS + place: text for batch, (text, _, _) in enumerate(MISLEADING)})
    with FakeServer(server) as fake, dispatcher(to(fake), mode) as sending:
        for batch, (text, code, kind) in enumerate(MISLEADING):
            reported = send(sending, mode, batch)
            assert reported[place].label == (kind, code, "no"), text
            assert labels_of(reported[:place]) == [DELIVERED] * place
        assert fake.accepted == 1
