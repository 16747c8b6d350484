"""Bulk-load Redis Streams with messages and Arrow record batches, with a delivery outcome for every message."""

import warnings

from headrace._headrace import __version__, debug_build
from headrace.dispatcher import Dispatcher
from headrace.endpoint import Endpoint, InsecureWarning
from headrace.errors import (
    ClosedError,
    CommandError,
    ConcurrentUseError,
    ConfigError,
    ConnectionFailedError,
    DeliveryError,
    GroupMissingError,
    HeadraceError,
    InternalError,
    MessageError,
    ReaderError,
    SchemaError,
    StateError,
)
from headrace.failure import Failure
from headrace.group import Group
from headrace.inspect import Inspection, inspect
from headrace.report import DeliveryReport
from headrace.retry import RetryPolicy
from headrace.unpack import unpack, unpack_arrow

__all__ = [
    "ClosedError",
    "CommandError",
    "ConcurrentUseError",
    "ConfigError",
    "ConnectionFailedError",
    "DeliveryError",
    "DeliveryReport",
    "Dispatcher",
    "Endpoint",
    "Failure",
    "Group",
    "GroupMissingError",
    "HeadraceError",
    "InsecureWarning",
    "Inspection",
    "InternalError",
    "MessageError",
    "ReaderError",
    "RetryPolicy",
    "SchemaError",
    "StateError",
    "__version__",
    "inspect",
    "unpack",
    "unpack_arrow",
]

if debug_build:
    warnings.warn("this is a debug build of headrace, many times slower than a release build", stacklevel=2)
