"""The documentation: links, anchors, the index, and the files that the architecture page names."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from support.paths import ROOT, TESTS

ARCHITECTURE = ROOT / "docs" / "architecture.md"
CORE = ROOT / "rust" / "headrace-core" / "src"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
#: The README is the first page that a reader sees: everything else has a page below docs/.
README_LINES = 120
#: The address of a file of this project.
ABSOLUTE = re.compile(r"https://(?:raw\.)?github(?:usercontent)?\.com/headrace/headrace/(?:blob|main|raw|tree)/[^)\s]*")
DEFINITION = re.compile(r"^\[([^\]]+)\]: (\S+)$", re.MULTILINE)


def without_code(text: str) -> str:
    """The text of a page without its code blocks, in which `#` is a comment and `](` is code."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", without_code(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> list[str]:
    """The relative targets of the links and pictures of a page."""
    text = without_code(page.read_text())
    found = re.findall(r"\]\(([^)\s]+)\)", text) + [target for _, target in DEFINITION.findall(text)]
    return [target for target in found if not re.match(r"[a-z]+:", target)]


def test_pages_are_found() -> None:
    names = {page.relative_to(ROOT).as_posix() for page in PAGES}
    assert {"README.md", "SECURITY.md", "docs/index.md", "docs/architecture.md", "docs/options.md"} <= names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_resolve(page: Path) -> None:
    broken = []
    for target in links(page):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


def test_the_index_links_to_every_page() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / target.partition("#")[0]).resolve() for target in links(index)}
    assert [page.name for page in PAGES if page != index and page not in linked] == []


def test_the_readme_is_short() -> None:
    text = DEFINITION.sub("", (ROOT / "README.md").read_text()).rstrip()
    assert len(text.splitlines()) <= README_LINES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_to_files_of_the_project_are_relative(page: Path) -> None:
    """They work in a clone and on a fork, and lead to the file of the same commit."""
    assert ABSOLUTE.findall(page.read_text()) == []


def test_absolute_links_are_recognized() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    to_files = {name for name, url in urls.items() if ABSOLUTE.fullmatch(url)}
    assert to_files == {"Documentation", "Changelog", "Security"}


def test_each_link_name_of_the_readme_is_defined_and_used() -> None:
    readme = without_code((ROOT / "README.md").read_text())
    defined = dict(DEFINITION.findall(readme))
    assert len(defined) > 15
    named = re.sub(r"`[^`\n]+`", "", DEFINITION.sub("", readme))
    used = re.findall(r"(?:\]\[|(?<![\]\w])\[)([^\]\[]+)\](?![\[(])", named)
    assert sorted(defined) == sorted(set(used))


def test_the_architecture_names_files_that_exist() -> None:
    named = re.findall(r"`([\w./-]+(?:\.rs|\.py|\.pyi|\.toml|\.md|/))`", without_code(ARCHITECTURE.read_text()))
    assert len(named) > 50
    assert [path for path in named if not ((ROOT / path).exists() or (CORE / path).exists())] == []


def test_the_architecture_maps_every_module_of_the_core() -> None:
    text = ARCHITECTURE.read_text()
    map_of_the_core = text.split("<!-- map of the core -->", 1)[1].split("<!-- /map of the core -->", 1)[0]
    modules = {path.stem for path in CORE.iterdir()} - {"lib"}
    assert len(modules) > 20
    assert sorted(name for name in modules if not re.search(rf"`{name}(\.rs|/)`", map_of_the_core)) == []


def test_contributing_lists_every_test_folder() -> None:
    named = re.findall(r"^\| `(\w+)` \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    folders = {path.name for path in TESTS.iterdir() if any(path.glob("*.py"))}
    assert len(folders) > 10
    assert folders - set(named) == set()


def test_every_test_file_is_in_a_folder_and_has_a_unique_name() -> None:
    """Tables of files name them without their folders: in `tools/spark_env.py`, and in `support/workers.py`."""
    files = sorted(TESTS.rglob("test_*.py"))
    assert len(files) > 70
    assert [path.name for path in files if path.parent == TESTS] == []
    assert len({path.name for path in files}) == len(files)


def rows_of(page: str, mark: str, label: str) -> list[list[str]]:
    """The rows of a generated table with a label in the first two cells, each cell up to its brackets."""
    block = (ROOT / "docs" / page).read_text().split(f"<!-- {mark} -->", 1)[1].split(f"<!-- /{mark} -->", 1)[0]
    rows = [[cell.split("(")[0].strip() for cell in line.split("|")[1:-1]] for line in block.splitlines()]
    return [row for row in rows if label in row[:2]]


def number(text: str) -> float:
    return float(text.replace(",", ""))


def test_figures_in_the_readme_match_their_pages() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    _, entries, cpu, *_ = rows_of("benchmarks.md", "throughput", "headrace produce_batch")[0]
    _, theirs, their_cpu, *_ = rows_of("benchmarks.md", "throughput", "redis-py with hiredis")[0]
    assert f"{entries} entries/s" in readme
    assert f"{number(entries) / number(theirs):.1f} times redis-py" in readme
    assert 45 < number(their_cpu) / number(cpu) < 55, "a fiftieth of its client CPU"
    for layout in ("rows_per_entry=10", "arrow_ipc"):
        rows = number(rows_of("benchmarks.md", "layouts", f"headrace {layout}")[0][1])
        assert f"{rows / 1e6:.1f} million" in readme
    for contender in ("headrace.spark.xadd", "redis-py with hiredis in mapInArrow"):
        assert f"{number(rows_of('benchmarks.md', 'spark', contender)[0][1]):.1f} s" in readme
    _, _, faults, messages, *_, ours = rows_of("guarantees.md", "campaign", "**all**")[0]
    assert ours == "0"
    assert f"{faults} random" in readme
    assert f"{number(messages) / 1e6:.1f} million messages" in readme
    theirs_all = rows_of("guarantees.md", "campaign", "redis-py")
    wrong, of = (int(sum(number(row[column]) for row in theirs_all)) for column in (-1, 3))
    assert f"{wrong:,} wrong ones of {of:,}" in readme
