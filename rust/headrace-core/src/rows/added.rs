//! The fields that are added to those of a row: the same ones for every row, and the key of its shard.

use super::column::Column;
use super::line::Line;
use super::stream_keys::with_key;
use crate::resp::write_bulk;

/// The fields that are added to those of each row, in this order.
pub(super) struct Added<'a> {
    pub(super) constants: &'a Constants,
    pub(super) key: Option<KeptKey<'a>>,
}

impl Added<'_> {
    pub(super) fn is_empty(&self) -> bool {
        self.constants.count() == 0 && self.key.is_none()
    }

    /// The number of fields that are added to every row; `None`: rows differ.
    pub(super) fn count_of_every_row(&self) -> Option<usize> {
        let of_key = match &self.key {
            None => Some(0),
            Some(key) => key.keys.is_never_null().then_some(1),
        };
        of_key.map(|count| count + self.constants.count())
    }

    /// The number of fields that are added to this row.
    pub(super) fn count(&self, row: usize) -> usize {
        self.constants.count() + usize::from(self.key.as_ref().is_some_and(|key| key.is_in(row)))
    }

    /// Appends the key of a row.
    pub(super) fn write_key(&self, row: usize, line: &mut Line<'_>) {
        if let Some(key) = &self.key {
            key.write(row, line);
        }
    }
}

/// Fields that are the same for every row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Constants {
    names: Vec<String>,
    /// Names and values, as bulk strings.
    bulk: Vec<u8>,
}

impl Constants {
    pub(crate) fn new(fields: &[(String, String)]) -> Self {
        let mut bulk = Vec::new();
        for text in fields.iter().flat_map(|(name, value)| [name, value]) {
            write_bulk(&mut bulk, text.as_bytes());
        }
        Self { names: fields.iter().map(|(name, _)| name.clone()).collect(), bulk }
    }

    pub(crate) fn count(&self) -> usize {
        self.names.len()
    }

    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// Names and values, as bulk strings.
    pub(crate) fn bulk(&self) -> &[u8] {
        &self.bulk
    }
}

/// The field that keeps the key of each row's shard. A row without a key does not have it.
pub(super) struct KeptKey<'a> {
    pub(super) name: &'a str,
    /// Text, bytes or integers.
    pub(super) keys: Column<'a>,
}

impl KeptKey<'_> {
    /// Whether this row has a key.
    fn is_in(&self, row: usize) -> bool {
        self.keys.locate(row).is_some()
    }

    /// Appends the field of a row.
    fn write(&self, row: usize, line: &mut Line<'_>) {
        let write = |key: &[u8]| {
            line.push_bulk(self.name.as_bytes());
            line.push_bulk(key);
            line.flush();
        };
        let _ = with_key(&self.keys, row, write);
    }
}
