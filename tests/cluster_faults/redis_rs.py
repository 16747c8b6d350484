"""redis-rs' pipeline for clusters, in the place of a dispatcher: the program `cluster_rows` of rust/headrace-bench."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa

from headrace.testing import LocalCluster

from .contender import Failed, Report

ROOT = Path(__file__).resolve().parents[2]

#: Where `make bench-programs` puts it.
PROGRAM = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target") / "release" / "cluster_rows"


class RedisRs:
    """What `Load` needs of a dispatcher. The options of the client are its defaults."""

    def __init__(self, cluster: LocalCluster, key: str) -> None:
        self._process = subprocess.Popen(
            [str(PROGRAM), *cluster.nodes], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._key = key
        self._rows: list[str] = []
        if self._read() != "ready":
            raise RuntimeError("cluster_rows ended before it was ready")

    def produce_batch(self, table: pa.Table, *, payload: str, stream_key: str | None = None) -> None:
        payloads = table[payload].to_pylist()
        keys = table[stream_key].to_pylist() if stream_key else [self._key] * len(payloads)
        self._rows += [f"{key} {payload.decode()}\n" for key, payload in zip(keys, payloads, strict=True)]

    def flush(self) -> Report:
        rows, self._rows = self._rows, []
        assert self._process.stdin is not None
        self._process.stdin.write("".join([*rows, "\n"]))
        self._process.stdin.flush()
        said = [self._read() for _ in rows]
        failed = [Failed(row, code) for row, code in enumerate(said) if code != "ok"]
        return Report(len(rows) - len(failed), failed)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate(timeout=60)

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")
