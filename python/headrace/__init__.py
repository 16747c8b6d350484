"""Carries Arrow record batches into Redis Streams, with a delivery outcome for every message, and out of them."""

import warnings

from headrace._headrace import __version__, debug_build
from headrace.consumer import Consumer, ConsumerBatch, ReadReport
from headrace.dead_letters import read_dead_letters
from headrace.dispatcher import Dispatcher
from headrace.endpoint import Endpoint, InsecureWarning
from headrace.errors import (
    ClosedError,
    CommandError,
    ConcurrentUseError,
    ConfigError,
    ConnectionFailedError,
    DataLossError,
    DeliveryError,
    FieldError,
    GroupMissingError,
    HeadraceError,
    InternalError,
    LeaseLostError,
    MessageError,
    ReaderError,
    SchemaError,
    StateError,
    StreamReplacedError,
)
from headrace.failure import Failure
from headrace.group import Group
from headrace.inspect import Inspection, inspect
from headrace.reader import ReadBatch, Reader
from headrace.report import DeliveryReport
from headrace.retry import RetryPolicy
from headrace.unpack import unpack, unpack_arrow

__all__ = [
    "ClosedError",
    "CommandError",
    "ConcurrentUseError",
    "ConfigError",
    "ConnectionFailedError",
    "Consumer",
    "ConsumerBatch",
    "DataLossError",
    "DeliveryError",
    "DeliveryReport",
    "Dispatcher",
    "Endpoint",
    "Failure",
    "FieldError",
    "Group",
    "GroupMissingError",
    "HeadraceError",
    "InsecureWarning",
    "Inspection",
    "InternalError",
    "LeaseLostError",
    "MessageError",
    "ReadBatch",
    "ReadReport",
    "Reader",
    "ReaderError",
    "RetryPolicy",
    "SchemaError",
    "StateError",
    "StreamReplacedError",
    "__version__",
    "inspect",
    "read_dead_letters",
    "unpack",
    "unpack_arrow",
]

if debug_build:
    warnings.warn("this is a debug build of headrace, many times slower than a release build", stacklevel=2)
