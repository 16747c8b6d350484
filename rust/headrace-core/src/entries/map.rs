//! All fields of an entry in one column: a map from names to values, or a list of them.

use std::sync::Arc;

use arrow_array::{Array as _, ArrayRef, ListArray, MapArray, StructArray};
use arrow_buffer::{NullBufferBuilder, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, Field, Fields};

use super::names::{Names, NamesAs};
use super::var_bytes::{VarBytes, defect};
use crate::error::Result;

/// The name of the column.
pub(crate) const FIELDS: &str = "fields";

/// The form of the column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum FieldsAs {
    /// `map<name, binary>`. The last of several equal names replaces the others.
    #[default]
    Map,
    /// `list<struct<name, value: binary>>`: all fields, in order.
    List,
}

/// The type of the column, and how its names are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct MapPlan {
    pub(crate) fields_as: FieldsAs,
    pub(crate) names_as: NamesAs,
}

impl MapPlan {
    /// The column as pyarrow's `map_` and `list_` describe it. A null row is a deleted entry.
    pub(crate) fn field(self) -> Field {
        let pair = DataType::Struct(self.pair());
        let data_type = match self.fields_as {
            FieldsAs::Map => DataType::Map(Arc::new(Field::new("entries", pair, false)), false),
            FieldsAs::List => DataType::List(Arc::new(Field::new_list_field(pair, true))),
        };
        Field::new(FIELDS, data_type, true)
    }

    fn pair(self) -> Fields {
        let name = match self.names_as {
            NamesAs::Utf8 => DataType::Utf8,
            NamesAs::Binary => DataType::Binary,
        };
        let (label, is_nullable) = match self.fields_as {
            FieldsAs::Map => ("key", false),
            FieldsAs::List => ("name", true),
        };
        let fields = [Field::new(label, name, is_nullable), Field::new("value", DataType::Binary, true)];
        Fields::from_iter(fields)
    }
}

/// Builds the column.
#[derive(Debug)]
pub(super) struct MapColumn {
    /// The column's name, for errors.
    name: &'static str,
    names_as: NamesAs,
    /// The type of the column, and the two fields of its pairs.
    data_type: DataType,
    pair: Fields,
    /// The end of each row's fields.
    offsets: Vec<i32>,
    valid: NullBufferBuilder,
    names: Names,
    keys: VarBytes,
    values: VarBytes,
    is_deleted: bool,
}

impl MapColumn {
    pub(super) fn new(name: &'static str, plan: MapPlan) -> Self {
        let names = Names::new(plan.names_as, plan.fields_as == FieldsAs::Map);
        let (keys, values) = (VarBytes::new(), VarBytes::new());
        let valid = NullBufferBuilder::new(0);
        let (data_type, pair) = (plan.field().data_type().clone(), plan.pair());
        let names_as = plan.names_as;
        Self { name, names_as, data_type, pair, offsets: vec![0], valid, names, keys, values, is_deleted: false }
    }

    pub(super) fn bytes(&self) -> usize {
        self.offsets.len() * size_of::<i32>() + self.keys.bytes() + self.values.bytes()
    }

    /// Starts a row. `fields`: as in [`EntrySink::entry`](crate::resp::stream_reply::EntrySink::entry).
    #[inline]
    pub(super) fn entry(&mut self, fields: Option<usize>) {
        self.is_deleted = fields.is_none();
    }

    #[inline]
    pub(super) fn field(&mut self, name: &[u8], value: &[u8]) {
        self.names.push(name);
        self.values.push(value);
    }

    /// Removes the fields of the row that was started last, as if it had not been started.
    pub(super) fn discard(&mut self) {
        self.names.discard();
        self.values.truncate(self.keys.count());
    }

    /// Appends rows of null.
    #[allow(clippy::cast_possible_wrap)] // as in `end`
    pub(super) fn push_nulls(&mut self, rows: usize) {
        self.valid.append_n_nulls(rows);
        self.offsets.extend(std::iter::repeat_n(self.keys.count() as i32, rows));
    }

    /// Completes the row.
    #[inline]
    #[allow(clippy::cast_possible_wrap)] // each key takes more than a byte of the memory that `EntryColumns` bounds
    pub(super) fn end(&mut self) {
        if self.is_deleted {
            self.valid.append_null();
        } else {
            self.valid.append_non_null();
            self.names.end();
            if !self.names.kept.is_empty() {
                self.values.retain_last(&self.names.kept);
            }
            self.keys.push_all(&self.names.written, &self.names.ends);
        }
        self.offsets.push(self.keys.count() as i32);
    }

    /// Finishes the column. Resets the builder.
    pub(super) fn finish(&mut self) -> Result<ArrayRef> {
        let values = self.values.take().finish_binary(self.name, None)?;
        let keys = match self.names_as {
            NamesAs::Utf8 => self.keys.take().finish_utf8(self.name, None)?,
            NamesAs::Binary => self.keys.take().finish_binary(self.name, None)?,
        };
        let mut next = Vec::with_capacity(self.offsets.len());
        next.push(0);
        let offsets = OffsetBuffer::new(ScalarBuffer::from(std::mem::replace(&mut self.offsets, next)));
        let valid = self.valid.finish();
        let pairs =
            StructArray::try_new(self.pair.clone(), vec![keys, values], None).map_err(|error| defect(&error))?;
        let array: ArrayRef = match &self.data_type {
            DataType::Map(entries, is_sorted) => Arc::new(
                MapArray::try_new(Arc::clone(entries), offsets, pairs, valid, *is_sorted)
                    .map_err(|error| defect(&error))?,
            ),
            DataType::List(item) => Arc::new(
                ListArray::try_new(Arc::clone(item), offsets, Arc::new(pairs), valid)
                    .map_err(|error| defect(&error))?,
            ),
            _ => unreachable!("the column is a map or a list"),
        };
        debug_assert_eq!(*array.data_type(), self.data_type);
        Ok(array)
    }
}
