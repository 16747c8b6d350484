"""Checks that the modules of the core crate depend on each other in one direction only, and the crate not on Python.

It also checks that the files of a folder have no cycles, there and in the binding, that I/O, clocks and random numbers
are used only in the files named here, and that `unsafe` occurs only in known places; clippy checks that each has a
safety comment.

Usage: tools/check_architecture.py. Exits with 1 and prints one line for each wrong dependency.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CRATES = ROOT / "rust"
SOURCES = CRATES / "headrace-core" / "src"
BINDING = CRATES / "headrace-py" / "src"

# From top to bottom. A module may use those of lower rows, but not its neighbours.
ROWS = [
    {"data_source"},
    {"consumer", "dispatcher", "shard_consumer"},
    {"group", "inspect"},
    {"leases", "reader"},
    {"keeper"},
    {"producer", "reading", "type_names"},
    {"admin", "batch", "connection", "import", "looped", "report"},
    {"dead_letters", "entries", "entry_lines"},
    {"command", "durability", "ipc", "net", "retry_options", "rows"},
    {"endpoint"},
    {"shards"},
    {"cluster", "stream_facts"},
    {"counters", "extension", "nearest", "nested", "resp", "retry", "secret", "shown", "utf8"},
    {"calendar", "contain", "decimal", "error", "fail", "random", "time_zones"},
]
# Crates that the core crate must not be built with.
FORBIDDEN_CRATES = ("pyo3", "pyo3-ffi", "tokio", "async-std")

# The files and folders that do I/O, read a clock or draw random numbers. All others receive bytes, instants and numbers
# as arguments, so that tests and fuzzing control them.
IMPURE = {
    "admin/session.rs",
    "consumer.rs",
    "keeper.rs",
    "keeper",
    "consumer/drive.rs",
    "consumer/event_loop.rs",
    "consumer/line.rs",
    "consumer/members.rs",
    "consumer/setup.rs",
    "dispatcher.rs",
    "dispatcher/shared.rs",
    "dispatcher/shared",
    "endpoint.rs",
    "endpoint",
    "looped.rs",
    "net",
    "producer.rs",
    "producer/clock.rs",
    "producer/lane.rs",
    "producer/sender.rs",
    "producer/sender",
    "producer/shard_registry.rs",
    "random.rs",
    "reader/drive.rs",
    "reader/event_loop.rs",
    "reader/line.rs",
    "reading/channel.rs",
    "reading/link.rs",
    "reading/pool.rs",
    "shard_consumer.rs",
    "time_zones.rs",
}
IMPURITIES = re.compile(
    r"Instant::now|\.elapsed\(\)|SystemTime|UNIX_EPOCH|clock_gettime|thread::sleep|getrandom|std::(?:net|fs|env|os)\b|socket2::"
)

# How often `unsafe` occurs in the code of each file of all crates, including those of tests and benchmarks.
UNSAFE = {
    "headrace-core/src/import/abi.rs": 35,
    "headrace-core/src/import/node.rs": 7,
    "headrace-core/src/import/reader.rs": 6,
    "headrace-core/src/import/tests.rs": 2,
    "headrace-core/src/net/socket.rs": 2,
    "headrace-core/tests/advance.rs": 1,
    "headrace-py/src/capsules.rs": 2,
    "headrace-py/src/interpreter.rs": 1,
}

ROW_OF = {module: row for row, modules in enumerate(ROWS) for module in modules}
UNSAFE_CODE = re.compile(r"\bunsafe\b")
TESTS = re.compile(r"#\[cfg\(test\)\]\s*(?:#\[[^\n]*\]\s*)*mod \w+ \{")
COMMENT = re.compile(r"//[^\n]*")
# `crate::rows::Id`, `super::rows`, `use crate::{rows, error::{Error, Fault}}`
PATH = re.compile(r"\b(crate|(?:super::)*super)::(?:(\w+)|\{)")


def main() -> int:
    files, files_of_binding = files_of(SOURCES), files_of(BINDING)
    exports = exports_of((SOURCES / "lib.rs").read_text())
    edges = {edge for path in files for edge in edges_of(path.relative_to(SOURCES), path.read_text(), exports)}
    wrong = [f"{source} -> {target}: {reason}" for source, target in sorted(edges) if (reason := fault(source, target))]
    wrong += cycles(SOURCES, files, exports) + cycles(BINDING, files_of_binding)
    wrong += [f"{file}: {what}, in no file of IMPURE" for file, what in impurities(files)]
    crates = crates_of_the_core()
    wrong += [f"headrace-core is built with {name}" for name in FORBIDDEN_CRATES if name in crates]
    wrong += [
        f"{file}: unsafe is there {count} times, not {UNSAFE.get(file, 0)}" for file, count in unexpected_unsafe()
    ]
    # Finding nothing means that the check itself is broken.
    found_at_least = (
        ("files", files, 5),
        ("files of the binding", files_of_binding, 5),
        ("dependencies", edges, 5),
        ("crates", crates, 10),
    )
    for what, found, at_least in found_at_least:
        if len(found) < at_least:
            wrong.append(f"only {len(found)} {what} were found below {CRATES}")
    for line in wrong:
        print(line, file=sys.stderr)
    if not wrong:
        print(f"architecture: {len(files)} files, {len(edges)} dependencies between modules, all downwards")
    return 1 if wrong else 0


def files_of(sources: Path) -> list[Path]:
    """The files below a folder, except those of tests."""
    files = (path for path in sources.rglob("*.rs") if path.name != "lib.rs")
    return sorted(path for path in files if not any(map(is_test, path.relative_to(sources).parts)))


def is_test(part: str) -> bool:
    return part.removesuffix(".rs").endswith("tests")


def exports_of(text: str) -> dict[str, str]:
    """The names that lib.rs re-exports, each with its module: `crate::Error` is a use of `error`."""
    statements = re.findall(r"pub use (?:crate::)?(\w+)::([^;]+);", COMMENT.sub("", text))
    return {name: module for module, names in statements for name in re.findall(r"\w+", names)}


def edges_of(file: Path, text: str, exports: dict[str, str]) -> set[tuple[str, str]]:
    """The pairs (module, module it uses) of one file, except those of its tests."""
    module = file.parts[0].removesuffix(".rs")
    depth = len(file.with_suffix("").parts) - (file.name == "mod.rs")
    code = COMMENT.sub("", TESTS.split(text, maxsplit=1)[0])
    targets: set[str] = set()
    for found in PATH.finditer(code):
        if found[1] != "crate" and found[1].count("super") != depth:
            continue  # still within the module
        targets |= {found[2]} if found[2] else first_names(code, found.end())
    modules = {exports.get(target, target) for target in targets}
    return {(module, target) for target in modules if target != module and is_module(target)}


def first_names(code: str, start: int) -> set[str]:
    """The first name of each path in `{a, b::c, d::{e, f}}`, from after its opening brace."""
    names: set[str] = set()
    depth, position, fresh = 1, start, True
    while depth and position < len(code):
        character = code[position]
        if depth == 1 and fresh and (found := re.compile(r"\w+").match(code, position)):
            names.add(found[0])
            fresh = False
            position = found.end()
            continue
        depth += (character == "{") - (character == "}")
        fresh = fresh or (depth == 1 and character == ",")
        position += 1
    return names


def is_module(name: str) -> bool:
    return name in ROW_OF or (SOURCES / f"{name}.rs").exists() or (SOURCES / name).is_dir()


def fault(source: str, target: str) -> str:
    """Return what is wrong with a dependency; empty if nothing is."""
    for module in (source, target):
        if module not in ROW_OF:
            return f"{module} is in no row of tools/check_architecture.py"
    if ROW_OF[source] < ROW_OF[target]:
        return ""
    return "neighbours" if ROW_OF[source] == ROW_OF[target] else "upwards"


def impurities(files: list[Path]) -> list[tuple[str, str]]:
    """I/O, clocks and random numbers in files that must not have any."""
    found = []
    for path in files:
        file = path.relative_to(SOURCES)
        if not any(str(part) in IMPURE for part in (file, *file.parents)):
            code = COMMENT.sub("", TESTS.split(path.read_text(), maxsplit=1)[0])
            found += [(str(file), match[0]) for match in IMPURITIES.finditer(code)]
    return found


def cycles(sources: Path, files: list[Path], exports: dict[str, str] | None = None) -> list[str]:
    """The cycles between modules that have the same parent. `exports`: the names that lib.rs re-exports, by module."""
    modules = {path.relative_to(sources).with_suffix("").parts for path in files}
    uses: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    for path in files:
        file = path.relative_to(sources).with_suffix("").parts
        code = COMMENT.sub("", TESTS.split(path.read_text(), maxsplit=1)[0])
        for used in (used for found in PATH.finditer(code) for used in paths(code, found, file)):
            if exports and used[:1] and used[0] in exports:
                used = (exports[used[0]], *used)
            target = next((used[:length] for length in range(len(used), 0, -1) if used[:length] in modules), None)
            common = next((at for at, (a, b) in enumerate(zip(file, target or (), strict=False)) if a != b), None)
            if target is not None and common is not None:
                uses.setdefault(file[: common + 1], set()).add(target[: common + 1])
    found = {min(turns(cycle)) for start in uses for cycle in [cycle_through(start, uses)] if cycle}
    return [f"a cycle: {' -> '.join('::'.join(module) for module in (*cycle, cycle[0]))}" for cycle in sorted(found)]


def turns(cycle: tuple[tuple[str, ...], ...]) -> list[tuple[tuple[str, ...], ...]]:
    """The same cycle from each of its modules."""
    return [(*cycle[at:], *cycle[:at]) for at in range(len(cycle))]


def cycle_through(
    start: tuple[str, ...], uses: dict[tuple[str, ...], set[tuple[str, ...]]]
) -> tuple[tuple[str, ...], ...]:
    """A shortest path from a module back to itself; empty if there is none."""
    seen = {start}
    paths_to_try: list[tuple[tuple[str, ...], ...]] = [(start,)]
    for path in paths_to_try:
        for target in sorted(uses.get(path[-1], ())):
            if target == start:
                return path
            if target not in seen:
                seen.add(target)
                paths_to_try.append((*path, target))
    return ()


def paths(code: str, found: re.Match[str], file: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The absolute paths of a `use`, or of a path in an expression, as far as modules matter."""
    base = () if found[1] == "crate" else file[: len(file) - found[1].count("super")]
    if found[2] is None:
        return [(*base, name) for name in first_names(code, found.end())]
    rest = re.compile(r"(?:::(\w+))?(?:::(\w+))?").match(code, found.end())
    return [(*base, found[2], *(name for name in (rest.groups() if rest else ()) if name))]


def unexpected_unsafe() -> list[tuple[str, int]]:
    """Return the files with more or fewer occurrences than in `UNSAFE`, and how many."""
    files = {str(path.relative_to(CRATES)): path.read_text() for path in CRATES.rglob("*.rs")}
    found = {file: len(UNSAFE_CODE.findall(COMMENT.sub("", text))) for file, text in files.items()}
    return [
        (file, found.get(file, 0)) for file in sorted({*found, *UNSAFE}) if found.get(file, 0) != UNSAFE.get(file, 0)
    ]


def crates_of_the_core() -> set[str]:
    command = ["cargo", "tree", "--package", "headrace-core", "--edges", "normal,build", "--prefix", "none"]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in output.splitlines() if line}


if __name__ == "__main__":
    sys.exit(main())
