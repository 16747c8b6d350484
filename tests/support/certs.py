"""Certificates for real TLS, valid and invalid ones, made once per session."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier


@dataclass(frozen=True)
class KeyPair:
    """The PEM files of a certificate (with its chain) and of its private key."""

    cert: Path
    key: Path


@dataclass(frozen=True)
class Certs:
    """PEM files; unless stated otherwise, the server's certificates are for `localhost` and `127.0.0.1`."""

    ca: Path
    """The CA of all other certificates unless stated otherwise."""
    other_ca: Path
    """A CA that signed nothing that the server has."""
    server: KeyPair
    expired: KeyPair
    """As `server`, but it was valid until yesterday."""
    not_yet_valid: KeyPair
    """As `server`, but it is valid from tomorrow on."""
    wrong_name: KeyPair
    """As `server`, but for `elsewhere.test`."""
    wrong_ip: KeyPair
    """As `server`, but for the address 127.0.0.2."""
    wildcard: KeyPair
    """As `server`, but for `*.headrace.test`."""
    name_only: KeyPair
    """As `server`, but without the address."""
    ip_only: KeyPair
    """As `server`, but without the name."""
    ip_as_name: KeyPair
    """As `server`, but it contains its address as the text of a DNS name."""
    common_name: KeyPair
    """As `server`, but its names are only in the subject, as before RFC 6125."""
    self_signed: KeyPair
    """As `server`, but not signed by a CA."""
    ca_itself: KeyPair
    """As `server`, but it is the self-signed certificate of a CA."""
    no_intermediate: KeyPair
    """As `server`, but signed by an intermediate CA of `ca`, whose certificate is missing from the chain."""
    for_clients: KeyPair
    """As `server`, but its extended key usage is that of clients."""
    client: KeyPair
    other_client: KeyPair
    """A client certificate signed by `other_ca`."""
    expired_client: KeyPair
    self_signed_client: KeyPair
    for_servers: KeyPair
    """As `client`, but its extended key usage is that of servers."""


def make_certs(folder: Path) -> Certs:
    """Write the PEM files into a folder."""
    ca, other_ca = trustme.CA(), trustme.CA()
    now = datetime.now(UTC)
    past: Any = {"not_before": now - timedelta(days=30), "not_after": now - timedelta(days=1)}
    future: Any = {"not_before": now + timedelta(days=1), "not_after": now + timedelta(days=30)}
    names, who = ("localhost", "127.0.0.1"), "client@headrace.test"
    both = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    clients, servers = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH
    return Certs(
        ca=_write_ca(ca, folder / "ca.pem"),
        other_ca=_write_ca(other_ca, folder / "other-ca.pem"),
        server=_write(ca.issue_cert(*names), folder / "server"),
        expired=_write(ca.issue_cert(*names, **past), folder / "expired"),
        not_yet_valid=_write(ca.issue_cert(*names, **future), folder / "not-yet-valid"),
        wrong_name=_write(ca.issue_cert("elsewhere.test"), folder / "wrong-name"),
        wrong_ip=_write(ca.issue_cert("127.0.0.2"), folder / "wrong-ip"),
        wildcard=_write(ca.issue_cert("*.headrace.test"), folder / "wildcard"),
        name_only=_write(ca.issue_cert("localhost"), folder / "name-only"),
        ip_only=_write(ca.issue_cert("127.0.0.1"), folder / "ip-only"),
        ip_as_name=_make(folder / "ip-as-name", [x509.DNSName("127.0.0.1")], ca),
        common_name=_make(folder / "common-name", [], ca),
        self_signed=_make(folder / "self-signed", both),
        ca_itself=_make(folder / "ca-itself", both, is_ca=True),
        no_intermediate=_write(ca.create_child_ca().issue_cert(*names), folder / "no-intermediate", chain=1),
        for_clients=_make(folder / "for-clients", both, ca, usage=clients),
        client=_write(ca.issue_cert(who), folder / "client"),
        other_client=_write(other_ca.issue_cert(who), folder / "other-client"),
        expired_client=_write(ca.issue_cert(who, **past), folder / "expired-client"),
        self_signed_client=_make(folder / "self-signed-client", [x509.RFC822Name(who)]),
        for_servers=_make(folder / "for-servers", [x509.RFC822Name(who)], ca, usage=servers),
    )


def _write_ca(ca: trustme.CA, path: Path) -> Path:
    ca.cert_pem.write_to_path(path)
    return path


def _write(leaf: trustme.LeafCert, stem: Path, *, chain: int | None = None) -> KeyPair:
    certificates = b"".join(blob.bytes() for blob in leaf.cert_chain_pems[:chain])
    return _files(stem, certificates, leaf.private_key_pem.bytes())


def _make(
    stem: Path,
    names: Iterable[x509.GeneralName],
    ca: trustme.CA | None = None,
    *,
    usage: ObjectIdentifier | None = None,
    is_ca: bool = False,
) -> KeyPair:
    """A certificate that trustme cannot make, for the common name `localhost`; self-signed without a CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    # With an organisation, so that no root certificate of the system has this name.
    name = ((NameOID.ORGANIZATION_NAME, "headrace's tests"), (NameOID.COMMON_NAME, "localhost"))
    subject = x509.Name([x509.NameAttribute(kind, text) for kind, text in name])
    now = datetime.now(UTC)
    signer = key if ca is None else serialization.load_pem_private_key(ca.private_key_pem.bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if ca is None else x509.load_pem_x509_certificate(ca.cert_pem.bytes()).subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=30))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
    )
    if names := list(names):
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    if usage:
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    certificate = builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    encoding = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return _files(stem, certificate, key.private_bytes(*encoding))


def _files(stem: Path, certificates: bytes, key: bytes) -> KeyPair:
    pair = KeyPair(stem.with_suffix(".pem"), stem.with_suffix(".key"))
    pair.cert.write_bytes(certificates)
    pair.key.touch(mode=0o600)  # headrace warns of a file that others may read
    pair.key.write_bytes(key)
    return pair
