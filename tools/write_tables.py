"""Writes what the tables of the core say into other files: documentation, options of the command, fields of `Stats`.

A table of a page stands between, for example, `<!-- codes: own -->` and `<!-- end -->`; the content in between is
replaced. The command parses its arguments before it imports the core, so its options are in a separate Python file. The
classes of counters have their fields in the source, where editors and type checkers find them.

Usage: tools/write_tables.py [--check]. With --check it writes nothing; if tables differ, it exits with 1 and prints one
line for each file.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

from headrace.exported import metric_of
from headrace.tables import (
    CODES,
    CONSUMER,
    COUNTERS,
    DATASOURCE,
    DATASOURCE_READ,
    DISPATCHER,
    ENDPOINT,
    LAYOUT,
    READER,
    RETRY,
    SHARD_CONSUMER,
    Code,
    Counter,
    Option,
)

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
COMMAND = ROOT / "python" / "headrace_command" / "option_rows.py"
STATS = ROOT / "python" / "headrace" / "stats.py"
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
#: The fields of a class of counters that come from a table.
FIELDS = re.compile(r"^    # counters: (\w+)\n(?:    (?!# end).*\n)*    # end\n", re.MULTILINE)
#: The description of an attribute in the docstring of a class.
DESCRIBED = re.compile(r"^        (\w+): .*\n(?:            .*\n)*", re.MULTILINE)


def main() -> int:
    pages = ("observability.md", "options.md", "outcomes.md", "reading.md", "shards.md", "troubleshooting.md")
    tables = {page: tables_of(page) for page in pages}
    differing = [page for page, made in tables.items() if not write(DOCS / page, made, check="--check" in sys.argv[1:])]
    differing = [f"docs/{page}: its tables differ" for page in differing]
    for path, made in {COMMAND: command_rows(), STATS: with_counters(STATS.read_text())}.items():
        if "--check" not in sys.argv[1:]:
            path.write_text(made)
        elif path.read_text() != made:
            differing.append(f"{path.relative_to(ROOT)} differs")
    for text in differing:
        print(f"{text} from the code; run tools/write_tables.py", file=sys.stderr)
    return 1 if differing else 0


def tables_of(page: str) -> dict[str, str]:
    """Return the tables that a page must have, by the text of their marker."""
    dispatcher = [option for name, option in DISPATCHER.items() if not name.startswith("retry_")]
    return {
        "observability.md": {
            "counters: dispatcher": counters("dispatcher", "Stats"),
            "counters: node": counters("node", "NodeStats", "node"),
            "counters: reader": counters("reader", "ReaderStats", "read"),
            "counters: consumer": counters("consumer", "ConsumerStats", "read"),
            "counters: shard consumer": counters("shard_consumer", "ShardStats", "read"),
        },
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
        "reading.md": {"counters: report": report("ReadReport", "report")},
        "shards.md": {
            "options: shard consumer": options(
                row for name, row in SHARD_CONSUMER.items() if name not in READER or name == "start"
            ),
            "counters: shard report": report("ShardReport", "shard_report"),
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


def with_counters(text: str) -> str:
    """Return the module of the classes of counters with the fields of the tables, and their descriptions."""
    text = FIELDS.sub(lambda found: f"    # counters: {found[1]}\n{fields(found[1])}    # end\n", text)
    lines = text.splitlines(keepends=True)
    for node in reversed(ast.parse(text).body):
        if isinstance(node, ast.ClassDef):
            # A comment at the end of a class lies after its last line.
            first, source = node.lineno - 1, "".join(lines[node.lineno - 1 : (node.end_lineno or 0) + 1])
            rows = {row.name: row for table in FIELDS.findall(source) for row in COUNTERS[table]}
            start, end = (lines.index(line, first) for line in ("    Attributes:\n", '    """\n'))
            own = {found[1]: found[0] for found in DESCRIBED.finditer("".join(lines[start + 1 : end]))}
            names = re.findall(r"^    ([a-z]\w*): ", source[source.index('    """\n') :], re.MULTILINE)
            lines[start + 1 : end] = [described(rows[name]) if name in rows else own[name] for name in names]
    return "".join(lines)


def fields(table: str) -> str:
    return "".join(f"    {row.name}: {row.type} = {row.zero}\n" for row in COUNTERS[table])


def described(row: Counter) -> str:
    text = f"        {row.name}: {row.text}"
    return textwrap.fill(text, 120, subsequent_indent=" " * 12, break_on_hyphens=False) + "\n"


def counters(name: str, of: str, part: str = "") -> str:
    return table([f"`{of}`", "Prometheus", "OpenTelemetry", "meaning"], [cells(row, part) for row in COUNTERS[name]])


def report(name: str, counters: str) -> str:
    return table([f"`{name}`", "meaning"], [[f"`{row.name}`", row.text] for row in COUNTERS[counters]])


def cells(row: Counter, part: str) -> list[str]:
    attributes = f"`{row.name}`, `{row.age}`" if row.age else f"`{row.name}`"
    metric = metric_of(row, part)
    if metric is None:
        return [attributes, "none", "none", row.text]
    prometheus = f"`{metric.prometheus}` (a gauge)" if metric.is_gauge else f"`{metric.prometheus}_total`"
    return [attributes, prometheus, f"`{metric.opentelemetry}`", row.text]


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
