"""Unsupported interpreters (subinterpreters, builds without the GIL): the import fails with the reason."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from packaging.tags import cpython_tags

import headrace

#: Two subinterpreters import headrace, and the main one uses it. Legacy ones, since those refuse nothing themselves.
SUBINTERPRETERS = """
import sys, threading

try:
    import _interpreters as interpreters
    create = lambda: interpreters.create("legacy")
except ImportError:
    import _xxsubinterpreters as interpreters
    create = lambda: interpreters.create(isolated=False)

IN_SUBINTERPRETER = '''
import sys
sys.path[:] = {path!r}
try:
    import headrace
except ImportError as error:
    with open({file!r}, "a") as file:
        print(error, file=file)
'''

def use():
    import headrace
    with headrace.Dispatcher(headrace.Endpoint(unix_socket="/nonexistent", stream_key="s")) as dispatcher:
        dispatcher.produce(b"x")
        assert dispatcher.flush().failed[0].code == "CONNECT"

order, file = sys.argv[1:]
if order == "main first":
    use()
for _ in range(2):
    one = create()
    interpreters.run_string(one, IN_SUBINTERPRETER.format(path=sys.path, file=file))
    interpreters.destroy(one)
use()
thread = threading.Thread(target=use)
thread.start()
thread.join()
print("well")
"""


@pytest.mark.parametrize("order", ["main first", "subinterpreter first"])
def test_a_subinterpreter_is_refused(order: str, tmp_path: Path) -> None:
    """At each import, in any order; the main interpreter is unaffected."""
    said = tmp_path / "said"
    command = [sys.executable, "-X", "dev", "-c", SUBINTERPRETERS, order, str(said)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "well\n"), done.stderr
    reported = "headrace works only in the main interpreter, not in a subinterpreter: import it there, "
    assert said.read_text() == f"{reported}or in another process\n" * 2


def test_a_build_without_the_gil_is_refused() -> None:
    """By the flag of such a build (PEP 703). Wheels exclude it, but it can be compiled there."""
    code = "import sys; sys.abiflags = 't'; import headrace"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    expected = "headrace is not tested on free-threaded builds of Python: use a build with the GIL"
    assert done.stderr.splitlines()[-1] == f"ImportError: {expected}"


def test_wheels_exclude_builds_without_the_gil() -> None:
    """They use the stable ABI, which such builds lack: pip skips them."""
    (suffix,) = {path.suffixes[0] for path in Path(headrace.__file__).parent.glob("_headrace.*.so")}
    assert suffix == ".abi3"
    platforms = ["manylinux_2_28_x86_64"]
    abis = {build: {tag.abi for tag in cpython_tags((3, 13), [build], platforms)} for build in ("cp313", "cp313t")}
    assert "abi3" in abis["cp313"]
    assert "abi3" not in abis["cp313t"]
