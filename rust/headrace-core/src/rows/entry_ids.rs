//! The entry IDs of rows.

use super::column::Column;

/// The entry ID that each row asks for.
pub(super) enum EntryIds<'a> {
    /// The server chooses them.
    Server,
    /// Rows have their own; for a row with a null, the server chooses it.
    Column(Column<'a>),
    /// The only row has this one.
    One(&'a [u8]),
}

impl<'a> EntryIds<'a> {
    /// Whether rows may have entry IDs of their own.
    #[inline]
    pub(super) fn are_own(&self) -> bool {
        !matches!(self, Self::Server)
    }

    /// The entry ID of a row; `None`: chosen by the server.
    #[inline]
    pub(super) fn get(&self, row: usize) -> Option<&'a [u8]> {
        if self.are_own() { self.own(row) } else { None }
    }

    #[inline(never)] // most rows have none
    fn own(&self, row: usize) -> Option<&'a [u8]> {
        match self {
            Self::Server => None,
            Self::Column(column) => column.bytes(row),
            Self::One(id) => Some(id),
        }
    }
}
