"""`tools/check_architecture.py` finds files that depend on each other in a circle."""

from __future__ import annotations

import sys
from pathlib import Path

from support.paths import ROOT

sys.path.insert(0, str(ROOT))

from tools import check_architecture

FILES = {
    "lib.rs": "mod a; pub use d::Made;",
    "a.rs": "use crate::b::{self, Thing};",
    "b.rs": "fn call() { crate::c::called() }",
    "c.rs": "use crate::{a, e};",
    # The rest has no part in it.
    "d.rs": "use crate::a;",
    "e.rs": "// crate::c is above\n#[cfg(test)]\nmod tests {\n    use crate::c;\n}",
    "f/tests.rs": "use crate::f::g;",
    "f/g.rs": "use super::tests;",
}


def cycles(folder: Path, files: dict[str, str], exports: dict[str, str] | None = None) -> list[str]:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return check_architecture.cycles(folder, check_architecture.files_of(folder), exports)


def test_a_circle_between_the_files_of_a_crate_is_found(tmp_path: Path) -> None:
    assert cycles(tmp_path, FILES) == ["a cycle: a -> b -> c -> a"]
    assert cycles(tmp_path, {"c.rs": ""}) == []


def test_a_circle_below_a_folder_is_found(tmp_path: Path) -> None:
    files = {"f.rs": "", "f/g.rs": "use super::h::Thing;", "f/h.rs": "use crate::f::g;"}
    assert cycles(tmp_path, files) == ["a cycle: f::g -> f::h -> f::g"]


def test_a_circle_through_a_name_that_the_crate_exports_is_found(tmp_path: Path) -> None:
    files = {**FILES, "c.rs": "use crate::Made;"}
    assert cycles(tmp_path, files, check_architecture.exports_of(FILES["lib.rs"])) == [
        "a cycle: a -> b -> c -> d -> a",
    ]


def test_the_binding_has_none() -> None:
    files = check_architecture.files_of(check_architecture.BINDING)
    assert len(files) > 20
    assert check_architecture.cycles(check_architecture.BINDING, files) == []
