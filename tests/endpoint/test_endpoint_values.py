"""Endpoints as values: what they show, and how they are compared, hashed, copied and pickled."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

from headrace import Endpoint
from support.endpoints import CANARY, Pem, build, refused

pytestmark = pytest.mark.usefixtures("no_process_wide_defaults")


# --- secrets


def test_repr_and_str_show_options_and_hide_secrets(pem: Pem) -> None:
    endpoint = build(
        port=6380,
        username="u",
        password=CANARY,
        connect_timeout=2,
        maxlen=10,
        maxlen_approximate=False,
        trim_every=1,
        tls=True,
        tls_ca_cert=str(pem.ca),
        tls_cert=pem.cert.read_bytes(),
        tls_key=pem.key.read_bytes(),
    )
    assert repr(endpoint) == (
        "Endpoint(host='h', port=6380, username='u', password='***', connect_timeout=2.0, tls=True, "
        f"tls_ca_cert='{pem.ca}', tls_cert='***', tls_key='***', stream_key='s', maxlen=10, maxlen_approximate=False)"
    )
    assert str(endpoint) == "rediss://u@h:6380 stream key s"
    assert f", tls_key='{pem.key}', " in repr(build(tls=True, tls_cert=str(pem.cert), tls_key=str(pem.key)))
    assert repr(build(password_env="P")) == "Endpoint(host='h', password_env='P', stream_key='s')"


def test_no_representation_of_an_endpoint_shows_a_secret(pem: Pem) -> None:
    key = pem.key.read_text()
    secret_lines = [line for line in key.splitlines() if len(line) > 40 and "-----" not in line]
    assert secret_lines
    endpoint = build(password=CANARY, tls=True, tls_cert=pem.cert, tls_key=key)
    public = [name for name in dir(endpoint) if not name.startswith("_")]
    shown = [
        repr(endpoint),
        str(endpoint),
        f"{endpoint}",
        f"{[endpoint]}",
        *(repr(getattr(endpoint, name)) for name in public),
    ]
    assert len(public) > 20
    assert "password" not in public
    for options in (
        {"password": CANARY, "password_env": CANARY},
        {"password": CANARY, "port": 0},
        {"password_env": f"{CANARY} "},
        {"password_env": f"{CANARY}\n"},
        {"host": f"redis://:{CANARY}@h"},
        {"tls": True, "tls_cert": pem.cert, "tls_key": "\n" + secret_lines[0] + "\n" + CANARY},
        {"tls": True, "tls_cert": pem.cert, "tls_key": key.replace("-----BEGIN", f"-----BEGIN {CANARY}")},
        {"tls": True, "tls_cert": key, "tls_key": key},
        {"tls": True, "tls_ca_cert": key + CANARY},
    ):
        error = refused(**options)
        shown += [str(error), repr(error), repr(error.option), "".join(traceback.format_exception(error))]
    for text in shown:
        # The traceback quotes this file, where the name of the constant stands, not its value.
        assert CANARY not in text
        assert not any(line in text for line in secret_lines)


def test_a_pickle_contains_a_password_only_if_it_was_given(pem: Pem) -> None:
    assert CANARY.encode() in pickle.dumps(build(password=CANARY))
    endpoint = build(password_file="/run/secrets/redis", tls=True, tls_cert=pem.cert, tls_key=pem.key)
    assert b"PRIVATE KEY" not in pickle.dumps(endpoint)


# --- values


def test_endpoints_compare_by_value(pem: Pem) -> None:
    options: dict[str, Any] = {"password": CANARY, "tls": True, "tls_cert": pem.cert, "tls_key": pem.key, "maxlen": 5}
    one, same = build(**options), build(**options)
    assert one == same
    assert hash(one) == hash(same)
    changes: list[dict[str, Any]] = [
        {"password": "x"},
        {"maxlen": 6},
        {"tls_key": pem.key.read_bytes()},
        {"port": 6379},
        {"host": "i"},
    ]
    for change in changes:
        assert build(**{**options, **change}) != one
    assert one != "h"
    assert len({one, same, build()}) == 2
    # An explicit default makes no difference.
    assert build(tls=False, maxlen_approximate=True, trim_every=1, nomkstream=False, db=None) == build()


def test_endpoints_are_immutable() -> None:
    endpoint = build()
    for name in ("host", "password", "anything"):
        with pytest.raises(AttributeError):
            setattr(endpoint, name, "x")
        with pytest.raises(AttributeError):
            delattr(endpoint, name)
    assert not hasattr(endpoint, "__dict__")


class Named(Endpoint):
    """A user's subclass of Endpoint."""

    __slots__ = ()


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickling_keeps_every_option(protocol: int, pem: Pem) -> None:
    endpoints = [
        build(),
        build(
            port=1,
            stream_key=b"\xff",
            db=3,
            username="u",
            password=b"\xfe",
            connect_timeout=0.1,
            command_timeout=7,
            maxlen=0,
            maxlen_approximate=False,
            minid="5-7",
            trim_every=2,
            nomkstream=True,
            consumer_group="g",
            tls=True,
            tls_ca_cert=pem.ca,
            tls_cert=pem.cert.read_bytes(),
            tls_key=pem.key.read_text(),
            tls_server_name="n",
        ),
        build(host=None, unix_socket="/s", password_env="P"),
        build(password_file="/p"),
        Named(host="h", stream_key="s"),
        Named.from_url("redis://h?stream_key=s"),
    ]
    for endpoint in endpoints:
        again = pickle.loads(pickle.dumps(endpoint, protocol))
        assert again == endpoint
        assert hash(again) == hash(endpoint)
        assert type(again) is type(endpoint)
        assert repr(again) == repr(endpoint)
        assert copy.copy(endpoint) is endpoint
        assert copy.deepcopy(endpoint) is endpoint


def test_unpickling_reads_no_files_or_environment_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pem = Pem(tmp_path, "gone")
    defaults = tmp_path / "defaults.json"
    defaults.write_text('{"default_port": 7000}')
    monkeypatch.setenv("HEADRACE_DEFAULTS", str(defaults))
    monkeypatch.setenv("HEADRACE_DEFAULT_DB", "4")
    endpoint = build(tls=True, tls_ca_cert=pem.ca, tls_cert=pem.cert, tls_key=pem.key)
    pickled = pickle.dumps(endpoint)
    for file in tmp_path.iterdir():
        file.unlink()
    monkeypatch.setenv("HEADRACE_DEFAULT_DB", "nonsense")
    shipped = pickle.loads(pickled)
    assert (shipped.port, shipped.db, shipped.tls_ca_cert) == (7000, 4, str(pem.ca))
    assert shipped == pickle.loads(pickle.dumps(shipped))


def test_building_an_endpoint_imports_no_heavy_modules() -> None:
    code = (
        "import sys; import headrace; headrace.Endpoint(host='h', stream_key='s');"
        "print([m for m in ('pyspark', 'pandas', 'pyarrow', 'numpy', 'redis', 'asyncio', 'ssl') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
