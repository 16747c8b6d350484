"""The site: its navigation has every page, and what checks it finds what is wrong. `make site` builds it."""

from __future__ import annotations

import importlib.util
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.pages import DOCS
from support.paths import ROOT

#: Pages that `make site` makes, or takes from the project's root.
MADE = {
    "api.md",
    "api-admin.md",
    "api-spark.md",
    "api-testing.md",
    "changelog.md",
    "contributing.md",
    "security.md",
}


def in_navigation(entries: Any) -> Iterator[str]:
    if isinstance(entries, str):
        yield entries
    for entry in entries if isinstance(entries, list) else []:
        for below in entry.values():
            yield from in_navigation(below)


def test_the_navigation_lists_every_page_once() -> None:
    project = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
    found = list(in_navigation(project["nav"]))
    assert len(found) > 30
    assert sorted(found) == sorted({page.name for page in DOCS.glob("*.md")} | MADE)


@pytest.fixture
def check_site(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_site", ROOT / "tools" / "check_site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "FEWEST_PAGES", 2)
    return module


@pytest.mark.parametrize(
    ("html", "wrong"),
    [
        ('<a href="b.html#there">b</a> <a href="https://redis.io/">out</a> <a href="#x" id="x">x</a>', []),
        ('<a href="/b.html">b</a> <a href="sub/">folder</a>', ["sub/ is no file"]),
        ('<a href="c.html">c</a> <a href="c.html">c</a>', ["c.html is no file"]),
        ('<a href="b.html#nowhere">b</a>', ["b.html#nowhere has no such anchor"]),
        ('<a href="#nowhere">here</a>', ["#nowhere has no such anchor"]),
        ('<script src="https://cdn.example/x.js"></script>', ["loads https://cdn.example/x.js"]),
        ('<link rel="stylesheet" href="//fonts.example/x.css">', ["loads //fonts.example/x.css"]),
        ('<img src="x.svg">', ["x.svg is no file"]),
    ],
)
def test_broken_links_and_external_resources_are_reported(
    check_site: ModuleType, tmp_path: Path, html: str, wrong: list[str]
) -> None:
    (tmp_path / "a.html").write_text(html)
    (tmp_path / "b.html").write_text('<h1 id="there">b</h1>')
    assert check_site.check(tmp_path) == [f"a.html: {text}" for text in wrong]


def test_a_folder_without_pages_is_reported(check_site: ModuleType, tmp_path: Path) -> None:
    assert check_site.check(tmp_path) == [f"{tmp_path} has 0 pages"]
