"""The endpoint: where entries go, and how."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Literal, Never, NoReturn, Self, TypedDict, TypeVar, Unpack, cast, overload

from headrace import _headrace
from headrace.errors import ConfigError
from headrace.tables import ENDPOINT, documented, signature

__all__ = ["Endpoint", "EndpointOptions", "InsecureWarning"]

_Path = str | os.PathLike[str]
_Pem = str | bytes | bytearray | os.PathLike[str]
_Password = str | bytes | bytearray
_T = TypeVar("_T")


class EndpointOptions(TypedDict, total=False):
    """The keyword arguments of `Endpoint`, for functions that pass them on; `Endpoint` documents each."""

    host: str | None
    port: int | None
    unix_socket: _Path | None
    topology: Literal["auto", "single", "cluster", "sentinel"]
    nodes: str | Sequence[str] | None
    node_map: str | Mapping[str, str] | None
    max_redirects: int
    sentinel_master: str | None
    sentinel_poll: float
    sentinel_username: str | None
    sentinel_password: _Password | Callable[[], _Password] | None
    sentinel_password_env: str | None
    sentinel_password_file: _Path | None
    sentinel_tls: bool
    sentinel_tls_ca_cert: _Pem | None
    sentinel_tls_cert: _Pem | None
    sentinel_tls_key: _Pem | None
    sentinel_tls_server_name: str | None
    db: int | None
    username: str | None
    password: _Password | Callable[[], _Password] | None
    password_env: str | None
    password_file: _Path | None
    connect_timeout: float | None
    command_timeout: float | None
    tls: bool
    tls_ca_cert: _Pem | None
    tls_cert: _Pem | None
    tls_key: _Pem | None
    tls_server_name: str | None
    tls_insecure_skip_verify: bool
    stream_key: str | bytes | None
    consumer_group: str | bytes | None
    shards: int | None
    shard_hash: Literal["murmur2", "crc32"]
    shard_names: Literal["plain", "spread"]
    key_field: str | None
    maxlen: int | None
    maxlen_approximate: bool
    minid: int | str | None
    trim_every: int
    nomkstream: bool


class InsecureWarning(UserWarning):
    """An endpoint is less secure than it could be; `Endpoint` lists the cases.

    ```python
    warnings.simplefilter("error", headrace.InsecureWarning)  # refuse such endpoints
    warnings.simplefilter("ignore", headrace.InsecureWarning)
    ```
    """


class _Attribute(Generic[_T]):
    """An option as an attribute of an endpoint."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name
        self.__doc__ = ENDPOINT[name].text

    @overload
    def __get__(self, endpoint: None, owner: type) -> Self: ...
    @overload
    def __get__(self, endpoint: Endpoint, owner: type) -> _T: ...
    def __get__(self, endpoint: Endpoint | None, owner: type) -> Self | _T:
        return self if endpoint is None else cast(_T, endpoint._option(self._name))

    def __set__(self, endpoint: Endpoint, value: NoReturn) -> None:
        raise AttributeError(f"an endpoint is immutable: {self._name} cannot be set; create another endpoint")


