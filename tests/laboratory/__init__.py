"""The command of all laboratories: `python -m laboratory NAME`.

A laboratory is a function with the decorator `laboratory`, in a file `tests/*/laboratory.py`. It has the name and the
docstring of the function, does its work with a `Run`, and returns what it did in a few words. Everything else is the
same for all: see `__main__`.
"""

from laboratory.options import FIRST, JOBS, KEEP, ONE_SERVER, PAIRS, RECORD, RESULTS, SEED, SERVERS, Option, list_of
from laboratory.run import LABORATORIES, REPEAT, Run, Work, laboratory

__all__ = [
    "FIRST", "JOBS", "KEEP", "LABORATORIES", "ONE_SERVER", "PAIRS", "RECORD", "REPEAT", "RESULTS", "SEED", "SERVERS",
    "Option", "Run", "Work", "laboratory", "list_of",
]  # fmt: skip
