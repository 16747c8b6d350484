"""Endpoint options as JSON, and the commands that an endpoint with them sends."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Example:
    """The options of an endpoint as a JSON object, and the expected commands."""

    name: str
    json: str
    #: The command of a message: `...` stands for its payload, then for its time.
    xadd: str
    #: The commands before it on the connection, without CLIENT SETNAME.
    handshake: tuple[str, ...] = ()

    @property
    def options(self) -> dict[str, Any]:
        """The options of the endpoint."""
        options: dict[str, Any] = json.loads(self.json)
        return options

    @property
    def tls(self) -> bool:
        return bool(self.options.get("tls"))

    def command(self, payload: bytes, ts: str) -> list[bytes]:
        """The arguments of the XADD."""
        values = iter((payload, ts.encode()))
        return [next(values) if word == "..." else word.encode() for word in self.xadd.split()]

    def handshake_in_monitor(self) -> list[list[bytes]]:
        """The handshake as MONITOR shows it: servers hide the arguments of AUTH, but not their number."""
        commands = [[word.encode() for word in line.split()] for line in self.handshake]
        return [[words[0], *[b"(redacted)"] * len(words[1:])] if words[0] == b"AUTH" else words for words in commands]

    def server_config(self) -> dict[str, str]:
        """The directives of a server that accepts only the example's credentials for this user."""
        options = self.options
        match options.get("username"), options.get("password"):
            case None, None:
                return {}
            case None, password:
                return {"requirepass": str(password)}
            case username, password:
                return {"user": f"{username} on >{password} ~{options['stream_key']} -@all +xadd +xgroup +select"}


EXAMPLES = (
    Example(
        "quick example",
        '{"host": "redis", "stream_key": "order-events"}',
        "XADD order-events * payload ... ts ...",
    ),
    Example(
        "full configuration",
        """{
          "host": "redis.example.com",
          "port": 6380,
          "stream_key": "order-events",
          "db": 2,
          "username": "producer",
          "password": "secret",
          "connect_timeout": 10,
          "command_timeout": 30,
          "maxlen": 100000,
          "maxlen_approximate": true,
          "nomkstream": false,
          "consumer_group": "order-processors",
          "tls": true,
          "tls_ca_cert": "/etc/ssl/certs/redis-ca.pem",
          "tls_cert": "/etc/ssl/client/redis-cert.pem",
          "tls_key": "/etc/ssl/client/redis-key.pem"
        }""",
        "XADD order-events MAXLEN ~ 100000 * payload ... ts ...",
        ("AUTH producer secret", "SELECT 2", "XGROUP CREATE order-events order-processors $ MKSTREAM"),
    ),
    Example(
        "maxlen, approximate",
        '{"host": "redis", "stream_key": "events", "maxlen": 10000, "maxlen_approximate": true}',
        "XADD events MAXLEN ~ 10000 * payload ... ts ...",
    ),
    Example(
        "maxlen, exact",
        '{"host": "redis", "stream_key": "events", "maxlen": 10000, "maxlen_approximate": false}',
        "XADD events MAXLEN 10000 * payload ... ts ...",
    ),
    Example(
        "minid",
        '{"host": "redis", "stream_key": "events", "minid": 1713091234567}',
        "XADD events MINID ~ 1713091234567 * payload ... ts ...",
    ),
    Example(
        "nomkstream",
        '{"host": "redis", "stream_key": "events", "nomkstream": true}',
        "XADD events NOMKSTREAM * payload ... ts ...",
    ),
    Example(
        "username and password",
        """{
          "host": "redis.example.com",
          "stream_key": "events",
          "username": "ulak_producer",
          "password": "secret"
        }""",
        "XADD events * payload ... ts ...",
        ("AUTH ulak_producer secret",),
    ),
    Example(
        "password alone",
        '{"host": "redis.example.com", "stream_key": "events", "password": "requirepass-value"}',
        "XADD events * payload ... ts ...",
        ("AUTH requirepass-value",),
    ),
    Example(
        "tls",
        """{
          "host": "redis.example.com",
          "port": 6380,
          "stream_key": "events",
          "tls": true,
          "tls_ca_cert": "/etc/ssl/certs/redis-ca.pem"
        }""",
        "XADD events * payload ... ts ...",
    ),
    Example(
        "mutual tls",
        """{
          "host": "redis.example.com",
          "port": 6380,
          "stream_key": "events",
          "password": "secret",
          "tls": true,
          "tls_ca_cert": "/etc/ssl/certs/redis-ca.pem",
          "tls_cert": "/etc/ssl/client/redis-cert.pem",
          "tls_key": "/etc/ssl/client/redis-key.pem"
        }""",
        "XADD events * payload ... ts ...",
        ("AUTH secret",),
    ),
    Example(
        "consumer group",
        '{"host": "redis", "stream_key": "order-events", "consumer_group": "order-processors"}',
        "XADD order-events * payload ... ts ...",
        ("XGROUP CREATE order-events order-processors $ MKSTREAM",),
    ),
)
