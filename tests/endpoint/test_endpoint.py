"""Endpoints: options, their errors, URLs, process-wide defaults, TLS files.

Ranges and contradictions one by one are tested in the core; here is what Python adds, and one of each kind through it.
"""

from __future__ import annotations

import inspect
import json
import pickle
import re
import traceback
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from headrace import ConfigError, Endpoint
from headrace.endpoint import EndpointOptions
from headrace.tables import ENDPOINT
from support.endpoint_examples import EXAMPLES as ENDPOINT_EXAMPLES
from support.endpoints import CANARY, Pem, build, refused

EXAMPLES: list[dict[str, Any]] = [example.options for example in ENDPOINT_EXAMPLES]


pytestmark = pytest.mark.usefixtures("no_process_wide_defaults")


@pytest.fixture(scope="module")
def other_pem(tmp_path_factory: pytest.TempPathFactory) -> Pem:
    return Pem(tmp_path_factory.mktemp("pem"), "other")


# --- options


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: "+".join(example)[:60])
def test_typical_options_are_accepted(example: dict[str, Any], pem: Pem) -> None:
    files = {"tls_ca_cert": str(pem.ca), "tls_cert": str(pem.cert), "tls_key": str(pem.key)}
    example = {name: files.get(name, value) for name, value in json.loads(json.dumps(example)).items()}
    endpoint = Endpoint.from_mapping(example)
    for name in example.keys() - {"password", "tls_key"}:
        assert getattr(endpoint, name) == example[name], name
    assert endpoint == Endpoint(**example)


def test_built_in_defaults() -> None:
    endpoint = build()
    effective = {
        name: getattr(endpoint, name)
        for name, option in ENDPOINT.items()
        if not option.is_secret and name not in {"host", "stream_key"}
    }
    assert effective == {
        "port": 6379,
        "unix_socket": None,
        "topology": "auto",
        "nodes": None,
        "node_map": None,
        "max_redirects": 5,
        "sentinel_master": None,
        "sentinel_poll": 1.0,
        "sentinel_username": None,
        "sentinel_password_env": None,
        "sentinel_password_file": None,
        "sentinel_tls": False,
        "sentinel_tls_ca_cert": None,
        "sentinel_tls_cert": None,
        "sentinel_tls_server_name": None,
        "db": 0,
        "username": None,
        "password_env": None,
        "password_file": None,
        "connect_timeout": 5.0,
        "command_timeout": 30.0,
        "maxlen": None,
        "maxlen_approximate": True,
        "minid": None,
        "trim_every": 1,
        "nomkstream": False,
        "consumer_group": None,
        "shards": None,
        "shard_hash": "murmur2",
        "shard_names": "plain",
        "key_field": None,
        "tls": False,
        "tls_ca_cert": None,
        "tls_cert": None,
        "tls_server_name": None,
        "tls_insecure_skip_verify": False,
    }


def test_signature_types_and_docstring_have_every_option_of_the_core() -> None:
    assert len(ENDPOINT) > 20
    parameters = inspect.signature(Endpoint).parameters
    assert list(ENDPOINT) == list(parameters) == list(EndpointOptions.__annotations__)
    secret = [option.name for option in ENDPOINT.values() if option.is_secret]
    assert secret == ["sentinel_password", "sentinel_tls_key", "password", "tls_key"]
    doc = inspect.getdoc(Endpoint) or ""
    assert len(re.findall(r"^    \w+: ", doc, re.MULTILINE)) == len(parameters) + 1  # ConfigError, under Raises
    for name, option in ENDPOINT.items():
        assert parameters[name].default == option.keyword_default, name
        described = re.search(rf"^    {name}: (.*\n(?:        .*\n)*)", doc, re.MULTILINE)
        assert described, name
        text = " ".join(described[1].split())
        assert text.startswith(option.text), name
        assert option.allowed in text, name
        assert (f"Default: {option.shown_default}." in text) == (option.default is not None), name


