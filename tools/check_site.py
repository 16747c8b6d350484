"""Checks a built site: all links and anchors resolve, and no page loads anything from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

#: A site with fewer pages is not that of this project.
FEWEST_PAGES = 30


class Page(HTMLParser):
    """The anchors of a page, the links in it, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep the anchors, links and loads of an element."""
        values = {name: value for name, value in attrs if value is not None}
        self.anchors |= {values[name] for name in ("id", "name") if name in values and (name == "id" or tag == "a")}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag == "link" and "href" in values and values.get("rel") not in ("canonical", "prev", "next"):
            self.loaded.append(values["href"])
        elif "src" in values:
            self.loaded.append(values["src"])


def check(folder: Path) -> list[str]:
    """Return what is wrong, one line each."""
    pages = {page: Page(page.read_text()) for page in sorted(folder.rglob("*.html"))}
    wrong = [] if len(pages) >= FEWEST_PAGES else [f"{folder} has {len(pages)} pages"]
    for page, read in pages.items():
        name = page.relative_to(folder).as_posix()
        wrong += [f"{name}: {text}" for text in dict.fromkeys(of_page(folder, page, read, pages))]
    return wrong


def of_page(folder: Path, page: Path, read: Page, pages: dict[Path, Page]) -> Iterator[str]:
    for target in read.loaded:
        if re.match(r"(https?:)?//", target):
            yield f"loads {target}"
        elif not target.startswith("data:") and not file_of(folder, page, urldefrag(target).url).exists():
            yield f"{target} is no file"
    for target in read.links:
        if re.match(r"[a-z]+:", target):
            continue
        path, anchor = urldefrag(target)
        file = file_of(folder, page, path)
        if file.is_dir():
            file /= "index.html"
        if not file.exists():
            yield f"{target} is no file"
        elif anchor and file in pages and unquote(anchor) not in pages[file].anchors:
            yield f"{target} has no such anchor"


def file_of(folder: Path, page: Path, path: str) -> Path:
    """Return the file that a link leads to. The page 404 is shown at any path, so its links begin at the folder."""
    if not path:
        return page
    return (folder / path.lstrip("/") if path.startswith("/") else page.parent / unquote(path)).resolve()
