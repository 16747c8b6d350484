"""Insecure settings that cause warnings: TLS without checks, secrets in files that others may read."""

from __future__ import annotations

import json
import os
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace import ConfigError, Dispatcher, Endpoint, InsecureWarning
from headrace.spark.settings import read
from headrace.testing import LocalServer
from support.endpoints import CANARY, Pem, build, refused
from support.tls import REFUSED, Start, Tampering, to, without_mark, without_tls_13

#: redis-py types its replies too loosely to be useful here.
Connect = Callable[..., Any]

SKIPPED = r"^tls_insecure_skip_verify: neither the certificate of \S+ nor its name is checked; any host that answers"
#: Certificates that are refused by default: see test_tls_refusals.py.
UNTRUSTED = ("wrong_name", "expired", "not_yet_valid", "common_name", "self_signed", "ca_itself", "for_clients")


def unchecked(server: LocalServer, **options: Any) -> Endpoint:
    with pytest.warns(InsecureWarning, match=SKIPPED):
        return to(server, tls_insecure_skip_verify=True, **options)


def outcome(endpoint: Endpoint) -> tuple[str, str, str] | str:
    """The failure of a message, or what the server stored."""
    with Dispatcher(endpoint) as dispatcher:
        dispatcher.produce(b"x")
        report = dispatcher.flush()
        return next(((one.kind, one.code, one.written) for one in report.failed), f"{report.delivered} delivered")


