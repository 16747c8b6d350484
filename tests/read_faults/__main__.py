"""The fault tests of reading: real servers behind a fault proxy. Exits with 1 if headrace reads or reports incorrectly.

python -m read_faults campaign --faults 900 --seed 1   random faults, and tables of the results
python -m read_faults sweep                            sessions that are cut after every byte, on each server
python -m read_faults replay SEED/SERVER/CLIENT/…      one episode of a campaign; a failure prints this command
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tqdm import tqdm

from faults.campaign import Share, ShareResult, program_of, run, run_share
from faults.command import chosen_of, list_of, run_command
from faults.tables import markdown, record
from faults.testbed import FaultTestbed
from support.servers import find_programs

from .read_campaign import READING, is_ours, pairs
from .read_sweep import SWEPT, read_sweep
from .read_tables import kinds_table, pairs_table, steps_table, violations_table


def main() -> int:
    return run_command(_parser().parse_args())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m read_faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    campaign = commands.add_parser("campaign")
    campaign.set_defaults(command=_campaign)
    campaign.add_argument("--faults", type=int, default=900, help="faults for headrace, over all pairs")
    campaign.add_argument("--seed", type=int, default=1)
    campaign.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    campaign.add_argument("--pairs", type=list_of, help="such as redis-8.6/reader,valkey-9.1/redis-py; default: all")
    campaign.add_argument("--seconds", type=float, default=math.inf, help="no further share begins after that")
    swept = commands.add_parser("sweep")
    swept.set_defaults(command=_sweep)
    swept.add_argument("--step", type=int, default=1, help="bytes between cuts")
    swept.add_argument("--pairs", type=list_of, help="such as redis-8.6/reader; default: all")
    for command in (campaign, swept):
        command.add_argument("--record", type=Path, help="the document whose tables are replaced")
    replay = commands.add_parser("replay")
    replay.set_defaults(command=_replay)
    replay.add_argument("episode")
    return parser


def _campaign(arguments: argparse.Namespace) -> int:
    chosen = chosen_of(pairs(), arguments.pairs)
    # Each other client gets as many faults per server as one of headrace.
    ours = sum(is_ours(client) for _, client in chosen) or len(chosen)
    total = -(-arguments.faults // ours) * len(chosen)
    with tqdm(total=total, unit="fault", dynamic_ncols=True, disable=None) as bar:

        def on_result(share_result: ShareResult) -> None:
            bar.update(share_result.result.faults.total())
            if is_ours(share_result.share.mode):
                for text, replay_id in share_result.failures:
                    tqdm.write(
                        f"{text}\n  repeat with: PYTHONPATH=tests python -m read_faults replay {replay_id}",
                        file=sys.stderr,
                    )

        done = run(chosen, total, arguments.seed, arguments.jobs, on_result, READING, arguments.seconds)
    tables = pairs_table(done), violations_table(done), kinds_table(done), steps_table(done)
    print(*tables, sep="\n\n")
    wrong = [failure for each in done if is_ours(each.share.mode) for failure in each.failures]
    if arguments.record:
        command = f"make campaign-read FAULTS={arguments.faults} SEED={arguments.seed}"
        record(arguments.record, "campaign-read", command, *tables)
    print(f"\n{len(wrong)} violations by headrace")
    return 1 if wrong else 0


def _sweep(arguments: argparse.Namespace) -> int:
    rows, wrong, cuts = [], 0, 0
    chosen = [(program.label, client) for program in find_programs() for client in SWEPT]
    for label, client in tqdm(chosen_of(chosen, arguments.pairs), unit="pair", disable=None):
        started = time.monotonic()
        with FaultTestbed(program_of(label), durable=False) as testbed:
            swept = read_sweep(testbed, client, arguments.step)
        for where, violation in swept.violations:
            tqdm.write(f"{label}/{client}, cut in {where}: {violation}", file=sys.stderr)
        cuts += swept.cuts
        wrong += len(swept.violations)
        numbers = [*swept.bytes.values(), swept.cuts, swept.connections, len(swept.violations)]
        numbers.append(round(time.monotonic() - started))
        rows.append((label, client, *(f"{number:,}" for number in numbers)))
    heads = ("server", "client", "bytes out", "bytes in", "cuts", "connections", "wrong", "seconds")
    table, sentence = markdown(heads, rows, left=2), f"{cuts:,} cuts, {wrong} violations"
    print(table, sentence, sep="\n\n")
    if arguments.record:
        record(arguments.record, "sweep-read", "make sweep-read", table, sentence + ".")
    return 1 if wrong else 0


def _replay(arguments: argparse.Namespace) -> int:
    seed, server, client, number, faults, episode = arguments.episode.split("/")
    share = Share(int(seed), server, client, int(number), int(faults), READING)
    # In a separate process, which ends before the temporary folder that its helpers use is removed.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        done = pool.submit(run_share, share, int(episode)).result()
    print(*(text for text, _ in done.failures), done.result, sep="\n")
    return 1 if done.failures else 0


if __name__ == "__main__":
    sys.exit(main())
