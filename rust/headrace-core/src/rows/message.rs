//! A message that is given by itself, not as a row of a record batch.

use super::batch::Rows;
use super::entry_ids::EntryIds;
use super::given::Given;
use super::stream_keys::{RowStream, StreamKeys};
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

    /// The message as the only row of a batch. `payload_field`, `key_field`: the names of the fields of the payload and, if it is
    /// kept, of the key; `shard`: the number of its shard.
    pub(crate) fn rows(
        &self,
        payload_field: &'a str,
        key_field: Option<&'a str>,
        shard: Option<(&'a Shards, usize)>,
    ) -> Rows<'a> {
        let Self { payload, fields, stream_key, entry_id, key } = *self;
        let stream_keys = match (shard, stream_key) {
            (Some((shards, shard)), _) => StreamKeys::One(RowStream::Shard(shard), shards.key(shard)),
            (None, Some(key)) => StreamKeys::One(RowStream::Key(key), key),
            (None, None) => StreamKeys::Endpoint,
        };
        let payload = payload.map(|payload| (payload_field.as_bytes(), payload));
        let key = key_field.map(str::as_bytes).zip(key);
        let entry_ids = entry_id.map_or(EntryIds::Server, EntryIds::One);
        Rows::of_message(Given { payload, fields, key }).routed(stream_keys, entry_ids)
    }
}
