"""The documentation: links, anchors, the index, and the files that the architecture page names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ARCHITECTURE = ROOT / "docs" / "architecture.md"
CORE = ROOT / "rust" / "headrace-core" / "src"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
#: The README is the first page that a reader sees: everything else has a page below docs/.
README_LINES = 120


def without_code(text: str) -> str:
    """The text of a page without its code blocks, in which `#` is a comment and `](` is code."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", without_code(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> list[str]:
    """The targets of the links and pictures of a page that point into this repository."""
    found = re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text()))
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


def test_the_index_links_every_page() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / target.partition("#")[0]).resolve() for target in links(index)}
    assert [page.name for page in PAGES if page != index and page not in linked] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES


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
