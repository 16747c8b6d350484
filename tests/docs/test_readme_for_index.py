"""The README of a release, as the package index shows it: its links are absolute, and lead to the files of its tag."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from support.paths import ROOT

PACKAGE = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]
PAGES = f"{PACKAGE['repository']}/blob/v{PACKAGE['version']}"
FILES = f"{PACKAGE['repository']}/raw/v{PACKAGE['version']}"


def for_index(page: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "readme_for_index.py"), str(page)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_links_of_the_readme_become_absolute() -> None:
    done = for_index(ROOT / "README.md")
    assert (done.returncode, done.stderr) == (0, "")
    targets = re.findall(r"\]\(([^)]+)\)|^\[[^\]]+\]: (.+)$", done.stdout, re.MULTILINE)
    targets = [inline or defined for inline, defined in targets]
    assert len(targets) > 15
    assert [target for target in targets if not target.startswith("https://")] == []
    ours = [target for target in targets if target.startswith(PACKAGE["repository"])]
    paths = [re.sub(rf"^({re.escape(PAGES)}|{re.escape(FILES)})/|#.*", "", target) for target in ours]
    assert len(paths) > 15
    assert [path for path in paths if not (ROOT / path).is_file()] == []
    # Nothing else differs.
    back = done.stdout.replace(f"{PAGES}/", "").replace(f"{FILES}/", "")
    assert back == (ROOT / "README.md").read_text()


def test_each_kind_of_link(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text(
        "# A page\n\n"
        '[in line](docs/spark.md), [titled](docs/spark.md#options "Options"), [defined], [here](#a-page)\n'
        "![in line](docs/pictures/throughput.svg) [![in a link](docs/pictures/throughput.svg)](SECURITY.md)\n"
        '<img src="docs/pictures/throughput.svg"> [out](https://redis.io/) [mail](mailto:a@example.com)\n'
        "`[code](docs/none.md)`\n\n"
        "```python\n[code](docs/none.md)\n[code]: docs/none.md\n```\n\n"
        "[defined]: docs/index.md\n"
    )
    done = for_index(page)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "# A page\n\n"
        f'[in line]({PAGES}/docs/spark.md), [titled]({PAGES}/docs/spark.md#options "Options"), [defined], '
        f"[here]({PAGES}/README.md#a-page)\n"
        f"![in line]({FILES}/docs/pictures/throughput.svg) "
        f"[![in a link]({FILES}/docs/pictures/throughput.svg)]({PAGES}/SECURITY.md)\n"
        f'<img src="{FILES}/docs/pictures/throughput.svg"> [out](https://redis.io/) [mail](mailto:a@example.com)\n'
        "`[code](docs/none.md)`\n\n"
        "```python\n[code](docs/none.md)\n[code]: docs/none.md\n```\n\n"
        f"[defined]: {PAGES}/docs/index.md\n"
    )


def test_a_link_to_no_file_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    for target in ("docs/none.md", "../", "/docs/spark.md"):
        page.write_text(f"[broken]({target})\n")
        done = for_index(page)
        expected = f"README.md links to {target}, which is no file of the project: correct the link\n"
        assert (done.returncode, done.stdout, done.stderr) == (1, "", expected)
