"""What to do about a connection that failed."""

from __future__ import annotations

__all__ = ["advice"]

_BY_CODE = {
    "DNS": "check the name, and the DNS of this machine",
    "CONNECT": "check that the server runs and listens there",
    "PROTOCOL": "with --tls give the TLS port of the server, or leave --tls out",
    "NOAUTH": "give the password with --password-env or --password-file",
    "WRONGPASS": "check --username and the password, and that the user is on",
    "NOPERM": "give the user this right",
    "DENIED": "set a password on the server, or bind it to this address",
    "NO_MASTER": "check --sentinel-master and the sentinels",
    "LOADING": "wait until the server has read its data",
}
#: By words in the library's own messages, where a code has several causes.
_OF_TLS = {
    "unknown CA": "give the CA of the server with --tls-ca-cert",
    "expired at": "renew the certificate of the server, or set the clock of this machine",
    "is not valid before": "set the clock of this machine, or of the one that issued it",
    "is not for": "connect by a name that it holds, or give that with --tls-server-name",
    "client certificate": "give --tls-cert and --tls-key with a certificate that the server trusts",
}
_OF_STAGE = {
    ("TIMEOUT", "dns"): "check the name servers of this machine",
    ("TIMEOUT", "tcp"): "check the address, and for a firewall that drops packets",
    ("TIMEOUT", "tls"): "give the TLS port of the server, or leave --tls out",
}


def advice(code: str, text: str, stage: str, *, has_tls: bool) -> str | None:
    """Return what to do about a failure with this code and text at this stage."""
    if code == "TLS":
        return next((what for words, what in _OF_TLS.items() if words in text), None)
    if code in ("EOF", "RESET") and not has_tls:
        return "give --tls if the server speaks TLS on this port"
    if code == "ERR" and "called without any password" in text:
        return "leave the password out, or give the user with --username"
    return _OF_STAGE.get((code, stage), _BY_CODE.get(code))
