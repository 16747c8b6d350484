"""Names of options and columns that do not exist here, and what each text suggests instead."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from headrace.errors import ConfigError

__all__ = ["ADVICE", "OTHER_NAMES", "hint", "listed", "refuse_unknown"]

#: The minimum likeness (0 to 1) between a name and an unknown one for a suggestion.
LIKENESS: Final = 0.7

#: The maximum number of column names that an error lists.
MAX_LISTED: Final = 20

#: Options of Spark's Kafka source and sink, of spark-redis and of redis-py, each with what to use here.
OTHER_NAMES: Final = {
    # Kafka
    "kafka.bootstrap.servers": "host and port, or url",
    "subscribe": "stream_key or stream_keys",
    "assign": "stream_key or stream_keys",
    "subscribePattern": "stream_pattern, a glob-style pattern",
    "topic": "stream_key",
    "startingOffsets": "starting",
    "startingTimestamp": "starting_timestamp",
    "startingOffsetsByTimestamp": "starting_timestamp",
    "startingOffsetsByTimestampStrategy": "starting_timestamp_past_end",
    "endingOffsets": "ending, which is included",
    "endingTimestamp": "ending_timestamp, which is included",
    "endingOffsetsByTimestamp": "ending_timestamp, which is included",
    "failOnDataLoss": "fail_on_data_loss",
    "maxOffsetsPerTrigger": "max_entries_per_trigger",
    "minOffsetsPerTrigger": "min_entries_per_trigger",
    "maxTriggerDelay": "max_trigger_delay, in seconds",
    "minPartitions": "min_partitions",
    "kafka.group.id": "commit_group, which only shows the lag",
    "groupIdPrefix": "commit_group, which only shows the lag",
    "kafkaConsumer.pollTimeoutMs": "command_timeout, in seconds",
    "kafka.security.protocol": "tls, with username and password_env",
    "kafka.sasl.jaas.config": "username and password_env",
    "kafka.ssl.truststore.location": "tls_ca_cert",
    "kafka.ssl.keystore.location": "tls_cert and tls_key",
    "kafka.acks": "wait_replicas",
    "kafka.enable.idempotence": "exactly_once",
    # spark-redis
    "spark.redis.host": "host",
    "spark.redis.port": "port",
    "spark.redis.user": "username",
    "spark.redis.auth": "password_env",
    "spark.redis.db": "db",
    "spark.redis.ssl": "tls",
    "spark.redis.timeout": "connect_timeout and command_timeout, in seconds",
    "user": "username",
    "auth": "password_env",
    "dbNum": "db",
    "timeout": "connect_timeout and command_timeout, in seconds",
    "ssl": "tls",
    "stream.keys": "stream_keys",
    "stream.offsets": "starting",
    "stream.parallelism": "min_partitions",
    "stream.group.name": "commit_group, which only shows the lag",
    "stream.read.batch.size": "page_bytes",
    "stream.read.block": "poll_interval, in seconds",
    "partitions.number": "min_partitions",
    "max.pipeline.size": "window_max_entries",
    # redis-py
    "unix_socket_path": "unix_socket",
    "socket_timeout": "command_timeout",
    "socket_connect_timeout": "connect_timeout",
    "retry_on_timeout": "retry",
    "ssl_ca_certs": "tls_ca_cert",
    "ssl_certfile": "tls_cert",
    "ssl_keyfile": "tls_key",
    "ssl_cert_reqs": "tls_insecure_skip_verify",
    "ssl_check_hostname": "tls_server_name, or tls_insecure_skip_verify",
    "startup_nodes": "nodes",
    "service_name": "sentinel_master",
    "groupname": "commit_group, which only shows the lag",
}

_HASHES: Final = "headrace reads and writes streams, not hashes; stream_key names the stream"
_GROUPLESS: Final = "entries are read without a group; the checkpoint holds the position"
_OF_QUERIES: Final = "it belongs to writeStream"

#: Options that have no counterpart, with the reason.
NO_COUNTERPART: Final = {
    # Spark
    "checkpointLocation": _OF_QUERIES,
    "queryName": _OF_QUERIES,
    # Kafka
    "includeHeaders": "the column fields has all fields of an entry",
    "maxRecordsPerPartition": "min_partitions sets the number of partitions",
    "fetchOffset.numRetries": "Spark retries a failed task",
    "fetchOffset.retryIntervalMs": "Spark retries a failed task",
    # spark-redis
    "stream.consumer.prefix": _GROUPLESS,
    "table": _HASHES,
    "key.column": _HASHES,
    "keys.pattern": "headrace reads streams, not hashes; stream_pattern selects streams by their keys",
    "model": _HASHES,
    "filter.keys.by.type": _HASHES,
    "iterator.grouping.size": _HASHES,
    "scan.count": _HASHES,
    "infer.schema": "streams have no types; .schema(...) gives them",
    "ttl": "entries have no lifetime; maxlen and minid trim the stream",
    # redis-py
    "decode_responses": "fields named by fields or a schema are text, and all others bytes",
    "consumername": _GROUPLESS,
    "max_connections": "each task has one connection to each server",
}

#: What to use instead of an option of another source, or why there is none.
ADVICE: Final = {name: f"here it is {here}" for name, here in OTHER_NAMES.items()} | NO_COUNTERPART


def refuse_unknown(
    given: Iterable[str],
    known: Collection[str],
    advice: Mapping[str, str] = ADVICE,
    *,
    listing: str = "headrace.spark.options()",
) -> None:
    """Raise if there are unknown names of options, and name all of them. Spark passes names in lower case.

    Args:
        given: The names.
        known: All names that are allowed.
        advice: What to say about a name, by its documented form.
        listing: The call that lists all options.

    Raises:
        ConfigError: At least one is unknown.
    """
    documented = {name.lower(): name for name in advice}
    unknown = [documented.get(name.lower(), name) for name in given if name not in known]
    if not unknown:
        return
    hints = [f": {advice[name]}" if name in advice else hint(name, known) for name in unknown]
    more = f"; {listing} lists all options"
    if len(unknown) == 1:
        text = f"unknown option {unknown[0]!r}{hints[0] or more}"
    else:
        shown = (f"{name!r} ({text[2:]})" if text else repr(name) for name, text in zip(unknown, hints, strict=True))
        text = f"unknown options {', '.join(shown)}{more}"
    raise ConfigError(text, option=unknown[0])


def hint(name: str, others: Iterable[str]) -> str:
    """Suggest the one of `others` most similar to `name`; empty if none is similar.

    Containing `name` counts more than letters in common.
    """
    wanted = name.lower()

    def likeness(other: str) -> float:
        is_part = len(wanted) > 2 and wanted in other.lower()
        return difflib.SequenceMatcher(None, other.lower(), wanted).ratio() + is_part

    near = max(others, key=likeness)
    return f"; did you mean {near!r}?" if likeness(near) >= LIKENESS else ""


def listed(columns: list[str]) -> str:
    """The names of columns, for errors."""
    more = len(columns) - MAX_LISTED
    return ", ".join(columns[:MAX_LISTED]) + (f" and {more} more" if more > 0 else "")
