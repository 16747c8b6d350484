"""The steps of a connection attempt as findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from headrace.tables import CODES, advice
from headrace_command.check.finding import Finding
from headrace_command.options import with_flags

__all__ = ["findings_of", "not_after"]

Step = tuple[float, str, bytes]
Failure = tuple[str, str]

_STAGES = {"dns": "DNS", "tcp": "TCP", "tls": "TLS", "auth": "AUTH"}
#: Codes that belong to a step regardless of the stage: TLS 1.3 refuses a client's certificate at the first reply.
_STEP_OF_CODE = {"DNS": "DNS", "TLS": "TLS", "NOAUTH": "AUTH", "WRONGPASS": "AUTH"}
#: The remaining validity of a certificate, in days, below which there is a warning.
_SOON = 30
#: Tags of ASN.1.
_INTEGER, _SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x02, 0x30, 0xA0, 0x17, 0x18


class _Peer:
    """The steps of one server."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.steps: list[Step] = []


def findings_of(
    steps: Sequence[Step], failure: Failure | None, total: float, now: datetime, *, is_verified: bool
) -> Iterator[Finding]:
    """Yield the findings for each server contacted: those asked for the server of the stream come first.

    Args:
        steps: As `Commands.connect` returns them.
        failure: Why the attempt failed, or None.
        total: How long it took, in seconds.
        now: The current time.
        is_verified: Whether certificates are verified.
    """
    peers: list[_Peer] = []
    for step in steps:
        if step[1] == "peer":
            peers.append(_Peer(step[2].decode("utf-8", "replace")))
        if peers:
            peers[-1].steps.append(step)
    for place, peer in enumerate(peers):
        is_last = place == len(peers) - 1
        end = total if is_last else peers[place + 1].steps[0][0]
        yield from _of_peer(peer, end, now, is_verified=is_verified, node=None if is_last else peer.title)
    if failure is not None:
        yield _failure(failure, peers[-1].steps if peers else [], total)


def _of_peer(peer: _Peer, end: float, now: datetime, *, is_verified: bool, node: str | None) -> Iterator[Finding]:
    steps = peer.steps
    stages = [at for at, step in enumerate(steps) if step[1] in (*_STAGES, "select", "client", "request", "connected")]
    details = {name: [detail for _, other, detail in steps if other == name] for name in {step[1] for step in steps}}
    for at, following in zip(stages, [*stages[1:], None], strict=True):
        began, name, _ = steps[at]
        if name not in _STAGES:
            continue
        seconds = (end if following is None else steps[following][0]) - began
        if following is None:
            return  # this step failed
        texts = {other: [detail.decode("utf-8", "replace") for detail in found] for other, found in details.items()}
        if name == "dns":
            addresses = [address.rpartition(":")[0] for address in texts.get("address", [])]
            yield Finding("DNS", "ok", ", ".join(addresses), seconds, node, details={"addresses": addresses})
        elif name == "tcp":
            yield _tcp(texts, seconds, node)
        elif name == "tls":
            yield _tls(texts, details.get("certificate", []), now, seconds, node, is_verified=is_verified)
        else:
            yield Finding("AUTH", "ok", "the password was accepted", seconds, node)
    names = {name for _, name, _ in steps}
    if "connected" in names and "auth" not in names:
        yield Finding("AUTH", "ok", "no password is given, and none is required", node=node)


def _tcp(texts: dict[str, list[str]], seconds: float, node: str | None) -> Finding:
    reached = texts.get("reached")
    if not reached:
        return Finding("SOCKET", "ok", texts["peer"][0], seconds, node)
    missed = texts.get("unreached", [])
    if missed:
        text = f"{reached[0]}, after {'; '.join(missed)}: each connect tries these addresses first"
        return Finding("TCP", "warn", text, seconds, node, details={"address": reached[0], "unreached": missed})
    return Finding("TCP", "ok", reached[0], seconds, node, details={"address": reached[0]})


def _tls(
    texts: dict[str, list[str]],
    certificates: list[bytes],
    now: datetime,
    seconds: float,
    node: str | None,
    *,
    is_verified: bool,
) -> Finding:
    session = texts.get("session", ["TLS"])[0]
    until = not_after(certificates[0]) if certificates else None
    if until is None:
        return Finding("TLS", "unknown", f"{session}; the end of the certificate cannot be read", seconds, node)
    days = (until - now).days
    details = {"session": session, "not_after": until.isoformat(), "days": days}
    text = f"{session}, the certificate is valid for {days:,} days, until {until:%Y-%m-%d}"
    if days < 0:
        text = f"{session}, the certificate expired on {until:%Y-%m-%d}: renew it"
    if not is_verified:
        text += "; it is not verified (tls_insecure_skip_verify)"
    state = "ok" if is_verified and days >= _SOON else "warn"
    return Finding("TLS", "ok" if state == "ok" else "warn", text, seconds, node, details=details)


def _failure(failure: Failure, steps: Sequence[Step], total: float) -> Finding:
    code, text = failure
    stages = [(began, name) for began, name, _ in steps if name in (*_STAGES, "select", "client", "request")]
    began, stage = stages[-1] if stages else (0.0, "")
    name = _STEP_OF_CODE.get(code) or _STAGES.get(stage, "SERVER")
    remedy = advice(code, text)
    if name == "TCP" and any(other == "peer" and b":" not in detail for _, other, detail in steps):
        name = "SOCKET"
    known = CODES.get(code)
    passes = known is not None and known.passes
    text = text if remedy is None else f"{text.rstrip('.')}; {with_flags(remedy)}"
    return Finding(name, "fail", text, total - began, passes=passes, code=code)


def not_after(der: bytes) -> datetime | None:
    """Return the end of a certificate's validity (RFC 5280, 4.1); None if it cannot be read.

    The standard library reads certificates only from files and from its own connections.
    """
    try:
        certificate, _ = _take(der, _SEQUENCE)
        rest, _ = _take(certificate, _SEQUENCE)
        if rest[0] == _VERSION:
            _, rest = _take(rest, _VERSION)
        for tag in (_INTEGER, _SEQUENCE, _SEQUENCE):  # serial number, signature algorithm, issuer
            _, rest = _take(rest, tag)
        validity, _ = _take(rest, _SEQUENCE)
        _, rest = _take(validity, validity[0])
        tag = rest[0]
        text = _take(rest, tag)[0].decode("ascii")
        if tag == _UTC_TIME:  # two digits of a year from 1950 to 2049
            text = ("19" if text[:2] >= "50" else "20") + text
        elif tag != _GENERALIZED_TIME:
            return None
        return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
    except (IndexError, ValueError):
        return None


def _take(data: bytes, tag: int) -> tuple[bytes, bytes]:
    """The content of the first element, and what follows it."""
    if data[0] != tag:
        raise ValueError("another element")
    length, at = data[1], 2
    if length & 0x80:
        at += length & 0x7F
        length = int.from_bytes(data[2:at], "big")
    if at + length > len(data):
        raise ValueError("cut short")
    return data[at : at + length], data[at + length :]
