"""Compare the public names and signatures of headrace with those of the last release: `make lint`.

griffe reads the source and the stub of this tree and of a commit, without importing either. Before the first release
the commit is `FIRST`. An intended change that breaks callers belongs in `ACCEPTED`, with its line in CHANGELOG.md,
until it is released.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: The commit that counts as released until a tag exists.
FIRST = "2ecc8a595b8ceafc1d3c3ae491ba3c4e9e711b99"
PACKAGES = ("headrace", "pytest_headrace")

#: Breaking changes since the last release, as griffe prints them, without the location.
ACCEPTED = frozenset(
    {
        # A start and a failover wait as long as there is progress.
        "LocalSentinel.__init__(start_timeout): Parameter default was changed: 20.0 -> 30.0",
        "LocalSentinel.fail_over(timeout): Parameter default was changed: 30.0 -> 60.0",
        "LocalServer.__init__(start_timeout): Parameter default was changed: 10.0 -> 30.0",
        "ServerProcess.shut_down(timeout): Parameter default was changed: 2.0 -> 10.0",
        # `read` warns by itself, before it takes a batch.
        "Reader.take_doubt: Public object was removed",
        # Their errors name the server and the stream; programs make neither.
        "DeliveryReport.__init__(endpoint): Parameter was added as required",
        "UnreadReports.__init__(endpoint): Parameter was added as required",
        # `inspect` makes it.
        "Inspection.__init__(leases): Parameter was added as required",
        "Inspection.__init__(members): Parameter was added as required",
        # `headrace.spark.options` is a function; no page named the module.
        "<module>: Public object was removed",
        # It asks no server.
        "LocalCluster.slot(without): Parameter was removed",
        # Spark's planner takes what a server says of a stream from the core; no page names these functions.
        "start_place(extent): Parameter was removed",
        "start_place(info): Parameter was added as required",
        "last_id(extent): Parameter was removed",
        "last_id(info): Parameter was added as required",
        "Survey.extents: Public object was removed",
        "find_news(extent): Parameter was removed",
        "find_news(info): Parameter was added as required",
        "split(extents): Parameter was removed",
        "split(infos): Parameter was added as required",
    }
)


def git(*arguments: str) -> str | None:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def breaks(package: str, against: str) -> list[str]:
    """Return what griffe finds, without the locations.

    Raises:
        RuntimeError: griffe failed.
    """
    command = [sys.executable, "-m", "griffe", "check", package, "--search", "python", "--against", against]
    command += ["--no-inspection", "--no-color", "--format", "oneline"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = [re.sub(r"^\S+?:\d+: ", "", line) for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    if done.returncode not in (0, 1) or (done.returncode == 1) != bool(found):
        raise RuntimeError(f"griffe failed: {done.stdout}{done.stderr}")
    return found


def main() -> str | None:
    against = git("describe", "--tags", "--abbrev=0") or FIRST
    if git("cat-file", "-e", f"{against}^{{commit}}") is None:
        text = f"the API is compared with {against}, which this clone does not have: git fetch --unshallow --tags"
        if git("rev-parse", "--is-shallow-repository") != "true":
            return text
        print(f"not checked: {text}", file=sys.stderr)
        return None
    released = [name for name in PACKAGES if git("ls-tree", against, f"python/{name}")]
    found = [line for package in released for line in breaks(package, against)]
    lines = [f"breaks callers: {line}" for line in found if line not in ACCEPTED]
    lines += [f"in ACCEPTED, but not found: {line}" for line in sorted(ACCEPTED - set(found))]
    return "\n".join([f"The API beside {against}:", *lines]) if lines else None


if __name__ == "__main__":
    sys.exit(main())
