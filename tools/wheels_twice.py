"""Builds a wheel and the sdist of HEAD twice, and compares them byte by byte.

The second build differs in its folder and the length of its name, in the folders of cargo and of caches, with crates
fetched again, in the dates of its files, in the time zone and in the umask. The clock is the same.

    tools/wheels_twice.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGETS = ("x86_64-manylinux", "sdist")


def main() -> int:
    run(sys.executable, ROOT / "tools" / "wheels.py", "--only-tools")
    with tempfile.TemporaryDirectory() as folder:
        near, far = Path(folder, "a"), Path(folder, "b", "in a folder with a name that is much longer", "clone")
        build(near, {})
        cargo = Path(folder, "cargo")
        others = {"CARGO_HOME": cargo, "XDG_CACHE_HOME": Path(folder, "cache"), "TZ": "Pacific/Apia", "LC_ALL": "C"}
        build(far, {name: str(value) for name, value in others.items()}, is_other=True)
        first, second = (sorted((clone / "dist" / "wheels").iterdir()) for clone in (near, far))
        equal = [is_equal(*pair) for pair in zip(first, second, strict=True)]
    return 0 if all(equal) and len(equal) == len(TARGETS) else 1


def build(clone: Path, environment: Mapping[str, str], *, is_other: bool = False) -> None:
    variables = {**os.environ, **environment}
    for name in ("CARGO_TARGET_DIR", "SOURCE_DATE_EPOCH"):
        variables.pop(name, None)
    previous = os.umask(0o077 if is_other else 0o022)
    try:
        run("git", "clone", "--quiet", "--no-hardlinks", ROOT, clone)
        (clone / ".wheels").mkdir()
        (clone / ".wheels" / "tools").symlink_to(ROOT / ".wheels" / "tools", target_is_directory=True)
        if is_other:
            for path in clone.rglob("*"):
                os.utime(path, (1_000_000_000, 1_000_000_000), follow_symlinks=False)
        run(sys.executable, clone / "tools" / "wheels.py", "--build-only", *TARGETS, environment=variables)
    finally:
        os.umask(previous)


def is_equal(first: Path, second: Path) -> bool:
    if first.name == second.name and first.read_bytes() == second.read_bytes():
        print(f"equal: {first.name}, {first.stat().st_size} bytes")
        return True
    print(f"not equal: {first.name} and {second.name}")
    if first.suffix == second.suffix == ".whl":
        for name in sorted({name for name, *_ in members(first) ^ members(second)}):
            print(f"  differs: {name}")
    return False


def members(wheel: Path) -> set[tuple[str, int, tuple[int, ...], int]]:
    with zipfile.ZipFile(wheel) as archive:
        return {(info.filename, info.CRC, info.date_time, info.external_attr) for info in archive.infolist()}


def run(*words: object, environment: Mapping[str, str] | None = None) -> None:
    if subprocess.run(list(map(str, words)), env=environment, check=False).returncode:
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(main())
