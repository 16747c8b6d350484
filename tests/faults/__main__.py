"""A campaign of faults: as many as asked for, with a table at the end. Exits with 1 if headrace said an untruth."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tqdm import tqdm

from .campaign import Played, Share, pairs, play_share, redis_py_pairs, run
from .episode import REDIS_PY
from .tables import kinds_table, pairs_table, record


def main() -> int:
    arguments = _parser().parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the servers are ended
    folder = tempfile.mkdtemp(prefix="hr-faults-")
    os.environ["TMPDIR"] = tempfile.tempdir = folder  # the servers' folders go with it
    try:
        return _again(arguments.again) if arguments.again else _campaign(arguments)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__)
    parser.add_argument("--faults", type=int, default=900, help="of headrace, all pairs together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--pairs", type=_list, help="such as redis-8.6/idmp,valkey-9.1/redis-py; default: all")
    parser.add_argument("--record", type=Path, help="a document whose tables are replaced")
    parser.add_argument("--again", help="play one episode: what a failure printed")
    return parser


def _list(text: str) -> list[str]:
    return text.split(",")


def _campaign(arguments: argparse.Namespace) -> int:
    every = [*pairs(), *redis_py_pairs()]
    chosen = [pair for pair in every if arguments.pairs is None or "/".join(pair) in arguments.pairs]
    if arguments.pairs and len(chosen) < len(arguments.pairs):
        sys.exit(f"pairs of this machine: {', '.join('/'.join(pair) for pair in every)}")
    # redis-py gets as many a server as headrace in one mode.
    ours = sum(mode != REDIS_PY for _, mode in chosen) or len(chosen)
    total = -(-arguments.faults // ours) * len(chosen)
    with tqdm(total=total, unit="fault", dynamic_ncols=True, disable=None) as bar:

        def tell(played: Played) -> None:
            bar.update(played.result.faults.total())
            if played.share.mode != REDIS_PY:
                for text, again in played.failures:
                    tqdm.write(f"{text}\n  again: PYTHONPATH=tests python -m faults {again}", file=sys.stderr)

        done = run(chosen, total, arguments.seed, arguments.jobs, tell)
    print(pairs_table(done), kinds_table(done), sep="\n\n")
    wrong = [again for played in done if played.share.mode != REDIS_PY for _, again in played.failures]
    if arguments.record:
        record(arguments.record, done, arguments.faults, arguments.seed)
    print(f"\n{len(wrong)} violations by headrace")
    return 1 if wrong else 0


def _again(text: str) -> int:
    seed, server, mode, number, faults, episode = text.split("/")
    played = play_share(Share(int(seed), server, mode, int(number), int(faults)), int(episode))
    print(*(text for text, _ in played.failures), played.result, sep="\n")
    return 1 if played.failures else 0


if __name__ == "__main__":
    sys.exit(main())
