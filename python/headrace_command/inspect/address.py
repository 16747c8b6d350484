"""Where redis-cli must connect to."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from headrace import Endpoint
    from headrace.admin import Commands

__all__ = ["Address", "address_of"]


class Address(NamedTuple):
    """A server, or one of the nodes of a cluster, from which redis-cli is redirected.

    Attributes:
        host: Its host; None for a Unix socket, or if no sentinel knows the master.
        port: Its port.
        is_cluster: Whether it is a node of a cluster, or may be one.
    """

    host: str | None
    port: int | None
    is_cluster: bool


def address_of(endpoint: Endpoint, commands: Commands) -> Address:
    """Return the address of the server. Asks the sentinels for it, or asks the server whether it is a cluster node.

    Args:
        endpoint: The endpoint.
        commands: Those of the endpoint.

    Raises:
        ConnectionFailedError: The server is unreachable.
    """
    if endpoint.unix_socket is not None:
        return Address(None, None, is_cluster=False)
    if endpoint.sentinel_master is not None:
        return _master(endpoint, endpoint.sentinel_master)
    if endpoint.nodes:
        return Address(*_split(str(endpoint.nodes[0])), is_cluster=True)
    is_cluster = endpoint.topology != "single" and _is_cluster(commands)
    return Address(endpoint.host, endpoint.port, is_cluster)


def _master(endpoint: Endpoint, name: str) -> Address:
    from headrace import ConnectionFailedError
    from headrace.admin import Commands

    words = [b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", name.encode()]
    for place in range(len(endpoint.nodes or ())):
        sentinel = Commands(endpoint, sentinel=place)
        try:
            (answer,) = sentinel.call([(None, words)], writes=False)
        except ConnectionFailedError:
            continue
        finally:
            sentinel.close()
        if isinstance(answer, list):
            host, port = (part.decode() for part in answer if isinstance(part, bytes))
            return Address(host, int(port), is_cluster=False)
    return Address(None, None, is_cluster=False)


def _is_cluster(commands: Commands) -> bool:
    """Whether the server reports that it is a node of a cluster; also true if the user may not ask."""
    (answer,) = commands.call([(None, [b"HELLO"])], writes=False)
    if not isinstance(answer, list):
        return True
    return dict(zip(answer[::2], answer[1::2], strict=True)).get(b"mode") == b"cluster"


def _split(node: str) -> tuple[str, int]:
    host, _, port = node.rpartition(":")
    return host.strip("[]"), int(port)
