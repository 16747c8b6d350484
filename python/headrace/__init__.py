"""Carries Arrow record batches into and out of Redis Streams, with a delivery outcome for every message.

Each name is imported on first use, so that a program pays only for the classes that it uses.
"""

from headrace._headrace import Delivered, Entry, __version__, debug_build

# Importing it from `typing` would take longer than all of this. Type checkers treat the name as true. Jedi reads the
# type before the value, and so completes the names below.
TYPE_CHECKING: bool = False

if TYPE_CHECKING:
    from headrace.async_consumer import AsyncConsumer
    from headrace.async_dispatcher import AsyncDispatcher
    from headrace.async_reader import AsyncReader
    from headrace.async_shard_consumer import AsyncShardConsumer
    from headrace.consumer import Consumer, ConsumerBatch
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
    from headrace.forgotten import ForgottenWarning
    from headrace.group import Group
    from headrace.inspection import Inspection, inspect
    from headrace.reader import ReadBatch, Reader
    from headrace.report import DeliveryReport
    from headrace.retry import RetryPolicy
    from headrace.shard_consumer import ShardBatch, ShardConsumer
    from headrace.stats import ReadReport, ShardReport
    from headrace.unpacking import unpack, unpack_arrow

__all__ = [
    "AsyncConsumer",
    "AsyncDispatcher",
    "AsyncReader",
    "AsyncShardConsumer",
    "ClosedError",
    "CommandError",
    "ConcurrentUseError",
    "ConfigError",
    "ConnectionFailedError",
    "Consumer",
    "ConsumerBatch",
    "DataLossError",
    "Delivered",
    "DeliveryError",
    "DeliveryReport",
    "Dispatcher",
    "Endpoint",
    "Entry",
    "Failure",
    "FieldError",
    "ForgottenWarning",
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
    "ShardBatch",
    "ShardConsumer",
    "ShardReport",
    "StateError",
    "StreamReplacedError",
    "__version__",
    "inspect",
    "read_dead_letters",
    "unpack",
    "unpack_arrow",
]

_MODULES = {
    "AsyncConsumer": "async_consumer",
    "AsyncDispatcher": "async_dispatcher",
    "AsyncReader": "async_reader",
    "AsyncShardConsumer": "async_shard_consumer",
    "Consumer": "consumer",
    "ConsumerBatch": "consumer",
    "DeliveryReport": "report",
    "Dispatcher": "dispatcher",
    "Endpoint": "endpoint",
    "Failure": "failure",
    "ForgottenWarning": "forgotten",
    "Group": "group",
    "InsecureWarning": "endpoint",
    "Inspection": "inspection",
    "ReadBatch": "reader",
    "ReadReport": "stats",
    "Reader": "reader",
    "RetryPolicy": "retry",
    "ShardBatch": "shard_consumer",
    "ShardConsumer": "shard_consumer",
    "ShardReport": "stats",
    "inspect": "inspection",
    "read_dead_letters": "dead_letters",
    "unpack": "unpacking",
    "unpack_arrow": "unpacking",
}

if debug_build:
    import warnings

    warnings.warn("this is a debug build of headrace, many times slower than a release build", stacklevel=2)


if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> object:
        if name not in __all__ and name != "errors":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        module = import_module(f"headrace.{_MODULES.get(name, 'errors')}")
        value = globals()[name] = module if name == "errors" else getattr(module, name)
        return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
