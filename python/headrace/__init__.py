"""Bulk-load Redis Streams with messages and Arrow record batches, with a delivery outcome for every message."""

import warnings

from headrace._headrace import __version__, debug_build
from headrace.dispatcher import Dispatcher
from headrace.endpoint import Endpoint, InsecureWarning
from headrace.errors import (
    ClosedError,
    ConcurrentUseError,
    ConfigError,
    ConnectionFailedError,
    DeliveryError,
    HeadraceError,
    InternalError,
    MessageError,
    ReaderError,
    SchemaError,
    StateError,
)
from headrace.failure import Failure
from headrace.report import DeliveryReport
from headrace.retry import RetryPolicy
from headrace.unpack import unpack, unpack_arrow

__all__ = [
    "ClosedError",
    "ConcurrentUseError",
    "ConfigError",
    "ConnectionFailedError",
    "DeliveryError",
    "DeliveryReport",
    "Dispatcher",
    "Endpoint",
    "Failure",
    "HeadraceError",
    "InsecureWarning",
    "InternalError",
    "MessageError",
    "ReaderError",
    "RetryPolicy",
    "SchemaError",
    "StateError",
    "__version__",
    "unpack",
    "unpack_arrow",
]

if debug_build:
    warnings.warn("this is a debug build of headrace, many times slower than a release build", stacklevel=2)
