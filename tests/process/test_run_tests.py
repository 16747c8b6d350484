"""`make test` counts all tests, and names each that failed with the command that repeats it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.paths import ROOT

sys.path.insert(0, str(ROOT))

from tools import run_tests

pytestmark = pytest.mark.thorough

FILES = {
    "test_some.py": """
import pytest
def test_passes(): pass
def test_fails(): assert 1 == 2
@pytest.mark.parametrize("what", ["a b"])
def test_has_a_parameter(what): assert what is None
@pytest.mark.skip
def test_is_skipped(): pass
@pytest.fixture
def broken(): raise ValueError
def test_has_a_broken_fixture(broken): pass
class TestClass:
    def test_in_a_class(self): raise ValueError
""",
    "test_crash.py": "import os\ndef test_crashes(): os._exit(3)\n",
    "test_broken.py": "import no_such_module\n",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(run_tests, "ROOT", tmp_path)
    (tmp_path / "tests").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:randomly -p no:cacheprovider\n")
    return tmp_path / "tests"


def run(folder: Path, *files: str) -> run_tests.Results:
    for name in files:
        (folder / name).write_text(FILES[name])
    results = run_tests.Results("Python")
    run_tests.run_pytest(results, [sys.executable, "-m", "pytest"], ["tests"], workers=1)
    return results


def test_each_test_is_counted_and_each_failure_can_be_repeated(folder: Path) -> None:
    results = run(folder, "test_some.py")
    assert results.counts == {"passed": 1, "skipped": 1, "failed": 4}
    names = ["test_fails", "test_has_a_parameter[a b]", "test_has_a_broken_fixture", "TestClass::test_in_a_class"]
    assert sorted(name for name, _ in results.failures) == sorted(f"tests/test_some.py::{name}" for name in names)
    for name, repeat in results.failures:
        done = subprocess.run(repeat, shell=True, cwd=folder.parent, capture_output=True, text=True, check=False)
        assert done.returncode == 1, name
        assert "1 failed" in done.stdout or "1 error" in done.stdout, name


def test_a_crashed_worker_and_a_broken_file_are_failures(folder: Path) -> None:
    assert [name for name, _ in run(folder, "test_crash.py").failures] == ["tests/test_crash.py::test_crashes"]
    assert "test_broken" in run(folder, "test_broken.py").failures[0][0]


def test_no_test_is_a_failure(folder: Path) -> None:
    assert run(folder).failures[0][0] == "pytest ended with status 5"


def test_what_nextest_and_cargo_print_is_counted() -> None:
    results = run_tests.Results("Rust")
    for line in (
        "        FAIL [   0.005s] (3/9) headrace-core rows::tests::a_row_is_encoded",
        "     Summary [  39.486s] 9 tests run: 8 passed, 1 failed, 2 skipped",
        "        FAIL [   0.005s] (3/9) headrace-core rows::tests::a_row_is_encoded",
        "test src/lib.rs - Reader (line 3) ... FAILED",
        "test result: FAILED. 5 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.40s",
    ):
        run_tests.read_rust(results, f"{line}\n")
    assert results.counts == {"passed": 13, "failed": 2, "skipped": 3}
    assert [name for name, _ in results.failures] == ["rows::tests::a_row_is_encoded", "src/lib.rs"]
