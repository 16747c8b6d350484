"""A panic ends one call and costs no outcome: headrace panics on purpose at each place, in each mode, on a real server.

The build of `make test` has such places. A release has none: for its tests, such a build is made here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

import headrace
from headrace import _headrace
from headrace.testing import LocalServer
from support.panic_cases import ROWS, SECRET, cases
from support.paths import ROOT, TESTS
from support.servers import newest

CASES = list(cases())


def name(case: dict[str, Any]) -> str:
    extra = [case["layout"], *(["retries"] if case["retries"] else []), *(["waits"] if case["waits"] else [])]
    return "-".join([case["place"], case["mode"], *extra])


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package headrace, whose native module can panic."""
    installed = Path(headrace.__file__).parent
    if hasattr(_headrace, "_panic_at"):
        return installed.parent
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    build = ["cargo", "build", "--quiet", "--profile", "quick"]
    environment = {**os.environ, "PYO3_PYTHON": sys.executable}
    subprocess.run(
        [*build, "--package", "headrace-py", "--features", "failpoints"], cwd=ROOT, check=True, env=environment
    )
    folder = tmp_path_factory.mktemp("failpoints")
    shutil.copytree(installed, folder / "headrace")
    [library] = (folder / "headrace").glob("_headrace*.so")
    shutil.copy(target / "quick" / f"lib_headrace{'.dylib' if sys.platform == 'darwin' else '.so'}", library)
    return folder


@pytest.fixture(scope="module")
def results(package: Path) -> Iterator[dict[str, dict[str, Any]]]:
    """The result and the stream of each case, by the name of the case."""
    with LocalServer(newest("idmp").path, config={"appendonly": True, "appendfsync": "always"}) as server:
        folder = os.pathsep.join([str(package), str(TESTS)])
        command = [sys.executable, "-W", "ignore", "-m", "support.panic_cases", str(server.unix_socket)]
        done = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": folder}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        # The panic hook prints nothing, and so no data.
        assert done.stderr == ""
        found = {}
        client: Any = redis.Redis(unix_socket_path=str(server.unix_socket))
        for line in done.stdout.splitlines():
            result = json.loads(line)
            result["stream"] = {entry_id.decode(): fields for entry_id, fields in client.xrange(result["key"])}
            found[name(result)] = result
        client.close()
        yield found


@pytest.mark.parametrize("case", CASES, ids=name)
def test_each_message_has_the_right_outcome_after_a_panic(case: dict[str, Any], results: dict[str, Any]) -> None:
    result = results[name(case)]
    assert result["panicked"], "the place was never passed"
    assert len(result["raised"]) == 1, result["raised"]
    outcomes, stream = result["outcomes"], result["stream"]
    assert len(outcomes) == result["messages"]
    # Two record batches of the second table are not handed over when the import of one panics.
    expected = {"import": 2 * ROWS + ROWS // 3, "bind": 2 * ROWS + 2 * ROWS // 3, "encode": 2 * ROWS + 2 * ROWS // 3}
    if case["layout"] != "produce" and case["place"] in expected:
        assert len(outcomes) == expected[case["place"]]
    delivered = [outcome for outcome in outcomes if outcome["code"] is None]
    failed = [outcome for outcome in outcomes if outcome["code"] is not None]
    assert all(outcome["entry_id"] in stream for outcome in delivered)
    # The rows before and after the panic are delivered, unless it happened while their replies were read.
    ids = {outcome["message_id"] for outcome in delivered}
    assert ids >= {str(number) for number in range(2 * ROWS, 3 * ROWS)}
    if case["place"] in ("import", "bind", "encode", "report"):
        assert ids >= {str(number) for number in range(ROWS)}
        assert {outcome["written"] for outcome in failed} <= ({"no"} if case["mode"] == "off" else {"no", "unknown"})
    if case["layout"] in ("payload", "produce"):
        there = [fields[b"payload"].decode().removeprefix(SECRET).strip() for fields in stream.values()]
        assert len(set(there)) == len(there), "a message is there twice"
        assert not {outcome["message_id"] for outcome in failed if outcome["written"] == "no"} & set(there)
        if case["mode"] == "off":
            certain = {outcome["message_id"] for outcome in failed if outcome["written"] == "unknown"} | ids
            assert set(there) <= certain


def test_no_row_of_a_batch_is_written_after_one_that_a_panic_left_out(results: dict[str, Any]) -> None:
    """Its marker would say of the row that it was written, and the same batch would never write it."""
    result = results["encode-script-produce"]
    codes = {int(outcome["message_id"]): outcome["code"] for outcome in result["outcomes"]}
    at = next(number for number, code in codes.items() if code == "INTERNAL")
    assert {codes[number] for number in range(at)} == {None}
    assert {codes[number] for number in range(at + 1, 2 * ROWS)} == {"BLOCKED"}


@pytest.mark.parametrize("case", CASES, ids=name)
def test_the_error_names_the_input_and_the_log_names_the_location(
    case: dict[str, Any], results: dict[str, Any]
) -> None:
    result = results[name(case)]
    [raised] = result["raised"]
    column, of_type = ("map", "Map") if case["layout"] == "fields_from" else ("payload", "Utf8")
    kind, _, message = raised.partition(": ")
    if case["place"] == "import":
        assert kind == "ReaderError"
        assert column in message
    elif case["place"] == "report":
        assert "a defect in headrace" in message
    else:
        assert kind == "InternalError"
        assert message.startswith("a defect in headrace ended this call: ")
    if case["place"] in ("bind", "encode") and case["layout"] != "produce":
        assert "row " in message
        assert f'"{column}" of type {of_type}' in message
    assert SECRET not in raised
    assert result["log"].startswith("a defect in headrace ended a call, at ")
    assert "fail.rs:" in result["log"]
    assert SECRET not in result["log"]
    assert not [outcome for outcome in result["outcomes"] if SECRET in (outcome["message"] or "")]