def reported(call: Callable[..., object], *arguments: Any, **options: Any) -> list[str]:
    """The warnings during the block."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call(*arguments, **options)
    assert {one.category for one in caught} <= {InsecureWarning}
    return [str(one.message) for one in caught]


# --- tls_insecure_skip_verify: what it does


@pytest.mark.needs("tls")
@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_any_certificate_is_accepted(start: Start, connect: Connect, version: str) -> None:
    for name in UNTRUSTED:
        server = start(getattr(start.certs, name), version=version)
        assert outcome(unchecked(server)) == "1 delivered", name
        assert outcome(to(server)) == REFUSED, name
        assert connect(server).xlen("s") == 1


@pytest.mark.needs("tls")
def test_a_client_certificate_is_still_sent(start: Start) -> None:
    server, client = start(mutual=True), start.certs.client
    assert outcome(unchecked(server, tls_cert=client.cert, tls_key=client.key)) == "1 delivered"
    assert outcome(unchecked(server)) == REFUSED


@pytest.mark.needs("tls")
def test_plain_tcp_and_old_tls_versions_are_still_refused(start: Start, tcp_server: LocalServer) -> None:
    assert outcome(unchecked(tcp_server, connect_timeout=0.3)) == ("retryable", "TIMEOUT", "no")
    assert outcome(unchecked(start(version="TLSv1.1"))) == REFUSED


@pytest.mark.needs("tls")
def test_the_server_must_hold_the_key_of_its_certificate(start: Start) -> None:
    server = start()
    with Tampering(server, hello=without_tls_13, answer=without_mark) as between:
        dispatcher = Dispatcher(unchecked(server, port=between.port))
        dispatcher.produce(b"x")
        (failure,) = dispatcher.flush().failed
        dispatcher.close()
    assert (failure.kind, failure.code, failure.written) == REFUSED
    assert "does not verify" in failure.message


# --- how it is set


def test_skip_verify_is_off_by_default_and_shown_in_the_repr(pem: Pem) -> None:
    assert build(tls=True).tls_insecure_skip_verify is False
    assert build(tls=True, tls_insecure_skip_verify=False) == build(tls=True)
    with pytest.warns(InsecureWarning):
        endpoint = build(tls=True, tls_insecure_skip_verify=True)
    assert endpoint.tls_insecure_skip_verify is True
    assert endpoint != build(tls=True)
    assert repr(endpoint) == "Endpoint(host='h', tls=True, tls_insecure_skip_verify=True, stream_key='s')"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "tls_insecure_skip_verify needs tls to be true; without it everything would be sent in plain text"),
        (
            {"tls": True, "tls_server_name": "n"},
            "tls_insecure_skip_verify and tls_server_name are mutually exclusive",
        ),
        (
            {"tls": True, "tls_ca_cert": "CA"},
            "tls_insecure_skip_verify and tls_ca_cert are mutually exclusive: with",
        ),
    ],
)
def test_contradictory_options_are_refused(pem: Pem, options: dict[str, Any], message: str) -> None:
    options = {name: pem.ca if value == "CA" else value for name, value in options.items()}
    error = refused(tls_insecure_skip_verify=True, **options)
    assert error.option == "tls_insecure_skip_verify"
    assert str(error).startswith(message)
    build(tls_insecure_skip_verify=False, **options)


@pytest.mark.parametrize("value", ["true", "false"])
def test_a_url_cannot_set_skip_verify(value: str) -> None:
    url = f"rediss://h?stream_key=s&tls_insecure_skip_verify={value}"
    with pytest.raises(ConfigError, match=r"^tls_insecure_skip_verify cannot be given in a URL, ") as caught:
        Endpoint.from_url(url)
    assert caught.value.option == "tls_insecure_skip_verify"
    with pytest.raises(ConfigError, match="in a URL"):
        read({"url": url}, streaming=False)
    with pytest.warns(InsecureWarning, match=SKIPPED):
        assert Endpoint.from_url("rediss://h", stream_key="s", tls_insecure_skip_verify=True).tls


def test_a_process_wide_default_cannot_set_skip_verify(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("TLS_INSECURE_SKIP_VERIFY", "DEFAULT_TLS_INSECURE_SKIP_VERIFY"):
        monkeypatch.setenv(f"HEADRACE_{name}", "true")
    assert not build(tls=True).tls_insecure_skip_verify
    for name in ("tls_insecure_skip_verify", "default_tls_insecure_skip_verify"):
        (tmp_path / "defaults.json").write_text(json.dumps({name: True}))
        monkeypatch.setenv("HEADRACE_DEFAULTS", str(tmp_path / "defaults.json"))
        assert f"unknown option '{name}'" in str(refused(tls=True))


# --- warnings


def test_building_an_endpoint_warns_once(pem: Pem) -> None:
    options: dict[str, Any] = {"host": "h", "stream_key": "s", "tls": True, "tls_insecure_skip_verify": True}
    makes: list[Callable[[], Endpoint]] = [
        lambda: Endpoint(**options),
        lambda: Endpoint.from_url("rediss://h", stream_key="s", tls_insecure_skip_verify=True),
        lambda: Endpoint.from_mapping(options),
    ]
    for make in makes:
        with pytest.warns(InsecureWarning, match=SKIPPED) as caught:
            endpoint = make()
        assert [one.filename for one in caught] == [__file__]
        assert reported(pickle.loads, pickle.dumps(endpoint)) == []
        assert pickle.loads(pickle.dumps(endpoint)) == endpoint


def test_spark_warns_where_the_options_are_read() -> None:
    options = {"host": "h", "stream_key": "s", "tls": "true", "tls_insecure_skip_verify": "true"}
    for streaming in (False, True):
        with pytest.warns(InsecureWarning, match=SKIPPED) as caught:
            settings = read(options, streaming=streaming)
        assert len(caught) == 1
        assert settings.endpoint.tls_insecure_skip_verify
        assert reported(pickle.loads, pickle.dumps(settings)) == []


def test_warnings_can_be_silenced_or_turned_into_errors() -> None:
    assert headrace.InsecureWarning is InsecureWarning
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", InsecureWarning)
        build(tls=True, tls_insecure_skip_verify=True)
        warnings.simplefilter("error", InsecureWarning)
        with pytest.raises(InsecureWarning):
            build(tls=True, tls_insecure_skip_verify=True)


# --- files with secrets


@pytest.mark.parametrize("permissions", [0o600, 0o400, 0o700, 0o620, 0o602, 0o640, 0o604, 0o644, 0o444, 0o755])
@pytest.mark.parametrize("option", ["tls_key", "password_file"])
def test_a_secret_file_readable_by_other_users_warns(pem: Pem, tmp_path: Path, option: str, permissions: int) -> None:
    password = tmp_path / "password"
    password.write_text(CANARY)
    password.chmod(0o600)
    options: dict[str, Any] = {"tls": True, "tls_cert": pem.cert, "tls_key": pem.key, "password_file": password}
    options[option].chmod(permissions)
    texts = reported(build, **options)
    readable = f"{option}: '{options[option]}' can be read by users other than its owner (mode {permissions:04o}); "
    assert texts == ([f"{readable}chmod 600 makes it private"] if permissions & 0o044 else [])


def test_every_weakness_is_reported(pem: Pem, tmp_path: Path) -> None:
    password, link = tmp_path / "password", tmp_path / "link"
    password.write_text(CANARY)
    password.chmod(0o644)
    link.symlink_to(password)
    pem.key.chmod(0o644)
    options: dict[str, Any] = {"tls": True, "tls_cert": pem.cert, "tls_key": pem.key}
    texts = reported(build, **options, password_file=link, tls_insecure_skip_verify=True)
    assert [text.split(":")[0] for text in texts] == ["tls_insecure_skip_verify", "tls_key", "password_file"]
    assert f"'{link}'" in texts[2]
    secret = [CANARY, *pem.key.read_text().splitlines()]
    assert not any(line in text for text in texts for line in secret)


def test_files_that_are_not_regular_do_not_warn(pem: Pem, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o644)
    for name in ("not there", "pipe", "."):
        assert reported(build, password_file=tmp_path / name) == []
    pem.key.chmod(0o644)
    assert reported(build, tls=True, tls_cert=pem.cert, tls_key=pem.key.read_bytes()) == []
