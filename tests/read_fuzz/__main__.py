"""Random tables, written in each layout and read back. Exits with 1 if one of them came back as another one."""

from __future__ import annotations

import argparse
import sys
import time

from tqdm import tqdm

from headrace.testing import LocalServer
from support.servers import find_programs

from .campaign import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m read_fuzz", description=__doc__)
    parser.add_argument("--executions", type=int, default=20_000, help="tables")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first table")
    arguments = parser.parse_args()
    started = time.monotonic()
    with (
        LocalServer(max(find_programs()).path) as server,
        tqdm(total=arguments.executions, unit=" tables", dynamic_ncols=True, disable=None) as bar,
    ):
        counts, finding = run(
            server, arguments.seed, arguments.first, arguments.executions, lambda done: bar.update(done - bar.n)
        )
    for name, count in sorted(counts.items()):
        print(f"{count:>12,}  {name}")
    if finding:
        number, what = finding
        print(f"{number}: {what}", file=sys.stderr)
        print(f"  alone: make fuzz TARGET=read SEED={arguments.seed} FIRST={number} EXECUTIONS=1", file=sys.stderr)
        return 1
    print(f"{arguments.executions:,} tables in {time.monotonic() - started:,.0f} s came back as they were")
    return 0


if __name__ == "__main__":
    sys.exit(main())
