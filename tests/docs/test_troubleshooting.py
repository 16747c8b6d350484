"""The page to which errors refer has a section for each code."""

from __future__ import annotations

import builtins
import re
from pathlib import Path

from headrace import _headrace
from headrace.tables import CODES

PAGE = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text()
SECTIONS = {found.lower() for found in re.findall(r"^### (\w+)$", PAGE, re.MULTILINE)}


def test_each_code_has_a_section() -> None:
    assert {name.lower() for name in CODES} | {"err"} == SECTIONS


def test_each_advice_refers_to_its_section() -> None:
    texts = ["cannot connect to h:1", "ERR max number of clients reached"]
    advised = [_headrace.advised(code, text) for code in (*CODES, "ERR") for text in texts]
    sections = [found[1] for text in advised if (found := re.search(r"\(docs/troubleshooting\.md#(\w+)\)$", text))]
    assert len(sections) > len(CODES)
    assert set(sections) <= SECTIONS


def test_the_classes_that_the_page_names_exist() -> None:
    import headrace

    named = set(re.findall(r"\b[A-Z]\w+Error\b|\b\w+Warning\b", PAGE)) - set(dir(builtins))
    assert len(named) > 10
    assert [name for name in sorted(named) if not hasattr(headrace, name)] == []