def test_options_are_read_only_attributes() -> None:
    endpoint = build()
    for name, option in ENDPOINT.items():
        assert hasattr(endpoint, name) is not option.is_secret, name
    with pytest.raises(AttributeError, match="an endpoint is immutable: port cannot be set"):
        setattr(endpoint, "port", 1)  # noqa: B010, which mypy would refuse


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"port": 70_000}, "port must be an integer from 1 to 65535, got 70000"),
        ({"port": 10**50}, "port must be an integer from 1 to 65535, got a value of type int of more than 128 bits"),
        ({"port": True}, "port must be an integer from 1 to 65535, got True"),
        ({"port": "6379"}, "port must be an integer from 1 to 65535, got '6379'"),
        ({"db": -1}, "db must be an integer from 0 to 2147483647, got -1"),
        ({"maxlen": 1.0}, "maxlen must be an integer of at least 0, got 1"),
        ({"maxlen": -1}, "maxlen must be an integer of at least 0, got -1"),
        ({"connect_timeout": float("nan")}, "connect_timeout must be a number of seconds from 0.001 to 3600, got NaN"),
        ({"command_timeout": 3601}, "command_timeout must be a number of seconds from 0.001 to 3600, got 3601"),
        ({"nomkstream": 1}, "nomkstream must be a boolean (true or false), got 1"),
        ({"tls": "true"}, "tls must be a boolean (true or false), got 'true'"),
        (
            {"consumer_group": []},
            "consumer_group must be text or bytes, of 1 byte to 512 MiB, got a value of type list",
        ),
        ({"stream_key": ""}, "stream_key must be text or bytes, of 1 byte to 512 MiB, got '' (empty)"),
        ({"stream_key": None}, "stream_key is missing: it names the stream that entries are added to"),
        ({"host": None}, "host is missing (or unix_socket, or nodes): it names the server"),
        ({"host": "\ud800"}, "host must be non-empty text, got a value of type str with a lone surrogate"),
        ({"host": Path("h")}, "host must be non-empty text, got a value of type PosixPath"),
        ({"unix_socket": "/s"}, "host and unix_socket are mutually exclusive"),
        (
            {"minid": "5-"},
            "minid must be an integer of at least 0, or text of the form 'ms' or 'ms-seq' (64 bits each), got '5-'",
        ),
        ({"username": "u"}, "username needs one of password, password_env and password_file (AUTH takes both)"),
        (
            {"password": 5},
            "password must be non-empty text or bytes, or a callable that returns them, got an integer",
        ),
        ({"tls_ca_cert": "/ca"}, "tls_ca_cert needs tls to be true; without it everything would be sent in plain text"),
        ({"hots": "h"}, "unknown option 'hots'; did you mean 'host'?"),
        ({"Maxlen": 5}, "unknown option 'Maxlen'; did you mean 'maxlen'?"),
        ({"timeout": 5}, "unknown option 'timeout'; did you mean 'connect_timeout'?"),
    ],
)
def test_errors_name_the_option_the_value_and_the_allowed_values(options: dict[str, Any], message: str) -> None:
    error = refused(**options)
    assert str(error) == message
    assert error.option in {*options, "host"}
    assert isinstance(error, ValueError)
    assert pickle.loads(pickle.dumps(error)).option == error.option


def test_an_option_without_its_name_is_refused_and_not_shown() -> None:
    with pytest.raises(TypeError, match="need their names, as in host='redis'; a URL is for from_url") as caught:
        Endpoint(f"redis://:{CANARY}@h")  # type: ignore[arg-type]
    assert CANARY not in "".join(traceback.format_exception(caught.value))


def test_a_mapping_is_strict() -> None:
    with pytest.raises(ConfigError, match="unknown option 'host '; did you mean 'host'"):
        Endpoint.from_mapping({"host ": "h", "stream_key": "s"})
    with pytest.raises(ConfigError, match="port must be an integer from 1 to 65535, got '6379'"):
        Endpoint.from_mapping({"host": "h", "stream_key": "s", "port": "6379"})
    assert Endpoint.from_mapping({"host": "h", "stream_key": "s", "port": None}) == build()
    with pytest.raises(TypeError, match="options must be a mapping of names to values, got str"):
        Endpoint.from_mapping(json.dumps({"password": CANARY}))  # type: ignore[arg-type]


def test_options_can_be_given_as_text() -> None:
    texts = {"port": "6380", "maxlen": "10", "nomkstream": "True", "connect_timeout": "0.5", "minid": "5-1"}
    typed: dict[str, Any] = {"port": 6380, "maxlen": 10, "nomkstream": True, "connect_timeout": 0.5, "minid": "5-1"}
    assert Endpoint._from_text({"host": "h", "stream_key": "s", **texts}) == build(**typed)
    assert Endpoint._from_text({"stream_key": "s", "maxlen": "10"}, url="redis://h") == build(maxlen=10)
    with pytest.raises(ConfigError, match="port must be an integer from 1 to 65535, got 'x'"):
        Endpoint._from_text({"host": "h", "stream_key": "s", "port": "x"})


