//! The field that keeps the key of a row's shard.

use super::column::Column;
use super::line::Line;
use super::stream_keys::with_key;

/// The field that keeps the key of each row's shard. A row without a key does not have it.
pub(super) struct KeptKey<'a> {
    pub(super) name: &'a str,
    /// Text, bytes or integers.
    pub(super) keys: Column<'a>,
}

impl KeptKey<'_> {
    /// Whether this row has a key.
    pub(super) fn is_in(&self, row: usize) -> bool {
        self.keys.locate(row).is_some()
    }

    /// Appends the field of a row.
    pub(super) fn write(&self, row: usize, line: &mut Line<'_>) {
        let write = |key: &[u8]| {
            line.push_bulk(self.name.as_bytes());
            line.push_bulk(key);
            line.flush();
        };
        let _ = with_key(&self.keys, row, write);
    }
}
