"""Certificates of servers for tests."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import trustme

__all__ = ["Certificates", "make_certificates"]


class Certificates(NamedTuple):
    """PEM files of a CA and of a server for 127.0.0.1 and localhost."""

    ca: Path
    server_cert: Path
    server_key: Path


def make_certificates(folder: Path) -> Certificates:
    """Make certificates that are valid from now on, and write them into a folder."""
    ca = trustme.CA()
    server = ca.issue_cert("127.0.0.1", "localhost")
    files = Certificates(folder / "ca.pem", folder / "server.pem", folder / "server.key")
    ca.cert_pem.write_to_path(files.ca)
    for blob in server.cert_chain_pems:
        blob.write_to_path(files.server_cert, append=True)
    files.server_key.touch(mode=0o600)
    server.private_key_pem.write_to_path(files.server_key)
    return files
