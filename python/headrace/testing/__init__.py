"""Local Redis or Valkey servers, for tests and experiments."""

from headrace.errors import LocalServerError
from headrace.testing.local_cluster import LocalCluster
from headrace.testing.local_sentinel import LocalSentinel
from headrace.testing.local_server import LocalServer, find_server

__all__ = ["LocalCluster", "LocalSentinel", "LocalServer", "LocalServerError", "find_server"]
