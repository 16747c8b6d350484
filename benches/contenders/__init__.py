"""The contenders: each sends the same rows to one stream in its own way, and ends with the last reply.

Each has one file. Only a worker imports them; the driver knows only this list.
"""

from __future__ import annotations

from benches.turns import Contender

_HERE = "benches.contenders"

FLOOR = Contender("floor: prepared bytes", f"{_HERE}.floor:prepare")
PRODUCE_BATCH = Contender("headrace produce_batch", f"{_HERE}.headrace_:produce_batch")
TRIM_EVERY_100 = Contender(
    "headrace produce_batch, trim_every=100",
    f"{_HERE}.headrace_:produce_batch",
    {"endpoint_options": {"trim_every": 100}},
)
PRODUCE = Contender("headrace produce, ordinals", f"{_HERE}.headrace_:produce")
PRODUCE_IDS = Contender("headrace produce, int IDs", f"{_HERE}.headrace_:produce", {"message_ids": True})
BY_HAND = Contender("hiredis and a socket by hand", f"{_HERE}.hiredis_by_hand:prepare")
BY_HAND_AHEAD = Contender("hiredis by hand, a pipeline ahead", f"{_HERE}.hiredis_by_hand:prepare", {"ahead": True})
REDIS_PY = Contender("redis-py with hiredis", f"{_HERE}.redis_py:with_hiredis", max_rows=100_000)
REDIS_PY_PLAIN = Contender("redis-py without hiredis", f"{_HERE}.redis_py:without_hiredis", max_rows=100_000)
GLIDE = Contender("valkey-glide-sync", f"{_HERE}.glide:prepare", max_rows=100_000)
COREDIS = Contender("coredis", f"{_HERE}.coredis_:prepare", max_rows=50_000)

#: For the streams of `benches.contenders.streams`, on a cluster.
CLUSTER_FLOOR = Contender("floor: prepared bytes to each master", f"{_HERE}.cluster_floor:prepare")
STREAMS_OF_CLUSTER = Contender(
    "headrace produce_batch, stream_key=",
    f"{_HERE}.headrace_:produce_streams",
    {"endpoint_options": {"topology": "cluster"}},
)
SHARDS_OF_CLUSTER = Contender(
    "headrace produce_batch, shard_key=",
    f"{_HERE}.headrace_:produce_shards",
    {"endpoint_options": {"topology": "cluster"}},
)
REDIS_RS_CLUSTER = Contender("redis-rs, cluster_pipe", f"{_HERE}.redis_rs_cluster:prepare", max_rows=500_000)
REDIS_PY_CLUSTER = Contender(
    "redis-py with hiredis, RedisCluster", f"{_HERE}.redis_py_cluster:prepare", max_rows=50_000
)

OURS = (PRODUCE_BATCH, TRIM_EVERY_100, PRODUCE_IDS, PRODUCE)
CONTENDERS = (FLOOR, *OURS, BY_HAND, BY_HAND_AHEAD, REDIS_PY, REDIS_PY_PLAIN, GLIDE, COREDIS)
