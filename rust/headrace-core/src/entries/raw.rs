//! The fields of entries that do not fit their columns, kept in a separate column.

use arrow_array::ArrayRef;
use arrow_schema::Field;

use super::map::{MapColumn, MapPlan};
use crate::error::Result;

/// The name of the column, among those of the metadata.
pub(crate) const RAW: &str = "raw";

/// The column of whole entries: null for those that fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RawPlan {
    /// The number of metadata columns before this one.
    pub(crate) place: usize,
    pub(crate) name: String,
    pub(crate) map: MapPlan,
}

impl RawPlan {
    pub(super) fn field(&self) -> Field {
        self.map.field().with_name(&self.name)
    }
}

/// Builds the column of whole entries.
///
/// Whether an entry fits is known only after its last field, and its fields are passed on only once. They are therefore always
/// stored, and removed again if they are not needed.
#[derive(Debug)]
pub(super) struct RawColumn {
    place: usize,
    map: MapColumn,
}

impl RawColumn {
    pub(super) fn new(plan: &RawPlan) -> Self {
        Self { place: plan.place, map: MapColumn::new(RAW, plan.map) }
    }

    pub(super) fn bytes(&self) -> usize {
        self.map.bytes()
    }

    pub(super) fn entry(&mut self, fields: Option<usize>) {
        self.map.entry(fields);
    }

    pub(super) fn field(&mut self, name: &[u8], value: &[u8]) {
        self.map.field(name, value);
    }

    /// Completes an entry that became `rows` rows. If it does not fit, the first of these rows holds its fields: only once,
    /// because an entry may have any number of rows.
    pub(super) fn end(&mut self, rows: usize, fits: bool) {
        let is_kept = rows > 0 && !fits;
        if is_kept {
            self.map.end();
        } else {
            self.map.discard();
        }
        self.map.push_nulls(rows - usize::from(is_kept));
    }

    /// Inserts the column among the metadata columns. Resets the builder.
    pub(super) fn finish(&mut self, columns: &mut Vec<ArrayRef>) -> Result<()> {
        columns.insert(self.place, self.map.finish()?);
        Ok(())
    }
}