def test_values_keep_their_type() -> None:
    endpoint = build(minid="1713091234567", stream_key=b"\xff\x00", consumer_group=bytearray(b"g"), connect_timeout=0.1)
    assert endpoint.minid == 1713091234567
    assert endpoint.stream_key == b"\xff\x00"
    assert endpoint.consumer_group == "g"
    assert endpoint.connect_timeout == 0.1
    assert build(minid="5-7").minid == "5-7"
    assert build(maxlen=0).maxlen == 0
    socket = build(host=None, unix_socket=Path("/run/r.sock"))
    assert (socket.unix_socket, socket.host, socket.port) == ("/run/r.sock", None, None)


# --- URLs


def test_urls_are_parsed() -> None:
    url = "redis://producer@db1:6380/2?stream_key=order-events&maxlen=10"
    endpoint = Endpoint.from_url(url, password_env="REDIS_PASSWORD", trim_every=5)
    assert endpoint == Endpoint(
        host="db1",
        port=6380,
        db=2,
        username="producer",
        password_env="REDIS_PASSWORD",
        stream_key="order-events",
        maxlen=10,
        trim_every=5,
    )
    assert str(endpoint) == "redis://producer@db1:6380/2 stream key order-events"
    assert Endpoint.from_url("rediss://h?stream_key=s").tls
    assert Endpoint.from_url("unix:///run/r.sock?db=3&stream_key=s").db == 3


