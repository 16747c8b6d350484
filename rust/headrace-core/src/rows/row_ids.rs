//! The message IDs of rows that are encoded.

use super::ids::{CallerId, IdColumn};

/// The message ID of each row.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RowIds<'a> {
    /// Reports name rows by their ordinals.
    Ordinals,
    Column(&'a IdColumn),
    /// The ID of the only row.
    One(CallerId<'a>),
}

impl<'a> RowIds<'a> {
    /// The message ID of a row; `None`: its ordinal.
    pub(crate) fn get(self, row: usize) -> Option<CallerId<'a>> {
        match self {
            Self::Ordinals => None,
            Self::Column(ids) => ids.get(row),
            Self::One(id) => Some(id),
        }
    }
}

impl<'a> From<Option<&'a IdColumn>> for RowIds<'a> {
    fn from(ids: Option<&'a IdColumn>) -> Self {
        ids.map_or(Self::Ordinals, Self::Column)
    }
}

impl<'a> From<Option<CallerId<'a>>> for RowIds<'a> {
    fn from(id: Option<CallerId<'a>>) -> Self {
        id.map_or(Self::Ordinals, Self::One)
    }
}
