//! The field that keeps the key of a row's shard.

use super::column::Column;
use super::line::{Line, Piece};

/// The field that keeps the key of each row's shard. A row without a key does not have it.
pub(super) struct KeptKey<'a> {
    pub(super) name: &'a str,
    /// The [start](Line::field_start) of the field, and the keys.
    pub(super) field: (Piece<'a>, Column<'a>),
}

/// The name of the field, and its start.
#[derive(Debug)]
pub(super) struct KeyField {
    name: String,
    start: Vec<u8>,
}

impl KeyField {
    pub(super) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), start: Line::field_start(name) }
    }

    pub(super) fn bind<'a>(&'a self, keys: Column<'a>) -> KeptKey<'a> {
        KeptKey { name: &self.name, field: (Piece::new(&self.start), keys) }
    }
}

impl KeptKey<'_> {
    /// Whether this row has a key.
    pub(super) fn is_in(&self, row: usize) -> bool {
        self.field.1.locate(row).is_some()
    }
}
