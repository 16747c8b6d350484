//! The options of a stream.

use super::option::OptionDefault::Text;
use super::option::{Takes, option, option_table};
use crate::shards::{MAX_SHARDS, ShardHash, ShardNames};

option_table! {
    /// Options of the stream.
    pub STREAM_OPTIONS:

    /// Key of the stream, required: the key of [XADD](https://redis.io/docs/latest/commands/xadd/). Text is sent as UTF-8.
    stream_key => option(Takes::TextOrBytes);
    /// Consumer group to create at each connect if none of that name exists, beginning with new entries:
    /// [XGROUP CREATE](https://redis.io/docs/latest/commands/xgroup-create/) `key group $ MKSTREAM`. This creates the stream
    /// even with `nomkstream`.
    consumer_group => option(Takes::TextOrBytes);
    /// Number of streams that messages are spread over, for the nodes of a cluster: the *shards* `stream_key:0`, `stream_key:1`
    /// and so on. Messages with equal keys go to the same one. The number can never change: see [shards](cluster.md#shards). By
    /// default there is one stream, with the key itself.
    shards => option(Takes::Integer { min: 1, max: MAX_SHARDS });
    /// How the shard of a key is determined: by `murmur2` as in Kafka's Java client, or by `crc32` as in librdkafka. Needs
    /// `shards`.
    shard_hash => option(Takes::Choice(&ShardHash::NAMES)).or(Text(ShardHash::NAMES[0]));
    /// How shards are named: `plain` is `stream_key:0` and so on; `spread` is `stream_key:{tag}` with tags that divide the slots
    /// of a cluster evenly. Needs `shards`.
    shard_names => option(Takes::Choice(&ShardNames::NAMES)).or(Text(ShardNames::NAMES[0]));
    /// Name of the field in which an entry keeps the key that determined its shard, so that readers know it: the argument `key`,
    /// or the column `shard_key`. Messages without a key do not have it. Needs `shards`. By default keys are not kept.
    key_field => option(Takes::Text);
}
