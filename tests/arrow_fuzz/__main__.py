"""Random structures of the Arrow C data interface. Exits with 1 if one of them caused a panic or a missing outcome."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tqdm import tqdm

from .campaign import Results, run

#: Findings that are printed; all are counted.
PRINTED = 20


def main() -> int:
    arguments = _parser().parse_args()
    started = time.monotonic()
    with tqdm(total=arguments.executions, unit=" executions", unit_scale=True, dynamic_ncols=True, disable=None) as bar:
        printed = 0

        def tell(results: Results) -> None:
            nonlocal printed
            bar.update(results.executions - bar.n)
            for finding in results.findings[printed:PRINTED]:
                tqdm.write(
                    f"{finding.number}: {finding.what}\n  {finding.execution}\n  {finding.details}", file=sys.stderr
                )
                tqdm.write(f"  alone: {_again(arguments, finding.number)}", file=sys.stderr)
            printed = len(results.findings)

        results = run(arguments.seed, arguments.first, arguments.executions, arguments.keep_going, tell)
        tell(results)
    for name, count in sorted(results.counts.items()):
        print(f"{count:>12,}  {name}")
    found = Counter(finding.what for finding in results.findings)
    for name, count in found.most_common():
        print(f"{count:>12,}  WRONG: {name}")
    seconds = time.monotonic() - started
    print(f"{results.executions:,} executions in {seconds:,.0f} s, {len(results.findings)} findings")
    return 1 if results.findings or results.executions < arguments.executions else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m arrow_fuzz", description=__doc__)
    parser.add_argument("--executions", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first execution")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first finding; count them")
    return parser


def _again(arguments: argparse.Namespace, number: int) -> str:
    return f"make fuzz TARGET=arrow SEED={arguments.seed} FIRST={number} EXECUTIONS=1"


if __name__ == "__main__":
    sys.exit(main())
