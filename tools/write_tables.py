"""Writes the documentation tables that come from the code, options and error codes, and the options of the command.

A table stands between, for example, `<!-- codes: own -->` and `<!-- end -->`; the content in between is replaced. The
command parses its arguments before it imports the core, so its options are in a separate Python file.

Usage: tools/write_tables.py [--check]. With --check it writes nothing; if tables differ, it exits with 1 and prints one
line for each page.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from headrace.tables import (
    CODES,
    CONSUMER,
    DATASOURCE,
    DATASOURCE_READ,
    DISPATCHER,
    ENDPOINT,
    LAYOUT,
    READER,
    RETRY,
    Code,
    Option,
)

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
COMMAND = ROOT / "python" / "headrace_command" / "option_rows.py"
#: The pages that explain a code further.
PAGES = {
    **dict.fromkeys(("BLOCKED", "MARKER_LOST", "BAD_MARKER", "NULL_MESSAGE_ID", "DUPLICATE_ID"), "exactly-once.md"),
    **dict.fromkeys(("NO_SLOT", "MOVED", "ASK", "CROSSSLOT", "CLUSTERDOWN", "TRYAGAIN"), "cluster.md"),
    **dict.fromkeys(("NOT_REPLICATED", "NOREPLICAS"), "durability.md"),
    **dict.fromkeys(("NO_MASTER", "SWITCHED"), "sentinel.md"),
    **dict.fromkeys(("TLS", "NOAUTH", "WRONGPASS"), "credentials.md"),
    **dict.fromkeys(("TIMEOUT", "RESET", "EOF"), "exactly-once.md"),
    "BAD_SHARDS": "cluster.md#shards",
}
MARKED = re.compile(r"(<!-- ([\w: ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> int:
    tables = {page: tables_of(page) for page in ("options.md", "outcomes.md", "troubleshooting.md")}
    differing = [page for page, made in tables.items() if not write(DOCS / page, made, check="--check" in sys.argv[1:])]
    differing = [f"docs/{page}: its tables differ" for page in differing]
    made = command_rows()
    if "--check" not in sys.argv[1:]:
        COMMAND.write_text(made)
    elif COMMAND.read_text() != made:
        differing.append(f"{COMMAND.relative_to(ROOT)} differs")
    for text in differing:
        print(f"{text} from the code; run tools/write_tables.py", file=sys.stderr)
    return 1 if differing else 0


def tables_of(page: str) -> dict[str, str]:
    """Return the tables that a page must have, by the text of their marker."""
    dispatcher = [option for name, option in DISPATCHER.items() if not name.startswith("retry_")]
    return {
        "options.md": {
            "options: endpoint": options(ENDPOINT.values()),
            "options: dispatcher": options(dispatcher),
            "options: retry": options(RETRY.values()),
            "options: layout": options(LAYOUT.values()),
            "options: reader": options(READER.values()),
            "options: consumer": options(CONSUMER.values()),
            "options: datasource": options(DATASOURCE.values()),
            "options: datasource read": options(DATASOURCE_READ.values()),
        },
        "outcomes.md": {
            "codes: own": codes(code for code in CODES.values() if code.is_own),
            "codes: server": codes(code for code in CODES.values() if not code.is_own),
        },
        "troubleshooting.md": {"codes: advice": sections(CODES.values())},
    }[page]


def write(path: Path, tables: dict[str, str], *, check: bool) -> bool:
    """Write the tables of a page; False if `check` found a difference."""
    text = path.read_text()
    marked = [found[1] for found in MARKED.findall(text)]
    if sorted(marked) != sorted(tables):
        sys.exit(f"{path} has the markers {sorted(marked)}, not {sorted(tables)}")
    made = MARKED.sub(lambda found: f"{found[1]}\n{tables[found[2]]}\n{found[3]}", text)
    if not check:
        path.write_text(made)
    return made == text or not check


def command_rows() -> str:
    """Return the options of the command as Python, without secrets and those that a verb defines in its own form."""
    of_streams = ("shards", "shard_hash", "shard_names")
    of_producers = ("consumer_group", "maxlen", "maxlen_approximate", "minid", "trim_every", "nomkstream")
    others = ("stream_key", *of_streams, *of_producers)
    own = ("exactly_once", "exactly_once_key", "idmp_duration", "retry", "payload_field", "ts_field", "error_overrides")
    tables = {
        "SERVER": [option for name, option in ENDPOINT.items() if name not in others],
        "STREAM": [ENDPOINT[name] for name in of_streams],
        "PRODUCER": [ENDPOINT[name] for name in of_producers],
        "DISPATCHER": [option for name, option in DISPATCHER.items() if name not in own],
    }
    lines = [
        '"""Options of endpoints and dispatchers, from the tables of the core: tools/write_tables.py writes them."""',
        "",
        "# fmt: off\n# ruff: noqa: E501",
        "",
        '__all__ = ["DISPATCHER", "PRODUCER", "SERVER", "STREAM"]',
        "",
        "#: The name of each option, whether it is a boolean, its default if it has one, and what it means.",
    ]
    for name, rows in tables.items():
        lines += [f"{name}: tuple[tuple[str, bool, str | None, str], ...] = ("]
        for row in rows:
            if not row.is_secret or row.name.endswith("tls_key"):
                is_boolean = row.allowed.startswith("a boolean")
                default = None if row.default is None else row.shown_default.strip(chr(34))
                lines.append(f"    ({quoted(row.name)}, {is_boolean}, {quoted(default)}, {quoted(plain(row.text))}),")
        lines += [")"]
    return "\n".join(lines) + "\n"


def quoted(text: str | None) -> str:
    return json.dumps(text, ensure_ascii=False) if text is not None else "None"


def plain(text: str) -> str:
    """Return Markdown without its links and quotes."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("`", "").replace("*", "")


def options(rows: Iterable[Option]) -> str:
    cells = [[f"`{option.name}`", option.allowed, option.shown_default, option.text] for option in rows]
    return table(["option", "value", "default", "meaning"], cells)


def codes(rows: Iterable[Code]) -> str:
    cells = [
        [f"`{code.name}`", kind(code), "yes" if retried(code) else "no", ", ".join(code.written), code.text]
        for code in rows
    ]
    return table(["code", "kind", "retried", "written", "when"], cells)


def sections(rows: Iterable[Code]) -> str:
    """Return a section for each code, to which errors refer."""
    return "\n".join(f"### {code.name}\n\n{section(code)}\n" for code in rows)


def section(code: Code) -> str:
    advice = f" What to do: {code.advice}." if code.advice else ""
    page = f" See [{PAGES[code.name].partition('#')[0]}]({PAGES[code.name]})." if code.name in PAGES else ""
    return f"{code.text}{advice}{page}"


def retried(code: Code) -> bool:
    """Return whether a `RetryPolicy` sends such a message again, in the mode that retries most."""
    return code.passes and "retryable" in code.kinds.values()


def kind(code: Code) -> str:
    """Return the default kind, and the modes of `classify` in which it differs."""
    default = code.kinds["default"]
    others = [f"{mode}: {kind}" for mode, kind in code.kinds.items() if kind != default]
    return f"{default} ({', '.join(others)})" if others else default


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
