//! The options of a stream.

use super::option::{Takes, option, option_table};

option_table! {
    /// Options of the stream.
    pub STREAM_OPTIONS:

    /// Key of the stream, required: the key of [XADD](https://redis.io/docs/latest/commands/xadd/). Text is sent as UTF-8.
    stream_key => option(Takes::TextOrBytes);
    /// Consumer group to create at each connect if there is none of that name, from new entries on:
    /// [XGROUP CREATE](https://redis.io/docs/latest/commands/xgroup-create/) `key group $ MKSTREAM`. It creates the stream
    /// even with `nomkstream`.
    consumer_group => option(Takes::TextOrBytes);
}
