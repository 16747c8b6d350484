"""Certificates for real TLS, good and bad ones, made once for a session."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme


@dataclass(frozen=True)
class KeyPair:
    """The PEM files of a certificate (with its chain) and of its private key."""

    cert: Path
    key: Path


@dataclass(frozen=True)
class Certs:
    """PEM files; the server's certificates are for `localhost` and `127.0.0.1`, but for `wrong_name`."""

    ca: Path
    """The CA of all the others, but for those that say otherwise."""
    other_ca: Path
    """A CA that signed nothing that the server has."""
    server: KeyPair
    expired: KeyPair
    """As `server`, but it was valid until yesterday."""
    wrong_name: KeyPair
    """As `server`, but for `elsewhere.test`."""
    client: KeyPair
    other_client: KeyPair
    """A client certificate of `other_ca`."""


def make_certs(folder: Path) -> Certs:
    """Write them into a folder."""
    ca, other_ca = trustme.CA(), trustme.CA()
    now = datetime.now(UTC)
    long_ago, yesterday = now - timedelta(days=30), now - timedelta(days=1)
    names = ("localhost", "127.0.0.1")
    return Certs(
        ca=_write_ca(ca, folder / "ca.pem"),
        other_ca=_write_ca(other_ca, folder / "other-ca.pem"),
        server=_write(ca.issue_cert(*names), folder / "server"),
        expired=_write(ca.issue_cert(*names, not_before=long_ago, not_after=yesterday), folder / "expired"),
        wrong_name=_write(ca.issue_cert("elsewhere.test"), folder / "wrong-name"),
        client=_write(ca.issue_cert("client@headrace.test"), folder / "client"),
        other_client=_write(other_ca.issue_cert("client@headrace.test"), folder / "other-client"),
    )


def _write_ca(ca: trustme.CA, path: Path) -> Path:
    ca.cert_pem.write_to_path(path)
    return path


def _write(leaf: trustme.LeafCert, stem: Path) -> KeyPair:
    pair = KeyPair(stem.with_suffix(".pem"), stem.with_suffix(".key"))
    for position, blob in enumerate(leaf.cert_chain_pems):
        blob.write_to_path(pair.cert, append=position > 0)
    leaf.private_key_pem.write_to_path(pair.key)
    pair.key.chmod(0o600)
    return pair
