"""The tables of options and codes: what is made of them agrees with them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from headrace.tables import AWAY_CODES, CODES, CONNECTION_CODES, OWN_CODES

ROOT = Path(__file__).resolve().parents[1]


def test_the_tables_of_the_documentation_are_those_of_the_code() -> None:
    command = [sys.executable, str(ROOT / "tools" / "write_tables.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_groups_of_codes() -> None:
    assert len(OWN_CODES) == 25
    assert {"OOM", "WRONGTYPE"} <= CODES.keys() - set(OWN_CODES)
    assert {"CONNECT", "DNS", "TIMEOUT", "RESET", "EOF"} == AWAY_CODES
    assert {"TLS", "PROTOCOL"} == CONNECTION_CODES - AWAY_CODES
    assert CODES["OOM"].kinds == {"default": "permanent", "failover": "retryable", "strict": "permanent"}
