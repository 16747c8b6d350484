"""What all verbs share: arguments, precedence, secrets, what is printed and how it ends."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headrace_command
from command.conftest import HEADRACE, Command
from headrace.testing import LocalServer
from headrace_command.exit_code import ExitCode
from headrace_command.text import json_bytes, printable
from headrace_command.verbs import VERBS, make_parser, spelled_out
from support.canary import Secret
from support.marks import thorough


def test_help_imports_neither_headrace_nor_slow_modules() -> None:
    code = "import sys, headrace_command.main as m; m.make_parser(''); print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout.split()
    assert b"headrace_command.parser" in modules
    assert not {b"headrace", b"typing", b"json", b"inspect", b"pyarrow"} & set(modules)


def test_the_command_uses_public_modules_only() -> None:
    files = list(Path(headrace_command.__file__).parent.rglob("*.py"))
    assert len(files) > 20
    imported = [
        f"{node.module}.{name.name}" if isinstance(node, ast.ImportFrom) else name.name
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    ]
    assert "headrace.admin.Commands" in imported
    assert [name for name in imported if "_headrace" in name.split(".")] == []


def test_the_command_uses_no_private_attributes_of_headrace() -> None:
    trees = [ast.parse(file.read_text()) for file in Path(headrace_command.__file__).parent.rglob("*.py")]
    used = {
        node.attr
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and re.match(r"_[^_]", node.attr)
        if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    }
    # Those of named tuples, of hashlib, of argparse, and of its parser here.
    assert used == {"_replace", "_asdict", "_Hash", "_actions", "_check_value", "_unknown"}


def test_help_of_each_verb_has_no_password_option() -> None:
    for verb in VERBS:
        ended = subprocess.run([HEADRACE, verb.name, "--help"], capture_output=True, check=True)
        assert verb.text.encode() in b" ".join(ended.stdout.split())
        assert b"--password " not in ended.stdout


def test_the_version(any_command: Command) -> None:
    assert any_command("--version").out.startswith(b"headrace 0.")


@pytest.mark.parametrize("arguments", [[], ["nothing"], ["send"], ["send", "s", "--nothing"]])
def test_invalid_arguments_exit_with_2(any_command: Command, arguments: list[str]) -> None:
    ended = any_command(*arguments)
    assert (ended.code, ended.out) == (2, b"")
    assert "usage: headrace" in ended.err


def test_only_required_arguments_are_asked_for(any_command: Command) -> None:
    assert "the following arguments are required: STREAM\n" in any_command("send").err
    assert "required: list|show|replay|drop, STREAM\n" in any_command("dead-letters").err
    assert "usage: headrace read [OPTION…] STREAM…\n" in any_command("read").err


def test_messages_and_help_name_options_as_flags(any_command: Command) -> None:
    ended = any_command("send", "s", "-u", "rediss://127.0.0.1", "--tls-ca-cert", "/nowhere")
    assert (ended.code, "headrace: --tls-ca-cert: '/nowhere' cannot be read" in ended.err) == (2, True)
    for verb in VERBS:
        text = b" ".join(any_command("help", verb.name).out.split())
        if verb.connects:
            assert b"--help-all also shows the options of " in text
            assert (b"--url URL" in text, b"--tls-key" in text) == (True, False)
            text = b" ".join(any_command(verb.name, "--help-all").out.split())
            assert b"Needs --tls-key" in text
        assert b"tls_key" not in text


def test_the_examples_of_the_help_are_command_lines() -> None:
    parser = make_parser()
    for own in (parser, *parser.verbs.values()):
        assert own.examples
        for example in own.examples:
            assert f"  {example}\n" in own.format_help()
            (line,) = re.findall("headrace ([^|<)]*)", example)[:1]
            words = shlex.split(line)
            if spelled_out(words) == words:
                assert parser.parsed(words).verb == words[0]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("sned s", "invalid choice: 'sned' (choose from {}); did you mean send?"),
        ("help sned", "invalid choice: 'sned' (choose from {}); did you mean send?"),
        ("nothing", "invalid choice: 'nothing' (choose from {})"),
        ("send s --format cvs", "did you mean csv?"),
        ("send s --fromat csv", "headrace send: error: unknown option --fromat; did you mean --format?"),
        ("read s --exactly-once x", "headrace read: error: unknown option --exactly-once: headrace send has it"),
        ("read s --limit 3", "unknown option --limit: headrace dead-letters has it"),
        ("send s --yess --fromat csv", "unknown option --yess"),
        ("check s --password geheim", "did you mean --password-env, --ask-password or --password-file?"),
        ("check s --password=geheim", "did you mean --password-env, --ask-password or --password-file?"),
        ("read s -a geheim", "unknown option -a; did you mean --password-env?"),
        ("read s -ageheim -p 6379", "unknown option -a; did you mean --password-env?"),
        ("send s -b localhost", "unknown option -b; did you mean --url?"),
        ("read s --insecure", "unknown option --insecure; did you mean --tls-insecure-skip-verify?"),
        ("read s --wurst", "unknown option --wurst"),
        ("read s --user x", "unknown option --user; did you mean --username or --sentinel-username?"),
        ("dead", "invalid choice: 'dead' (choose from {}); did you mean dead-letters?"),
        ("-u redis://u:geheim@localhost send s", "there is no verb before the URL: options come after the verb"),
        ("check a b", "unrecognized arguments: b"),
        ("check a redis://u:geheim@localhost", "unrecognized arguments: a URL, which --url would take"),
    ],
)
def test_words_without_a_meaning_name_what_is_near(any_command: Command, words: str, text: str) -> None:
    ended = any_command(*words.split())
    assert (ended.code, ended.out) == (2, b"")
    choices = ended.err.partition("(choose from ")[2].rpartition(")")[0]
    assert ended.err.endswith(text.format(choices) + "\n"), ended.err
    assert "geheim" not in ended.err


def test_debug_prints_the_traceback_on_separate_lines(any_command: Command, tmp_path: Path) -> None:
    ended = any_command("send", "s", "--debug", "--tls", "--tls-ca-cert", "/nowhere")
    assert "Traceback (most recent call last):\n  File " in ended.err


def test_options_override_the_url_and_the_url_overrides_the_environment(
    any_command: Command, any_server: LocalServer, client: Any
) -> None:
    url = any_server.url
    assert any_command("send", "s", stdin=b"0").code == 0
    assert any_command("send", "s", "-u", f"{url}?db=1", stdin=b"1").code == 0
    assert any_command("send", "s", "-u", f"{url}?db=1", "--db", "2", stdin=b"2").code == 0
    environment = {"HEADRACE_DEFAULT_DB": "3"}
    assert any_command("send", "s", stdin=b"3", environment=environment).code == 0
    assert any_command("send", "s", "-u", f"{url}?db=4", stdin=b"4", environment=environment).code == 0
    for db in range(5):
        client.select(db)
        assert [fields[b"payload"] for _, fields in client.xrange("s")] == [b"%d" % db]


def test_password_env_overrides_the_password_of_the_url(any_command: Command, tcp_server: LocalServer) -> None:
    import redis

    with redis.Redis(port=tcp_server.port or 0) as client:
        client.acl_setuser("u", enabled=True, passwords=["+right"], categories=["+@all"], keys=["*"])
    url = f"redis://u:wrong@127.0.0.1:{tcp_server.port}"
    arguments = ["send", "s", "--password-env", "P"]
    ended = any_command(*arguments, stdin=b"x", environment={"HEADRACE_URL": url, "P": "right"})
    assert (ended.code, ended.err.partition(" in ")[0]) == (0, "1 delivered")


def test_the_environment_url_is_ignored_when_an_option_names_another_server(
    any_command: Command, tcp_server: LocalServer
) -> None:
    """Its credentials are not for that server, which would refuse them."""
    environment = {"HEADRACE_URL": "redis://u:secret@elsewhere:1/7"}
    arguments = ["send", "s", "--host", "127.0.0.1", "--port", str(tcp_server.port)]
    assert any_command(*arguments, stdin=b"x", environment=environment).code == 0


def test_redis_url_is_used_and_named_without_headrace_url(any_command: Command, tcp_server: LocalServer) -> None:
    url = f"redis://127.0.0.1:{tcp_server.port}"
    ended = any_command("send", "s", stdin=b"x", environment={"HEADRACE_URL": "", "REDIS_URL": url})
    said, delivered, _ = ended.err.split("\n")
    assert said == f"the server is that of $REDIS_URL, because $HEADRACE_URL is not set: {url} stream key s"
    assert delivered.startswith("1 delivered")
    other = any_command("send", "s", stdin=b"x", environment={"REDIS_URL": "redis://elsewhere.invalid"})
    assert (other.code, other.err.count("REDIS_URL")) == (0, 0)


@pytest.mark.parametrize("variable", ["HEADRACE_URL", "REDIS_URL"])
def test_a_wrong_url_of_the_environment_names_its_variable(any_command: Command, variable: str) -> None:
    environment = {"HEADRACE_URL": "", variable: "localhost:21000"}
    ended = any_command("send", "s", stdin=b"x", environment=environment)
    assert ended.code == 2
    assert f"${variable}: the URL must be of the form " in ended.err
    assert ended.err.endswith(": write redis://localhost:21000\n")
    secret = any_command("send", "s", stdin=b"x", environment={"HEADRACE_URL": "", variable: "u:geheim@localhost"})
    assert (secret.code, "geheim" in secret.err) == (2, False)


def test_a_password_in_the_arguments_causes_a_warning(any_command: Command, closed_port: int) -> None:
    ended = any_command("send", "s", "-u", f"redis://u:geheim@127.0.0.1:{closed_port}", stdin=b"x")
    assert "warning: the URL contains a password, which other users can see" in ended.err
    assert "geheim" not in ended.err


def test_ask_password_needs_a_terminal(any_command: Command) -> None:
    ended = subprocess.run(
        [HEADRACE, "send", "s", "--ask-password"], stdin=subprocess.DEVNULL, capture_output=True, start_new_session=True
    )
    assert ended.returncode == 2
    assert b"--ask-password needs a terminal; give --password-env or --password-file" in ended.stderr


@pytest.mark.parametrize("form", ["text", *thorough("json", "jsonl")])
def test_no_secret_is_printed(any_command: Command, tmp_path: Path, closed_port: int, form: str) -> None:
    """Whatever the verb, and however it ends."""
    secret = Secret()
    (tmp_path / "password").write_text(secret.text)
    (tmp_path / "password").chmod(0o600)
    url = f"redis://u:{secret.text}@127.0.0.1:{closed_port}"
    ways: list[tuple[list[str], dict[str, str]]] = [
        (["-u", url], {}),
        ([], {"HEADRACE_URL": url}),
        (["--username", "u", "--password-env", "P"], {"P": secret.text}),
        (["--username", "u", "--password-file", str(tmp_path / "password")], {}),
        (["-u", url + "/not/a/path"], {}),
        (["-u", f"redis://u:{secret.text}/@127.0.0.1"], {}),
    ]
    lines = {"send": ["send", "s"], **OTHER_VERBS}
    assert {verb.name for verb in VERBS if verb.connects} == set(lines)
    for words in lines.values():
        for arguments, environment in ways:
            ended = any_command(*words, *arguments, "-o", form, "--debug", stdin=b"row\n", environment=environment)
            assert ended.code in (1, 2, 3), ended
            assert not secret.is_in(ended.out)
            assert not secret.is_in(ended.err)


#: How the other verbs that connect are called.
OTHER_VERBS: dict[str, list[str]] = {
    "read": ["read", "s"],
    "inspect": ["inspect", "s"],
    "shards": ["shards", "assign", "s", "--group", "g", "0=a"],
    "check": ["check", "s"],
    "dead-letters": ["dead-letters", "list", "dead"],
}


def test_control_characters_in_a_stream_key_are_not_printed(any_command: Command, client: Any) -> None:
    client.set("k\x1b[2J", "no stream")
    ended = any_command("send", "k\x1b[2J", "--debug", stdin=b"x")
    assert ended.code == 1
    assert "\x1b" not in ended.err


def test_output_is_utf8_in_every_locale(any_command: Command) -> None:
    environment = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    ended = any_command("send", "s", "caf\u00e9.csv".encode(), environment=environment)
    assert (ended.code, "caf" in ended.err) == (2, True)


def test_text_is_escaped() -> None:
    assert printable(b"plain \xc3\xa9") == "plain é"
    assert printable(b"\x1b[31m\n\xff\0") == r"\x1b[31m\n\xff\x00"
    assert printable("a\u202eb\u2028\u200b\x9b") == r"a\u202eb\u2028\u200b\x9b"
    assert json_bytes("é\x1b".encode()) == "é\x1b"
    assert json_bytes(b"\xff") == {"base64": "/w=="}


def test_the_worst_exit_code_wins() -> None:
    order = [ExitCode.OK, ExitCode.FAILED, ExitCode.NO_CONNECTION, ExitCode.UNKNOWN, ExitCode.INTERRUPTED]
    for at, first in enumerate(order):
        for second in order[at:]:
            assert ExitCode.worst(first, second) is ExitCode.worst(second, first) is second


def test_completion_in_bash(tmp_path: Path) -> None:
    script = subprocess.run([HEADRACE, "completion", "bash"], capture_output=True, check=True).stdout
    (tmp_path / "completion").write_bytes(script)

    def completed(*words: str) -> set[str]:
        line = " ".join(f"'{word}'" for word in words)
        text = f"source {tmp_path}/completion; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _headrace; "
        text += 'printf "%s\\n" "${COMPREPLY[@]}"'
        found = subprocess.run(["bash", "-c", text], capture_output=True, check=True, env={"PATH": os.environ["PATH"]})
        return set(found.stdout.decode().split())

    assert {verb.name for verb in VERBS} <= completed("headrace", "")
    assert completed("headrace", "sen") == {"send"}
    assert "--exactly-once" in completed("headrace", "send", "s", "--ex")
    assert completed("headrace", "send", "s", "--format", "") == {"lines", "jsonl", "csv", "tsv", "parquet", "arrow"}
    assert completed("headrace", "completion", "") == {"bash", "zsh", "fish"}
    assert completed("headrace", "dead-letters", "") == {"list", "show", "replay", "drop"}
    assert completed("headrace", "send", "s", "o") == set(), "so that the shell completes files"


def test_every_option_is_completed() -> None:
    for shell in ("zsh", "fish"):
        script = subprocess.run([HEADRACE, "completion", shell], capture_output=True, check=True).stdout.decode()
        for action in make_parser()._actions:
            for name in action.choices or ():
                assert name in script
        assert "exactly-once" in script


def test_completion_scripts_are_adapted_to_zsh_and_fish() -> None:
    zsh, fish = (
        subprocess.run([HEADRACE, "completion", shell], capture_output=True, check=True).stdout.decode()
        for shell in ("zsh", "fish")
    )
    # Without a .zshrc nothing has loaded compdef, and it takes a bare name in ${…:…} for a modifier.
    assert zsh.index("compinit -D") < zsh.index("bashcompinit")
    assert ":1:$((COMP_CWORD-1))}" in zsh
    assert "-f -a 'list show replay drop'\n" in fish
    assert "-f -a send -d 'Send rows" in fish
