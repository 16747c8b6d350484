"""Helpers for tests of endpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trustme

from headrace import ConfigError, Endpoint

#: A secret that no test expects to see anywhere.
CANARY = "canary-hunter2"


class Pem:
    """PEM files of a CA and of a client."""

    def __init__(self, folder: Path, name: str) -> None:
        ca = trustme.CA()
        client = ca.issue_cert("client@example.com")
        self.ca, self.cert, self.key = (folder / f"{name}-{kind}.pem" for kind in ("ca", "cert", "key"))
        ca.cert_pem.write_to_path(self.ca)
        self.cert.write_bytes(b"".join(blob.bytes() for blob in client.cert_chain_pems))
        self.key.touch(mode=0o600)  # headrace warns of a file that others may read
        self.key.write_bytes(client.private_key_pem.bytes())


def build(**options: Any) -> Endpoint:
    return Endpoint(**{"host": "h", "stream_key": "s", **options})


def refused(**options: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        build(**options)
    return caught.value