class Endpoint(_headrace.Endpoint):
    """Where entries go and how: server, credentials, TLS, stream key, trimming.

    ```python
    Endpoint(host="redis", stream_key="order-events", maxlen=100_000)
    Endpoint(unix_socket="/run/redis.sock", stream_key="order-events")
    Endpoint.from_url("rediss://producer@db1:6380/2", stream_key="order-events", password_env="REDIS_PASSWORD")
    Endpoint.from_mapping({"host": "redis", "stream_key": "order-events"})
    ```

    An endpoint is immutable, opens no connection, and can be hashed, compared and pickled. Every option is checked when
    the endpoint is built: unknown names, types, ranges, contradictions, TLS files. None is the same as omitting the
    option.

    **Process-wide defaults.** `port`, `db`, `connect_timeout` and `command_timeout` may be set for a whole process,
    within the ranges in brackets: by the environment variables `HEADRACE_DEFAULT_PORT`, `HEADRACE_DEFAULT_DB`,
    `HEADRACE_CONNECT_TIMEOUT` (1 to 60) and `HEADRACE_COMMAND_TIMEOUT` (1 to 300), or by a JSON file that
    `HEADRACE_DEFAULTS` names, with the keys `default_port`, `default_db`, `connect_timeout` and `command_timeout`. An
    explicit option takes precedence over the environment, and the environment over the file. The environment is read
    when the endpoint is built (an empty variable counts as unset), the file at each connect: a change to it needs no
    restart. If the file has become unreadable or invalid, the connect fails with an error that names it.

    **Secrets.** `repr`, `str` and exceptions show no password and no PEM. The endpoint's own copies of both are zeroed
    when it is freed. Python's copies are not: a `str` or `bytes` that was passed in stays in memory until Python reuses
    that memory. `password_env` and `password_file` keep the password out of Python altogether; it is read at each
    connect, so that a rotated password needs no restart, and zeroed after it was sent. TLS keys are also read at each
    connect and zeroed; the TLS library's own form of the key lives as long as its connection.

    **Rotation.** Use `password_env`, `password_file`, or a callable as `password`, which is called at each connect:

    ```python
    Endpoint(host="redis", stream_key="order-events", username="producer", password=vault.read_password)
    ```

    Open connections are not affected; servers, too, keep them when a password changes. If a server refuses the
    password, the variable, file or callable is read once more, and a different password is tried immediately, over a
    second connection; so it does no harm if the password changes between reading and sending. A callable takes no
    arguments, returns a str or bytes, and runs in the thread of the call that connects; its time counts towards
    `connect_timeout`, which does not interrupt it. If it raises an exception, the connect fails (`CONFIG`, retryable)
    with an error that names only the exception's type; KeyboardInterrupt and SystemExit are raised by the call. The
    endpoint keeps the callable for as long as it lives.

    **Warnings.** Building an endpoint issues a `headrace.InsecureWarning` for `tls_insecure_skip_verify`, and for each
    file of `tls_key` and `password_file` that users other than its owner may read. Unpickling issues no warnings.

    **Pickling.** A pickled endpoint points to the same place in any process: it carries its options and the current
    process-wide defaults, including those of the file, and ignores those of the other process. So it holds a `password`
    and PEM **in plain text**; with `password_env`, `password_file` and TLS paths it holds only names, and the variable
    and files are read where the connection is made. A callable is pickled as usual: a function by its name, which the
    other process must be able to import; a lambda is refused (except by Spark's pickler, which includes its code).
    Unpickling reads no files.

    **Equality.** Endpoints are equal if they have equal options, and process-wide defaults from the same place: the
    environment, and the path of the file. If a file is in use, an unpickled endpoint, in which the file's values are
    fixed, differs from the original.

    Args:
        {options}

    Raises:
        ConfigError: An option is missing, unknown, of the wrong type, out of range, or contradicts another one; or a
            file or variable with process-wide defaults is invalid. No connection was opened.
    """

    __slots__ = ()

    host = _Attribute[str | None]()
    port = _Attribute[int | None]()
    unix_socket = _Attribute[str | None]()
    topology = _Attribute[str]()
    nodes = _Attribute[tuple[str, ...] | None]()
    node_map = _Attribute[str | None]()
    max_redirects = _Attribute[int]()
    sentinel_master = _Attribute[str | None]()
    sentinel_poll = _Attribute[float]()
    sentinel_username = _Attribute[str | None]()
    sentinel_password_env = _Attribute[str | None]()
    sentinel_password_file = _Attribute[str | None]()
    sentinel_tls = _Attribute[bool]()
    sentinel_tls_ca_cert = _Attribute[str | bytes | None]()
    sentinel_tls_cert = _Attribute[str | bytes | None]()
    sentinel_tls_server_name = _Attribute[str | None]()
    db = _Attribute[int]()
    username = _Attribute[str | None]()
    password_env = _Attribute[str | None]()
    password_file = _Attribute[str | None]()
    connect_timeout = _Attribute[float]()
    command_timeout = _Attribute[float]()
    tls = _Attribute[bool]()
    tls_ca_cert = _Attribute[str | bytes | None]()
    tls_cert = _Attribute[str | bytes | None]()
    tls_server_name = _Attribute[str | None]()
    tls_insecure_skip_verify = _Attribute[bool]()
    stream_key = _Attribute[str | bytes]()
    consumer_group = _Attribute[str | bytes | None]()
    shards = _Attribute[int | None]()
    shard_hash = _Attribute[str]()
    shard_names = _Attribute[str]()
    key_field = _Attribute[str | None]()
    maxlen = _Attribute[int | None]()
    maxlen_approximate = _Attribute[bool]()
    minid = _Attribute[int | str | None]()
    trim_every = _Attribute[int]()
    nomkstream = _Attribute[bool]()

    def __new__(cls, *values: Never, **options: Unpack[EndpointOptions]) -> Self:  # noqa: D102, see the class
        try:
            if values:
                raise TypeError("options of an Endpoint need their names, as in host='redis'; a URL is for from_url")
            return super().__new__(cls, {**options})._warned()
        finally:
            # Tools that show the locals of a traceback must find no secret here, not even one given to the wrong
            # option.
            del options, values

    @classmethod
    def from_url(cls, url: str, **options: Unpack[EndpointOptions]) -> Self:
        """Build an endpoint from a URL, completed by options.

        - `redis://[user[:password]@]host[:port][/db]` or `valkey://…`; with TLS `rediss://…` or `valkeys://…`
        - `unix:///path`, `redis+unix:///path` or `valkey+unix:///path`: a Unix socket
        - `redis+sentinel://[user[:password]@]host[:port],host[:port]/master[/db]` or `valkey+sentinel://…`: the server
          that the sentinels name as the master; with TLS `rediss+sentinel://…` or `valkeys+sentinel://…`. User,
          password and TLS are those of the server; the options `sentinel_…` are those of the sentinels.
        - `redis+cluster://[user[:password]@]host[:port],host[:port][/db]` or `valkey+cluster://…`: a cluster, by one or
          more of its nodes; with TLS `rediss+cluster://…` or `valkeys+cluster://…`

        The scheme is not case-sensitive. A query holds options of `Endpoint` by their names, except
        `tls_insecure_skip_verify`: `?stream_key=order-events&maxlen=100000&tls_ca_cert=/etc/ca.pem`. User, password,
        master, path of the socket and query are percent-encoded; in the query `+` is a space. A `#fragment` is refused.

        Args:
            url: The URL. No exception repeats any part of it that may be a secret.
            options: Options of `Endpoint`. None may repeat an option of the URL.

        Raises:
            ConfigError: As for `Endpoint`; or the URL does not have this form, or an option is given twice.
        """
        try:
            if url is None:
                raise ConfigError("url is None: the variable that should hold it is not set", option="url")
            return super().__new__(cls, {**options}, url=url)._warned()
        finally:
            del options, url  # not for tracebacks with locals

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> Self:
        """Build an endpoint from a mapping of its options, such as a JSON object read with `json.loads`.

        Args:
            options: Names and values as for `Endpoint`, with their types: `"6379"` is not a port. None (JSON's null) is
                the same as omitting the option.

        Raises:
            ConfigError: As for `Endpoint`.
            TypeError: `options` is not a mapping.
        """
        try:
            return super().__new__(cls, _checked(options))._warned()
        finally:
            del options  # not for tracebacks with locals

    @classmethod
    def _from_text(cls, options: Mapping[str, str], url: str | None = None) -> Self:
        """Build an endpoint from options that are all text (`"6379"`, `"true"`), as Spark passes them."""
        try:
            return super().__new__(cls, _checked(options), url=url, text=True)._warned()
        finally:
            del options, url  # not for tracebacks with locals

    def find_shards(self) -> Self:
        """Return the same endpoint with the shards that its stream has, to read what another program writes.

        ```python
        endpoint = Endpoint(nodes=["db1", "db2"], stream_key="order-events").find_shards()
        with Reader(endpoint) as reader: ...
        ```

        Reads the hash `{stream_key}:shards`, which the first producer wrote beside the shards, and sets `shards`,
        `shard_hash` and `shard_names` accordingly. An endpoint that already has `shards` is only checked. The new
        endpoint has the current process-wide defaults.

        Raises:
            ConfigError: `stream_key` contains braces.
            CommandError: The stream has no shards, or shards that differ from the endpoint's (`BAD_SHARDS`), or the
                user may not read them (`NOPERM`: it needs `+hgetall` on the hash).
            ConnectionFailedError: The server could not be reached, or the connection to it was lost.
        """
        _, inherited = self._state()
        options = self._found_shards()
        try:
            return _restore(type(self), options, inherited)  # type: ignore[return-value]
        finally:
            del options  # not for tracebacks with locals

    def _with_stream_key(self, key: str) -> Self:
        """Return an endpoint of the same server and another stream, without shards. A defaults file is read now."""
        options, inherited = self._state()
        try:
            options = {name: value for name, value in options.items() if not name.startswith("shard")}
            return _restore(type(self), {**options, "stream_key": key}, inherited)  # type: ignore[return-value]
        finally:
            del options  # not for tracebacks with locals

    def _warned(self) -> Self:
        for text in self._warnings():
            warnings.warn(text, InsecureWarning, stacklevel=3)  # at the line that builds the endpoint
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), *self._state())

    # An immutable object is its own copy. Going through __reduce__ would fix the values of the defaults file.
    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self


def _checked(options: Mapping[str, Any]) -> dict[str, object]:
    try:
        if not isinstance(options, Mapping):
            # Without its value: a JSON text may hold a password.
            raise TypeError(f"options must be a mapping of names to values, got {type(options).__name__}")
        return dict(options)
    finally:
        del options  # not for tracebacks with locals


def _restore(cls: type[Endpoint], options: dict[str, object], inherited: dict[str, object]) -> Endpoint:
    try:
        return _headrace.Endpoint.__new__(cls, options, inherited=inherited)
    finally:
        del options  # not for tracebacks with locals


Endpoint.__doc__ = documented(Endpoint.__doc__, ENDPOINT)
Endpoint.__new__.__signature__ = signature(Endpoint.__new__, ENDPOINT.values())  # type: ignore[attr-defined]
