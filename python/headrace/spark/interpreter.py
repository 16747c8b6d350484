"""Checks, before a job runs, the Python program that Spark starts for its workers."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace._headrace import __version__
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from pyspark import SparkContext

__all__ = ["check"]

#: Seconds to wait for the answer. No answer is not an error.
TIMEOUT = 10

#: Settings that replace Spark's workers with other code, which may find headrace in another way.
OWN_WORKERS = ("spark.python.daemon.module", "spark.python.worker.module")

#: The script for the program, valid in any Python 3. The last line that it prints is the answer, as JSON.
QUESTION = """
import json, sys
answer = {"python": "%d.%d" % sys.version_info[:2]}
try:
    import importlib.util
    import headrace
    answer["headrace"] = headrace.__version__
    if importlib.util.find_spec("pyarrow") is None:
        raise ImportError("No module named 'pyarrow'")
except Exception as error:
    answer["error"] = str(error)
print()
print(json.dumps(answer))
"""


def check(*, planner: bool = False) -> None:
    """Raise if Spark's workers run a Python program that cannot run headrace.

    The program runs once, and only if it is not that of this process; no Spark job runs. The executors of a cluster and
    the server of Spark Connect may be other machines, so they are not checked.

    Args:
        planner: Whether the caller needs the worker that plans a data source. On a cluster, too, it runs beside the
            driver, and it may have another version of headrace, since only options come from the driver.

    Raises:
        ConfigError: The program has no headrace or no pyarrow, or a different version of headrace or Python.
    """
    context = _context()
    if context is None or not (planner or _is_local(str(context.master))):
        return
    jvm: Any = context._jvm
    # Spark starts the program with the JVM's environment, a copy of that of the driver's Python.
    environment = getattr(jvm, "java.lang.System")
    program = shutil.which(context.pythonExec, path=environment.getenv("PATH"))
    # A program that is not found may be in an archive that Spark unpacks later.
    if program is None or _is_own(program) or any(map(context._conf.contains, OWN_WORKERS)):
        return
    root = getattr(jvm, "org.apache.spark.SparkFiles").getRootDirectory()
    folders = (
        context.environment.get("PYTHONPATH"),
        environment.getenv("PYTHONPATH"),
        root,
        *(f"{root}/{name}" for name in context._python_includes or ()),  # addPyFile, --py-files
    )
    variables = {**context.environment, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
    version = _version(program, tuple(sorted(variables.items())))
    if version not in (None, __version__) and not planner:
        raise _error(program, f"has headrace {version}, and the driver's has {__version__}")


def _context() -> SparkContext | None:
    """The context of this process; None for Spark Connect, whose workers belong to the server."""
    from pyspark.sql import is_remote

    if is_remote():
        return None
    from pyspark import SparkContext

    context: SparkContext | None = SparkContext._active_spark_context
    return context


def _is_local(master: str) -> bool:
    """Whether tasks run in the driver's own process, and their Python beside it."""
    return master == "local" or master.startswith("local[")


def _is_own(program: str) -> bool:
    """Whether the program is that of this process, under any name in the same folder.

    Links to other folders are not followed, because a virtual environment consists of such links.
    """
    if not sys.executable:
        return False
    one, other = Path(program).absolute(), Path(sys.executable).absolute()
    return one.parent == other.parent and one.resolve() == other.resolve()


@functools.cache
def _version(program: str, variables: tuple[tuple[str, str], ...]) -> str | None:
    """Ask the program for its version of headrace; None without an answer.

    Versions are cached, errors are not: headrace may be installed in the meantime.

    Raises:
        ConfigError: It cannot import headrace or pyarrow, or has another version of Python.
    """
    command, environment = [program, "-c", QUESTION], {**os.environ, **dict(variables)}
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT, check=False
        )
        answer = json.loads(done.stdout.splitlines()[-1])
        python, version, error = answer["python"], answer.get("headrace"), answer.get("error")
    except (OSError, subprocess.TimeoutExpired, ValueError, LookupError, TypeError):
        return None
    this_python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if python != this_python:
        raise _error(program, f"is Python {python}, and the driver's is {this_python}")
    if error is not None:
        raise _error(program, f"cannot run headrace: {error}")
    return version if isinstance(version, str) else None


def _error(program: str, trouble: str) -> ConfigError:
    text = f"the Python of Spark's workers, {program!r}, {trouble}; before Spark starts, set PYSPARK_PYTHON="
    return ConfigError(text + (sys.executable or "the driver's Python"), option="PYSPARK_PYTHON")
