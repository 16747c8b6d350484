"""The endpoint: where entries go, and how."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Self, TypedDict, Unpack

from headrace import _headrace

__all__ = ["Endpoint", "EndpointOptions", "InsecureWarning"]

_Path = str | os.PathLike[str]
_Pem = str | bytes | bytearray | os.PathLike[str]
_Password = str | bytes | bytearray


class EndpointOptions(TypedDict, total=False):
    """The keyword arguments of `Endpoint`, for functions that pass them on; `Endpoint` documents each."""

    host: str | None
    port: int | None
    unix_socket: _Path | None
    stream_key: str | bytes | None
    db: int | None
    username: str | None
    password: _Password | Callable[[], _Password] | None
    password_env: str | None
    password_file: _Path | None
    connect_timeout: float | None
    command_timeout: float | None
    maxlen: int | None
    maxlen_approximate: bool
    minid: int | str | None
    trim_every: int
    nomkstream: bool
    consumer_group: str | bytes | None
    tls: bool
    tls_ca_cert: _Pem | None
    tls_cert: _Pem | None
    tls_key: _Pem | None
    tls_server_name: str | None
    tls_insecure_skip_verify: bool


class InsecureWarning(UserWarning):
    """An endpoint is weaker than it need be; `Endpoint` says when this is warned of.

    ```python
    warnings.simplefilter("error", headrace.InsecureWarning)  # refuse such endpoints
    warnings.simplefilter("ignore", headrace.InsecureWarning)
    ```
    """


class Endpoint(_headrace.Endpoint):
    """Say where entries go and how: server, credentials, TLS, stream key, trimming.

    ```python
    Endpoint(host="redis", stream_key="order-events", maxlen=100_000)
    Endpoint(unix_socket="/run/redis.sock", stream_key="order-events")
    Endpoint.from_url("rediss://producer@db1:6380/2", stream_key="order-events", password_env="REDIS_PASSWORD")
    Endpoint.from_mapping({"host": "redis", "stream_key": "order-events"})
    ```

    An endpoint is immutable, opens no connection, and can be hashed, compared and pickled. Every option is checked when
    it is built: unknown names, types, ranges, contradictions, TLS files. None is the same as leaving an option out.

    **Process-wide defaults.** `port`, `db`, `connect_timeout` and `command_timeout` may be set for a whole process,
    within the ranges in brackets: by the environment variables `HEADRACE_DEFAULT_PORT`, `HEADRACE_DEFAULT_DB`,
    `HEADRACE_CONNECT_TIMEOUT` (1 to 60) and `HEADRACE_COMMAND_TIMEOUT` (1 to 300), or by a JSON file that
    `HEADRACE_DEFAULTS` names, with the keys `default_port`, `default_db`, `connect_timeout` and `command_timeout`. An
    option that was given wins over the environment, the environment over the file. The environment counts as it was
    when the endpoint was built (an empty variable as unset), the file as it is at each connect: a change needs no
    restart. A file that became unreadable or wrong fails the connect, with an error that names it.

    **Secrets.** `repr`, `str` and exceptions show no password and no PEM. The endpoint's own copies of both are zeroed
    when it is freed. What Python made of them before is not: a `str` or `bytes` that was passed in stays in memory
    until Python reuses it. `password_env` and `password_file` keep the password out of Python altogether; it is read at
    each connect, so a rotated one needs no restart, and zeroed when it was sent. TLS keys are read at each connect too,
    and zeroed; the TLS library's own form of the key lives as long as its connection.

    **Rotation.** Give `password_env`, `password_file`, or a callable as `password`, which is asked at each connect:

    ```python
    Endpoint(host="redis", stream_key="order-events", username="producer", password=vault.read_password)
    ```

    Connections that stand are not touched; servers keep those too when a password changes. If a server refuses the
    password, variable, file or callable is asked once more, and another password is tried at once, with a second
    connection; so it does no harm if the password changes between reading and sending. A callable takes no arguments,
    returns a str or bytes, and runs in the thread of the call that connects; its time counts towards `connect_timeout`,
    which does not end it. An exception of it fails the connect (`CONFIG`, retryable) and is named by its type alone;
    KeyboardInterrupt and SystemExit are raised by the call. The endpoint keeps the callable for as long as it lives.

    **Warnings.** Building an endpoint warns, with a `headrace.InsecureWarning` for each, of `tls_insecure_skip_verify`
    and of files of `tls_key` and `password_file` that others than their owner may read. Unpickling warns of nothing.

    **Pickling.** A pickled endpoint points to the same place in any process: it carries its options and the
    process-wide defaults of this moment, those of the file included, and heeds none in the other process. So it holds a
    `password` and PEM **in plain**; with `password_env`, `password_file` and TLS paths it holds only names, and
    variable and files are looked for where the connection is made. A callable is pickled as pickle does it: a function
    by its name, which the other process must be able to import; a lambda is refused (not by Spark's pickle, which takes
    its code along). Unpickling looks at no file.

    **Equality.** Equal endpoints have equal options and process-wide defaults from the same place: the environment, and
    the path of the file. Where a file is in use, an unpickled endpoint, for which its values are fixed, differs from
    the original.

    Args:
        host: Name or IP address of the server; IPv6 with or without brackets. Either this or `unix_socket` is needed.
        port: TCP port, 1 to 65,535. Default 6379.
        unix_socket: Path of the server's Unix socket, at most 107 bytes (macOS: 103). Not with `port` or `tls`.
        stream_key: Key of the stream, 1 byte to 512 MiB; a str is sent as UTF-8. Needed. The key of
            [XADD](https://redis.io/docs/latest/commands/xadd/).
        db: Number of the database, 0 to 2,147,483,647 (16 is only a server's default limit). Default 0, which sends
            nothing; any other is [SELECT](https://redis.io/docs/latest/commands/select/).
        username: ACL user, Redis 6.0 and later. With it [AUTH](https://redis.io/docs/latest/commands/auth/) has two
            arguments. Needs one of `password`, `password_env`, `password_file`.
        password: Password of AUTH, not empty; a str is sent as UTF-8. Or a callable that returns it, asked at each
            connect. At most one of the three is given.
        password_env: Name of the environment variable that holds the password, read at each connect.
        password_file: Path of the file that holds the password (at most 64 KiB), read at each connect. One line end at
            its end, or at the variable's, is left out.
        connect_timeout: Seconds that connecting may take, from name resolution to the last reply of the handshake.
            0.001 to 3600. Default 5.
        command_timeout: Seconds of silence from the server while replies are owed. 0.001 to 3600. Default 30.
        maxlen: Entries that the stream keeps, 0 and up: `MAXLEN ~ n` of XADD. Default None; 0 means the same, no
            trimming, and is never sent.
        maxlen_approximate: Whether trimming may keep a little more than asked for (`~`), which is much faster; for
            `minid` too. Default True.
        minid: Smallest entry ID that the stream keeps: `MINID ~ id` of XADD, Redis 6.2 and later. An int of
            milliseconds, or `"ms"` or `"ms-seq"`, each of 64 bits; sent as written. Default None; 0 and `"0-0"` mean
            the same. Wins over `maxlen`.
        trim_every: The first XADD of a stream key and every n-th after it trim; the others go without, which is cheaper
            for the server. 1 and up, and at most `maxlen`. Default 1.
        nomkstream: Whether to leave a stream that does not exist so (`NOMKSTREAM` of XADD, Redis 6.2 and later);
            messages then fail with the code `NO_STREAM`. Default False.
        consumer_group: Consumer group to create at each connect, from new entries on, if there is none of that name:
            [XGROUP CREATE](https://redis.io/docs/latest/commands/xgroup-create/) `key group $ MKSTREAM`. It creates the
            stream whatever `nomkstream` says.
        tls: Whether to speak TLS, 1.2 or later, and check the server's certificate and its name. Names of its subject
            alone do not count: it needs a subject alternative name, of kind IP where `host` is an address. Default
            False.
        tls_ca_cert: The only CA certificates to trust. Default: the system's. This and the next two are a path, or PEM
            itself: bytes, or a str with `-----BEGIN` in it. Paths are read at each connect, and checked now. They need
            `tls=True`.
        tls_cert: The client's certificate chain, where the server asks for one. Needs `tls_key`.
        tls_key: The certificate's private key, not encrypted.
        tls_server_name: Name that the server's certificate must have. Default: `host`.
        tls_insecure_skip_verify: Whether to take any certificate, of any name and age, from whoever answers: for a test
            server at most. Still speaks TLS, or fails. Needs `tls=True`; not with `tls_ca_cert` or `tls_server_name`,
            and not in a URL. Default False.
        unknown: There are no other options; each raises a ConfigError that names the nearest one.

    Raises:
        ConfigError: An option is missing, unknown, of a wrong type, out of range, or contradicts another one; or a file
            or variable with process-wide defaults is wrong. Nothing was connected.
    """

    __slots__ = ()

    def __new__(  # noqa: D102 (the class's docstring tells of its arguments)
        cls,
        *,
        host: str | None = None,
        port: int | None = None,
        unix_socket: _Path | None = None,
        stream_key: str | bytes | None = None,
        db: int | None = None,
        username: str | None = None,
        password: _Password | Callable[[], _Password] | None = None,
        password_env: str | None = None,
        password_file: _Path | None = None,
        connect_timeout: float | None = None,
        command_timeout: float | None = None,
        maxlen: int | None = None,
        maxlen_approximate: bool = True,
        minid: int | str | None = None,
        trim_every: int = 1,
        nomkstream: bool = False,
        consumer_group: str | bytes | None = None,
        tls: bool = False,
        tls_ca_cert: _Pem | None = None,
        tls_cert: _Pem | None = None,
        tls_key: _Pem | None = None,
        tls_server_name: str | None = None,
        tls_insecure_skip_verify: bool = False,
        **unknown: object,
    ) -> Self:
        options = {
            "host": host,
            "port": port,
            "unix_socket": unix_socket,
            "stream_key": stream_key,
            "db": db,
            "username": username,
            "password": password,
            "password_env": password_env,
            "password_file": password_file,
            "connect_timeout": connect_timeout,
            "command_timeout": command_timeout,
            "maxlen": maxlen,
            "maxlen_approximate": maxlen_approximate,
            "minid": minid,
            "trim_every": trim_every,
            "nomkstream": nomkstream,
            "consumer_group": consumer_group,
            "tls": tls,
            "tls_ca_cert": tls_ca_cert,
            "tls_cert": tls_cert,
            "tls_key": tls_key,
            "tls_server_name": tls_server_name,
            "tls_insecure_skip_verify": tls_insecure_skip_verify,
            **unknown,
        }
        try:
            return super().__new__(cls, options)._warned()
        finally:
            # Tools that show the locals of a traceback must find no secret here.
            # One given to the wrong option neither.
            del options, unknown, password, password_env, host, tls_cert, tls_key, tls_ca_cert

    @classmethod
    def from_url(cls, url: str, **options: Unpack[EndpointOptions]) -> Self:
        """Build an endpoint from a URL, completed by options.

        `redis://[user[:password]@]host[:port][/db][?option=value&…]`, `rediss://` for TLS,
        `unix:///path?option=value&…` for a Unix socket (also `redis+unix`, `valkey`, `valkeys`, `valkey+unix`). The
        query holds options of `Endpoint` by their
        names: `?stream_key=order-events&maxlen=100000&tls_ca_cert=/etc/ca.pem`. User, password and query are
        percent-encoded; in the query `+` is a space. A `#fragment` is refused.

        Args:
            url: The URL. No exception repeats any part of it that may be a secret.
            options: Options of `Endpoint`. None may say again what the URL says.

        Raises:
            ConfigError: As for `Endpoint`; or the URL is not of this form, or an option is given twice.
        """
        try:
            return super().__new__(cls, {**options}, url=url)._warned()
        finally:
            del options, url  # not for tracebacks with locals

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> Self:
        """Build an endpoint from a mapping of its options, such as a JSON object that was read with `json.loads`.

        Args:
            options: Names and values as for `Endpoint`, with their types: `"6379"` is no port. None (JSON's null) means
                that an option is left out.

        Raises:
            ConfigError: As for `Endpoint`.
            TypeError: `options` is no mapping.
        """
        try:
            return super().__new__(cls, _checked(options))._warned()
        finally:
            del options  # not for tracebacks with locals

    @classmethod
    def _from_text(cls, options: Mapping[str, str], url: str | None = None) -> Self:
        """Build an endpoint from options that are all text (`"6379"`, `"true"`), as Spark hands them over."""
        try:
            return super().__new__(cls, _checked(options), url=url, text=True)._warned()
        finally:
            del options, url  # not for tracebacks with locals

    def _warned(self) -> Self:
        for text in self._warnings():
            warnings.warn(text, InsecureWarning, stacklevel=3)  # at the line that builds the endpoint
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), *self._state())

    # An immutable object is its own copy. The detour over __reduce__ would fix the defaults file's values.
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
