"""What is shown on a terminal: it fits, and says what is waited for."""

from __future__ import annotations

from typing import Any

from command.letters import consumer_letter
from command.terminal import on_terminal
from headrace.testing import LocalServer

CLEAR = b"\x1b[H\x1b[2J"


def test_messages_are_wrapped_between_words(any_server: LocalServer) -> None:
    code, lines = on_terminal(any_server, "dead-letters", "replay", "dead", "--all", columns=40)
    assert code == 2
    assert len(lines) > 1
    assert [line for line in lines if len(line) > 40] == []
    words = " ".join(lines).split()
    assert words[:6] == ["headrace:", "replay", "needs", "--to", "STREAM,", "or"]
    assert words[-4:] == ["back", "to", "their", "stream"]


def test_long_steps_of_check_are_wrapped_below_their_text(any_server: LocalServer, closed_port: int) -> None:
    code, lines = on_terminal(any_server, "check", "-u", f"redis://127.0.0.1:{closed_port}", columns=60)
    assert code == 3
    first = next(at for at, line in enumerate(lines) if "FAIL" in line)
    begin = lines[first].index("cannot connect")
    assert len(lines) > first + 1
    for line in lines[first + 1 :]:
        assert line[:begin].isspace()
        assert len(line) <= 60


def test_each_dead_letter_is_listed_on_one_line(any_server: LocalServer, client: Any) -> None:
    consumer_letter(client, 1, reason="the total is no number " * 4)
    code, lines = on_terminal(any_server, "dead-letters", "list", "dead", columns=80)
    assert code == 0
    assert [line for line in lines if len(line) > 80] == []
    assert lines[0].index("FAILURES") == lines[1].index("3         -")
    assert "the total is no" in lines[1]


def test_dropping_one_dead_letter_asks_for_confirmation(any_server: LocalServer, client: Any) -> None:
    consumer_letter(client, 1)
    code, lines = on_terminal(any_server, "dead-letters", "drop", "dead", "--all", typed=b"y\n")
    assert code == 0
    assert "drop 1 letter of dead, which cannot be undone? [y/N] " in "\n".join(lines)
    assert client.xlen("dead") == 0


def test_watch_output_is_cut_to_the_height_of_the_window(any_server: LocalServer, client: Any) -> None:
    client.xadd("s", {"payload": "x"})
    for number in range(30):
        client.xgroup_create("s", f"g{number}", "0")
    _, lines = on_terminal(
        any_server, "inspect", "s", "--watch", "0.1", rows=12, is_enough=lambda shown: shown.count(CLEAR) > 1
    )
    shown = "\n".join(lines).split(CLEAR.decode())[1].splitlines()
    assert len(shown) <= 11, "and the cursor below them"
    assert shown[1].startswith("stream s: 1 entry")
    assert shown[-1].endswith(" more lines: a taller window shows them")


def test_rows_typed_at_the_terminal_are_sent(any_server: LocalServer, client: Any) -> None:
    code, lines = on_terminal(any_server, "send", "s", typed=b"row\n\x04")
    assert code == 0
    assert "rows are read from the terminal, one per line: Ctrl-D ends them" in lines
    assert [fields[b"payload"] for _, fields in client.xrange("s")] == [b"row"]
