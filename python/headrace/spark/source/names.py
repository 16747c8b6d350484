"""The names of other sources for the options of this one, in lower case as Spark passes them."""

from __future__ import annotations

from typing import Final

__all__ = ["OTHER_NAMES"]

#: Those of Spark's Kafka source and of spark-redis, each with what to use here.
OTHER_NAMES: Final = {
    "subscribe": "stream_keys",
    "assign": "stream_keys",
    "subscribepattern": "stream_pattern",
    "kafka.bootstrap.servers": "host and port",
    "startingoffsets": "starting",
    "startingtimestamp": "starting_timestamp",
    "startingoffsetsbytimestamp": "starting_timestamp",
    "startingoffsetsbytimestampstrategy": "starting_timestamp_past_end",
    "endingoffsets": "ending",
    "endingtimestamp": "ending_timestamp",
    "endingoffsetsbytimestamp": "ending_timestamp",
    "failondataloss": "fail_on_data_loss",
    "maxoffsetspertrigger": "max_entries_per_trigger",
    "minoffsetspertrigger": "min_entries_per_trigger",
    "maxtriggerdelay": "max_trigger_delay, in seconds",
    "kafka.group.id": "commit_group, which only shows the lag",
    "groupidprefix": "commit_group, which only shows the lag",
    "minpartitions": "min_partitions",
    "kafkaconsumer.polltimeoutms": "command_timeout, in seconds",
    "stream.keys": "stream_keys",
    "stream.offsets": "starting",
    "stream.parallelism": "min_partitions",
    "stream.group.name": "commit_group, which only shows the lag",
    "stream.consumer.prefix": "none, since entries are read without a group",
    "stream.read.batch.size": "page_bytes",
    "stream.read.block": "poll_interval",
    "user": "username",
    "auth": "password_env",
    "timeout": "connect_timeout and command_timeout, in seconds",
    "dbnum": "db",
    "ssl": "tls",
}
