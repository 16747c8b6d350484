"""The fault tests: real servers behind a fault proxy. Exits with 1 if headrace reports a wrong outcome.

python -m faults campaign --faults 900 --seed 1   random faults, and tables of the results
python -m faults campaign --client async          the same with AsyncDispatcher, with tasks that are cancelled
python -m faults sweep                            a pipeline that is cut after every byte, on each server
python -m faults replay SEED/SERVER/MODE/…        one episode of a campaign; a failure prints this command
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from tqdm import tqdm

from .campaign import Share, ShareResult, async_pairs, pairs, program_of, redis_py_pairs, run, run_share
from .command import chosen_of, list_of, run_command
from .episode import REDIS_PY
from .sweep import sweep
from .tables import calls_table, kinds_table, markdown, pairs_table, record, violations_table
from .testbed import FaultTestbed


def main() -> int:
    return run_command(_parser().parse_args())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    campaign = commands.add_parser("campaign")
    campaign.set_defaults(command=_campaign)
    campaign.add_argument("--faults", type=int, default=900, help="faults for headrace, over all pairs")
    campaign.add_argument("--seed", type=int, default=1)
    campaign.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    campaign.add_argument("--client", choices=["dispatcher", "async"], default="dispatcher", help="default: dispatcher")
    campaign.add_argument(
        "--pairs",
        type=list_of,
        help="such as redis-8.6/idmp,valkey-9.1/redis-py; of async redis-8.6/async-idmp; default: all",
    )
    swept = commands.add_parser("sweep")
    swept.set_defaults(command=_sweep)
    swept.add_argument("--step", type=int, default=1, help="bytes between cuts")
    swept.add_argument("--pairs", type=list_of, help="default: all")
    for command in (campaign, swept):
        command.add_argument("--record", type=Path, help="the document whose tables are replaced")
    replay = commands.add_parser("replay")
    replay.set_defaults(command=_replay)
    replay.add_argument("episode")
    return parser


def _campaign(arguments: argparse.Namespace) -> int:
    is_async = arguments.client == "async"
    chosen = chosen_of(async_pairs() if is_async else [*pairs(), *redis_py_pairs()], arguments.pairs)
    # redis-py gets as many faults per server as one mode of headrace.
    ours = sum(mode != REDIS_PY for _, mode in chosen) or len(chosen)
    total = -(-arguments.faults // ours) * len(chosen)
    with tqdm(total=total, unit="fault", dynamic_ncols=True, disable=None) as bar:

        def on_result(share_result: ShareResult) -> None:
            bar.update(share_result.result.faults.total())
            if share_result.share.mode != REDIS_PY:
                for text, replay_id in share_result.failures:
                    tqdm.write(
                        f"{text}\n  repeat with: PYTHONPATH=tests python -m faults replay {replay_id}", file=sys.stderr
                    )

        done = run(chosen, total, arguments.seed, arguments.jobs, on_result)
    tables = [pairs_table(done), violations_table(done), kinds_table(done)]
    # The document takes the faults from the campaign above it.
    recorded = [pairs_table(done), calls_table(done)] if is_async else tables
    tables += [calls_table(done)] if is_async else []
    print(*tables, sep="\n\n")
    wrong = [failure for each in done if each.share.mode != REDIS_PY for failure in each.failures]
    if arguments.record:
        command = f"make campaign FAULTS={arguments.faults} SEED={arguments.seed}"
        command += ' ARGUMENTS="--client async"' if is_async else ""
        record(arguments.record, "campaign-async" if is_async else "campaign", command, *recorded)
    print(f"\n{len(wrong)} violations by headrace")
    return 1 if wrong else 0


def _sweep(arguments: argparse.Namespace) -> int:
    rows, wrong, cuts = [], 0, 0
    for label, mode in tqdm(chosen_of(pairs(), arguments.pairs), unit="pair", disable=None):
        started = time.monotonic()
        with FaultTestbed(program_of(label), durable=False) as testbed:
            swept = sweep(testbed, mode, arguments.step)
        for where, violation in swept.violations:
            tqdm.write(f"{label}/{mode}, cut in {where}: {violation}", file=sys.stderr)
        cuts += swept.cuts
        wrong += len(swept.violations)
        numbers = [
            *swept.bytes.values(),
            swept.cuts,
            *(swept.reported.get(what, 0) for what in ("delivered", "no", "unknown")),
        ]
        numbers += [len(swept.violations), round(time.monotonic() - started)]
        rows.append((label, mode, *(f"{number:,}" for number in numbers)))
    heads = (
        "server",
        "mode",
        "bytes out",
        "bytes in",
        "cuts",
        "delivered",
        "not written",
        "unknown",
        "wrong",
        "seconds",
    )
    table, sentence = markdown(heads, rows, left=2), f"{cuts:,} cuts, {wrong} violations"
    print(table, sentence, sep="\n\n")
    if arguments.record:
        record(arguments.record, "sweep", "make sweep", table, sentence + ".")
    return 1 if wrong else 0


def _replay(arguments: argparse.Namespace) -> int:
    seed, server, mode, number, faults, episode = arguments.episode.split("/")
    done = run_share(Share(int(seed), server, mode, int(number), int(faults)), int(episode))
    print(*(text for text, _ in done.failures), done.result, sep="\n")
    return 1 if done.failures else 0


if __name__ == "__main__":
    sys.exit(main())
