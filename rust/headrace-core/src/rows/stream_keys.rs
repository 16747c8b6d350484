//! The stream that each row of a record batch goes to.

use super::bytes::span;
use super::column::{Column, Values};
use crate::shards::Shards;

/// The stream of a row that does not go to the endpoint's stream.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RowStream<'a> {
    /// The stream with this key.
    Key(&'a [u8]),
    /// The stream of the shard with this number.
    Shard(usize),
}

/// The stream keys of rows.
pub(super) enum StreamKeys<'a> {
    /// All rows go to the endpoint's stream.
    Endpoint,
    /// Rows name their streams; a row with a null goes to the endpoint's.
    Column(Column<'a>),
    /// Rows name their streams, given as offsets and bytes: no key is null or empty.
    Plain(&'a [i32], &'a [u8]),
    /// Rows go to the shards of a stream.
    Shards(ShardKeys<'a>),
}

impl<'a> StreamKeys<'a> {
    /// The stream keys in a column.
    pub(super) fn of_column(column: Column<'a>) -> Self {
        match column.plain() {
            Some((offsets, keys)) if offsets.windows(2).all(|pair| pair[0] < pair[1]) => Self::Plain(offsets, keys),
            Some(_) | None => Self::Column(column),
        }
    }

    /// The stream of a row; `None`: the endpoint's.
    #[inline]
    pub(super) fn stream(&self, row: usize) -> Option<RowStream<'a>> {
        match self {
            Self::Plain(offsets, keys) => Some(RowStream::Key(&keys[span(offsets, row)])),
            Self::Shards(keys) => Some(RowStream::Shard(keys.shard(row))),
            Self::Column(column) => column.bytes(row).map(RowStream::Key),
            Self::Endpoint => None,
        }
    }

    /// Whether each row has a valid stream key.
    pub(super) fn are_valid(&self) -> bool {
        match self {
            Self::Endpoint | Self::Plain(..) | Self::Shards(_) => true,
            Self::Column(_) => false,
        }
    }

    /// The stream key of a row; `None`: the endpoint's.
    #[inline]
    pub(super) fn get(&self, row: usize) -> Option<&'a [u8]> {
        match (self, self.stream(row)?) {
            (Self::Shards(keys), RowStream::Shard(shard)) => Some(keys.shards.key(shard)),
            (_, RowStream::Key(key)) => Some(key),
            (_, RowStream::Shard(_)) => None,
        }
    }

    /// Whether rows may belong to streams other than the endpoint's.
    #[inline]
    pub(super) fn are_own(&self) -> bool {
        !matches!(self, Self::Endpoint)
    }

    /// Whether this row names a stream with an empty key.
    pub(super) fn is_empty(&self, row: usize) -> bool {
        match self {
            Self::Endpoint | Self::Plain(..) | Self::Shards(_) => false,
            Self::Column(column) => column.bytes(row).is_some_and(<[u8]>::is_empty),
        }
    }
}

/// The keys that determine the shards of rows.
pub(super) struct ShardKeys<'a> {
    shards: &'a Shards,
    keys: Option<Column<'a>>,
    /// The number of the first row among the messages of its batch.
    first: u64,
}

impl<'a> ShardKeys<'a> {
    /// `keys`: text, bytes or integers; integers count as their decimal digits.
    pub(super) fn new(shards: &'a Shards, keys: Option<Column<'a>>, first: u64) -> Self {
        Self { shards, keys, first }
    }

    /// The number of a row's shard. A row without a key goes to the shard whose turn it is.
    #[inline(never)] // most rows go to a single stream
    fn shard(&self, row: usize) -> usize {
        let shard = self.keys.as_ref().and_then(|keys| with_key(keys, row, |key| self.shards.of_key(key)));
        shard.unwrap_or_else(|| self.shards.of_ordinal(self.first + row as u64))
    }
}

/// The result of `read` for the bytes of the key in a row; `None` for a null.
#[inline]
pub(super) fn with_key<T>(keys: &Column<'_>, row: usize, read: impl FnOnce(&[u8]) -> T) -> Option<T> {
    let (values, place) = keys.locate(row)?;
    let mut buffer = itoa::Buffer::new();
    let digits = match values {
        Values::Text(bytes) | Values::Binary(bytes) => return Some(read(bytes.get(place))),
        Values::I8(values) => buffer.format(values[place]),
        Values::I16(values) => buffer.format(values[place]),
        Values::I32(values) => buffer.format(values[place]),
        Values::I64(values) => buffer.format(values[place]),
        Values::U8(values) => buffer.format(values[place]),
        Values::U16(values) => buffer.format(values[place]),
        Values::U32(values) => buffer.format(values[place]),
        Values::U64(values) => buffer.format(values[place]),
        // A column of keys has no other type.
        _ => return None,
    };
    Some(read(digits.as_bytes()))
}
