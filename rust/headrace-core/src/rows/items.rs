//! Rows whose fields are the items of a map, or of a list of names and values.

use std::ops::Range;

use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_buffer::NullBuffer;

use super::column::{Column, Spans};
use super::line::Line;
use super::shape::Shape;
use crate::error::{Fault, code};
use crate::resp::write_bulk;

/// The items of each row: names and values of any bytes. Items with a null value are not fields.
pub(super) struct Items<'a> {
    column: &'a str,
    /// The rows that are null; their spans have no meaning.
    nulls: Option<&'a NullBuffer>,
    spans: Spans<'a>,
    /// The items of a list that are null; their names and values have no meaning.
    hidden: Option<&'a NullBuffer>,
    names: Column<'a>,
    values: Column<'a>,
}

impl<'a> Items<'a> {
    /// Resolves an array; `None` if `shape` does not fit its type. `column` is its name.
    pub(super) fn new(array: &'a dyn Array, shape: &'a Shape, column: &'a str) -> Option<Self> {
        let Shape::Items(shapes) = shape else { return None };
        let [(name_at, name), (value_at, value)] = &**shapes;
        let (spans, items) = if let Some(map) = array.as_map_opt() {
            (Spans::Small(map.value_offsets()), map.entries())
        } else {
            let (spans, items) = Spans::of_list(array)?;
            (spans, items.as_struct_opt()?)
        };
        let member = |at: &usize, shape| Column::new(items.columns().get(*at)?, shape, None);
        Some(Self {
            column,
            nulls: array.nulls(),
            spans,
            hidden: items.nulls().filter(|nulls| nulls.null_count() > 0),
            names: member(name_at, name)?,
            values: member(value_at, value)?,
        })
    }

    fn is_null(&self, row: usize) -> bool {
        self.nulls.is_some_and(|nulls| nulls.is_null(row))
    }

    fn span(&self, row: usize) -> Range<usize> {
        if self.is_null(row) { 0..0 } else { self.spans.get(row) }
    }

    /// The fields of a row, each with its value and, unless that is null, its name.
    fn fields(&self, row: usize) -> impl Iterator<Item = (Option<&'a [u8]>, &'a [u8])> {
        let is_there = |item: &usize| self.hidden.is_none_or(|nulls| nulls.is_valid(*item));
        self.span(row).filter(is_there).filter_map(|item| Some((self.names.bytes(item), self.values.bytes(item)?)))
    }

    /// The number of fields of a row (at least one), or the fault of a row that cannot be sent: `EMPTY`, `BAD_VALUE`.
    pub(super) fn count(&self, row: usize) -> Result<usize, Fault> {
        let has_nulls = self.hidden.is_some() || !self.names.is_never_null() || !self.values.is_never_null();
        let count = if has_nulls { self.count_named(row)? } else { self.span(row).len() };
        if count > 0 {
            return Ok(count);
        }
        let why = match (self.is_null(row), self.span(row).is_empty()) {
            (true, _) => "the fields of the row are null",
            (false, true) => "the row has no fields",
            (false, false) => "every field of the row is null",
        };
        Err(Fault::new(code::EMPTY, format!("column {:?}: {why}", self.column)))
    }

    fn count_named(&self, row: usize) -> Result<usize, Fault> {
        if self.fields(row).any(|(name, _)| name.is_none()) {
            let message = format!("column {:?}: the name of a field is null, but its value is not", self.column);
            return Err(Fault::new(code::BAD_VALUE, message));
        }
        Ok(self.fields(row).count())
    }

    /// Whether the row has a field of this name.
    pub(super) fn has_name(&self, row: usize, name: &str) -> bool {
        self.fields(row).any(|(its, _)| its == Some(name.as_bytes()))
    }

    /// Appends each field of a row as two bulk strings.
    #[inline(never)] // keeps it out of the code for other kinds of rows
    pub(super) fn write_fields(&self, row: usize, line: &mut Line<'_>) {
        for (name, value) in self.fields(row) {
            line.push_bulk(name.unwrap_or_default());
            line.push_bulk(value);
        }
        line.flush();
    }

    /// Appends the names of a row's fields as bulk strings.
    pub(super) fn write_names(&self, row: usize, out: &mut Vec<u8>) {
        self.fields(row).for_each(|(name, _)| write_bulk(out, name.unwrap_or_default()));
    }

    /// Appends the values of a row's fields as bulk strings.
    pub(super) fn write_values(&self, row: usize, out: &mut Vec<u8>) {
        self.fields(row).for_each(|(_, value)| write_bulk(out, value));
    }
}
