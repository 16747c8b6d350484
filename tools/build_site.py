"""Builds the documentation site in .site/html from docs/, the API pages and the pages at the project's root.

Usage: python -m tools.build_site, at the project's root. It exits with 1 and prints one line for each broken link.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tools import api_pages, check_site
from tools.readme_for_index import with_targets

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
SITE = ROOT / ".site"
#: The target of links to files that are not pages.
REPOSITORY = "https://github.com/headrace/headrace/blob/main/"
#: Pages at the project's root, under their names in the site.
AT_ROOT = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}


def main() -> int:
    shutil.rmtree(SITE, ignore_errors=True)
    pages = SITE / "pages"
    shutil.copytree(DOCS, pages)
    for page in DOCS.glob("*.md"):
        (pages / page.name).write_text(staged(page))
    for name_at_root, name in AT_ROOT.items():
        (pages / name).write_text(staged(ROOT / name_at_root))
    api_pages.write_pages(ROOT / "python", pages)
    for page in pages.glob("*.md"):
        page.write_text(with_pipes(page.read_text()))
    program = Path(sys.executable).parent / "zensical"
    done = subprocess.run([program, "build", "--strict", "--clean"], cwd=ROOT, check=False)
    if done.returncode:
        return done.returncode
    wrong = check_site.check(SITE / "html")
    for text in wrong:
        print(text, file=sys.stderr)
    return 1 if wrong else 0


def staged(page: Path) -> str:
    """Return the text of a page, with its links adapted to the pages of the site."""
    return with_targets(page.read_text(), lambda target: moved(page, target))


def with_pipes(text: str) -> str:
    """Replace escaped pipes in the code of tables: Python-Markdown shows the backslash that forges need there."""
    return re.sub(
        r"^\|.*$",
        lambda row: re.sub(r"`[^`]+`", lambda code: code[0].replace(r"\|", "|"), row[0]),
        text,
        flags=re.MULTILINE,
    )


def moved(page: Path, target: str) -> str:
    """Return a link of a page as it is in the site."""
    path, hash_, anchor = target.partition("#")
    if not path or re.match(r"[a-z]+:", target):
        return target
    file = Path(os.path.normpath(page.parent / path))
    if file.is_relative_to(DOCS):
        return file.relative_to(DOCS).as_posix() + hash_ + anchor
    name = file.relative_to(ROOT).as_posix()
    return AT_ROOT.get(name, REPOSITORY + name) + hash_ + anchor


if __name__ == "__main__":
    sys.exit(main())
