"""A local Redis or Valkey server, for tests and experiments."""

from headrace.errors import LocalServerError
from headrace.testing.local_server import LocalServer, find_server

__all__ = ["LocalServer", "LocalServerError", "find_server"]
