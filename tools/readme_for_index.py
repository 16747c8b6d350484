"""Prints README.md with absolute links, for the package index, which shows it without the files around it.

    tools/readme_for_index.py README.md

They lead to the tag of the version in Cargo.toml, because the page of a release does not change, and `main` does. Only
what is built from a tag is published. The tag is not looked up: builds before and after tagging a commit are equal.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CODE = re.compile(r"(^ *```.*?^ *```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
#: What precedes the target of a link or picture, and the target: in the text, in a definition, or in HTML.
TARGET = re.compile(r'(\]\(|^\[[^\]]+\]: |\b(?:href|src|srcset)=")([^)\s"]+)', re.MULTILINE)
PICTURES = {".gif", ".jpg", ".png", ".svg"}


def main() -> int:
    page = Path(sys.argv[1])
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]

    def absolute(target: str) -> str:
        path, hash_, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            return target
        file = (ROOT / (path or page.name)).resolve()
        if not (file.exists() and file.is_relative_to(ROOT)):
            sys.exit(f"{page.name} links to {target}, which is no file of the project: correct the link")
        # A picture is shown only if the address has the file itself, and not the forge's page about it.
        kind = "raw" if file.suffix in PICTURES else "blob"
        name = file.relative_to(ROOT).as_posix()
        return f"{workspace['repository']}/{kind}/v{workspace['version']}/{name}{hash_}{anchor}"

    print(with_targets(page.read_text(), absolute), end="")
    return 0


def with_targets(text: str, change: Callable[[str], str]) -> str:
    """Return the text of a page with the targets of its links and pictures changed, except those in code."""
    parts = CODE.split(text)
    parts[::2] = [TARGET.sub(lambda found: found[1] + change(found[2]), part) for part in parts[::2]]
    return "".join(parts)


if __name__ == "__main__":
    sys.exit(main())
