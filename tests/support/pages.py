"""The pages of docs/ that the tests run, and how the blocks of each page belong together."""

from __future__ import annotations

import re
from typing import NamedTuple

from support.paths import ROOT

DOCS = ROOT / "docs"

#: Pages whose blocks form one program or one session: each has its own test.
STORIES = {"command.md", "flights.md", "from-csv.md", "spark.md"}
#: Pages that need large packages or a database: the laboratory `recipes` runs them.
RECIPES = {"dlt.md", "fastapi.md", "outbox-postgresql.md"}


class Block(NamedTuple):
    """A block that is run, and what it prints.

    Attributes:
        kind: `python` or `console`.
        text: The block.
        prints: The block `text` that follows a Python block.
    """

    kind: str
    text: str
    prints: str


def blocks_of(text: str) -> list[Block]:
    """The blocks of a page that are run, in order."""
    found = re.findall(r"^```(python|console)\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", text, re.MULTILINE | re.DOTALL)
    assert len(found) == len(re.findall(r"```(?:python|console)\b", text)), "a block that no test runs"
    return [Block(*each) for each in found]
