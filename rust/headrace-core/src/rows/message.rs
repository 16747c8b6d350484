//! A message that is given by itself, not as a row of a record batch.

use super::batch::Rows;
use super::entry_ids::EntryIds;
use super::given::Given;
use super::stream_keys::{ShardKeys, StreamKeys};
use super::value::Value;
use crate::shards::Shards;

/// One message: a payload, fields, or both.
#[derive(Debug, Clone, Copy, Default)]
pub struct Message<'a> {
    /// The payload, whose field comes first.
    pub payload: Option<&'a [u8]>,
    /// The other fields, names and values, in this order. Without any field the message fails: `EMPTY`.
    pub fields: &'a [(&'a [u8], Value<'a>)],
    /// The stream key; `None`: the endpoint's. An empty one fails: `BAD_STREAM_KEY`.
    pub stream_key: Option<&'a [u8]>,
    /// The entry ID, `ms`, `ms-seq`, `ms-*` or `*`; `None`: the server chooses it. Anything else fails: `BAD_ENTRY_ID`.
    pub entry_id: Option<&'a [u8]>,
    /// The key that determines the shard; `None`: shards take turns. Only with shards.
    pub key: Option<&'a [u8]>,
}

impl<'a> Message<'a> {
    /// A message that is a payload alone.
    pub fn new(payload: &'a [u8]) -> Self {
        Self { payload: Some(payload), ..Self::default() }
    }

    /// The ends of the stream key, as a column has them.
    pub(crate) fn key_ends(&self) -> [i32; 2] {
        // A server takes no key that is longer.
        [0, self.stream_key.map_or(0, |key| i32::try_from(key.len()).unwrap_or(i32::MAX))]
    }

    /// The message as the only row of a batch. `payload_field`, `key_field`: the names of the fields of the payload and, if it is
    /// kept, of the key; `shard`: the number of its shard; `key_ends`: [`Message::key_ends`].
    pub(crate) fn rows(
        &self,
        payload_field: &'a str,
        key_field: Option<&'a str>,
        shard: Option<(&'a Shards, usize)>,
        key_ends: &'a [i32; 2],
    ) -> Rows<'a> {
        let Self { payload, fields, stream_key, entry_id, key } = *self;
        let stream_keys = match (shard, stream_key) {
            // Without a key, the number of the row is that of its shard.
            (Some((shards, shard)), _) => StreamKeys::Shards(ShardKeys::new(shards, None, shard as u64)),
            (None, Some(key)) => StreamKeys::Plain(key_ends, key),
            (None, None) => StreamKeys::Endpoint,
        };
        let given = Given {
            payload: payload.map(|payload| (payload_field.as_bytes(), payload)),
            fields,
            key: key_field.map(str::as_bytes).zip(key),
            has_no_stream: stream_key.is_some_and(<[u8]>::is_empty),
        };
        Rows::of_message(given).routed(stream_keys, entry_id.map_or(EntryIds::Server, EntryIds::One))
    }
}