def test_a_url_that_is_none_is_refused() -> None:
    missing: Any = None
    with pytest.raises(ConfigError) as caught:
        Endpoint.from_url(missing, stream_key="s")
    assert str(caught.value) == "url is None: the variable that should hold it is not set"
    assert caught.value.option == "url"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (
            f"redis://:{CANARY}@h/x?stream_key=s",
            "the URL must have the number of a database after its host, such as /0, or nothing",
        ),
        (
            f"redis://:{CANARY}@h/?stream_key=s&tls_ca=x",
            "unknown option 'tls_ca'; did you mean 'tls_ca_cert'?",
        ),
        (f"redis://:{CANARY}/@h/?stream_key=s", "the URL has an @ after its host"),
        (f"rediss://:{CANARY}@h/#insecure", "the URL must not have a #fragment"),
        (f"http://:{CANARY}@h/", "the URL must have one of the schemes redis, rediss, unix"),
        (f"redis://:{CANARY}@h:99999/", "the URL does not parse"),
        (f"redis://:{CANARY}@h/?stream_key=s&password=x", "password is given twice"),
        (f"redis://u:{CANARY}@h/?stream_key=s&port=x", "port must be an integer from 1 to 65535, got 'x'"),
    ],
)
def test_url_errors_reveal_no_secret(url: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Endpoint.from_url(url)
    assert str(caught.value).startswith(message)
    assert CANARY not in "".join(traceback.format_exception(caught.value))


def test_an_option_in_the_url_cannot_be_given_again() -> None:
    with pytest.raises(ConfigError, match="port is given twice"):
        Endpoint.from_url("redis://h:6380?stream_key=s", port=6380)


# --- process-wide defaults


def test_environment_defaults_are_read_when_an_endpoint_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    before = build()
    monkeypatch.setenv("HEADRACE_CONNECT_TIMEOUT", "7.5")
    monkeypatch.setenv("HEADRACE_COMMAND_TIMEOUT", "70")
    monkeypatch.setenv("HEADRACE_DEFAULT_DB", "3")
    monkeypatch.setenv("HEADRACE_DEFAULT_PORT", "7000")
    after = build()
    explicit = build(port=1, db=0, connect_timeout=2, command_timeout=3)
    monkeypatch.undo()
    for endpoint, expected in [
        (before, (6379, 0, 5.0, 30.0)),
        (after, (7000, 3, 7.5, 70.0)),
        (explicit, (1, 0, 2.0, 3.0)),
    ]:
        assert (endpoint.port, endpoint.db, endpoint.connect_timeout, endpoint.command_timeout) == expected
    assert before != after
    assert hash(before) == hash(after)


def test_file_defaults_are_read_at_each_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "defaults.json"
    file.write_text('{"default_port": 7000, "default_db": 1, "connect_timeout": 9}')
    monkeypatch.setenv("HEADRACE_DEFAULTS", str(file))
    monkeypatch.setenv("HEADRACE_DEFAULT_DB", "2")
    endpoint = build()
    assert (endpoint.port, endpoint.db, endpoint.connect_timeout) == (7000, 2, 9.0)
    file.write_text('{"default_port": 7001}')
    assert (endpoint.port, endpoint.db, endpoint.connect_timeout) == (7001, 2, 5.0)
    for wrong in ['{"default_port": "7001"}', "nonsense", None]:
        if wrong is None:
            file.unlink()
        else:
            file.write_text(wrong)
        with pytest.raises(ConfigError) as caught:
            _ = endpoint.port
        assert str(file) in str(caught.value)
        with pytest.raises(ConfigError):
            pickle.dumps(endpoint)
        assert str(endpoint) == "redis://h:6379/2 stream key s"
    assert repr(endpoint) == "Endpoint(host='h', stream_key='s')"
    with pytest.raises(ConfigError, match="cannot be read"):
        build()


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("HEADRACE_CONNECT_TIMEOUT", "61", "a number of seconds from 1 to 60"),
        ("HEADRACE_COMMAND_TIMEOUT", "301", "a number of seconds from 1 to 300"),
        ("HEADRACE_DEFAULT_DB", "-1", "an integer from 0 to 2147483647"),
        ("HEADRACE_DEFAULT_PORT", "x", "an integer from 1 to 65535"),
    ],
)
def test_errors_name_invalid_environment_variables(
    name: str, value: str, allowed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert str(refused()) == f"{name} must be {allowed}, got '{value}'"


# --- TLS


def test_tls_accepts_paths_and_pem(pem: Pem) -> None:
    paths = build(tls=True, tls_ca_cert=pem.ca, tls_cert=str(pem.cert), tls_key=pem.key, tls_server_name="db1")
    assert (paths.tls_ca_cert, paths.tls_cert) == (str(pem.ca), str(pem.cert))
    given = build(
        tls=True, tls_ca_cert=pem.ca.read_bytes(), tls_cert=pem.cert.read_text(), tls_key=pem.key.read_bytes()
    )
    assert given.tls_ca_cert == pem.ca.read_bytes()
    assert not hasattr(paths, "tls_key")
    assert build(tls=True).tls
    assert str(build(tls=True)) == "rediss://h:6379 stream key s"


def test_tls_files_are_checked_before_connecting(
    pem: Pem, other_pem: Pem, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("tls")  # a short name: long values are cut short in messages
    missing = folder / "missing.pem"
    empty = folder / "empty.pem"
    empty.write_text("no PEM")
    pair: dict[str, Any] = {"tls": True, "tls_cert": pem.cert, "tls_key": pem.key}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"tls_ca_cert": missing}, f"tls_ca_cert: '{missing}' cannot be read: No such file"),
        ({"tls_ca_cert": folder}, f"tls_ca_cert: '{folder}' cannot be read: Is a directory"),
        ({"tls_ca_cert": empty}, f"tls_ca_cert: '{empty}' holds no certificate"),
        ({"tls_ca_cert": pem.key}, f"tls_ca_cert: '{pem.key}' holds no certificate"),
        ({"tls_cert": missing}, f"tls_cert: '{missing}' cannot be read: No such file"),
        ({"tls_cert": pem.key}, f"tls_cert: '{pem.key}' holds no certificate"),
        ({"tls_key": pem.cert}, f"tls_key: '{pem.cert}' holds no private key"),
        (
            {"tls_key": other_pem.key},
            f"tls_cert ('{pem.cert}') and tls_key ('{other_pem.key}') do not match",
        ),
        (
            {"tls_key": other_pem.key.read_bytes()},
            f"tls_cert ('{pem.cert}') and tls_key (the PEM given) do not match",
        ),
    ]
    for options, message in cases:
        assert str(refused(**{**pair, **options})).startswith(message)


def test_an_encrypted_key_is_refused(pem: Pem) -> None:
    key = serialization.load_pem_private_key(pem.key.read_bytes(), None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"pass"),
    )
    error = refused(tls=True, tls_cert=pem.cert, tls_key=encrypted)
    assert str(error) == "tls_key: the PEM given holds no private key, or only an encrypted one"
