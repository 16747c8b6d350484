//! The rows of a batch as Python objects, which are made only when they are asked for.

use std::ops::Range;
use std::sync::OnceLock;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BinaryArray, RecordBatch, StringArray};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use headrace_core::{ConsumerBatch, EntryId, FieldsAt, ReadBatch, ShardBatch};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

use crate::named_column::{self, NamedColumn};
use crate::names::Names;
use crate::shown;

/// The maximum number of characters of a value in a repr.
const MAX_VALUE: usize = 60;

/// The batch that the rows are of.
pub(crate) enum Source {
    Read(ReadBatch),
    Consumed(ConsumerBatch),
    Owned(ShardBatch),
}

/// The rows of a batch.
pub(crate) struct EntryRows {
    source: Source,
    fields: Fields,
    columns: OnceLock<Vec<NamedColumn>>,
}

/// Where the fields of entries are.
#[allow(clippy::large_enum_variant)] // a batch has one
enum Fields {
    All(AllFields),
    /// In the columns with these indexes.
    Columns(Vec<usize>),
}

impl EntryRows {
    pub(crate) fn new(source: Source) -> PyResult<Self> {
        let (batch, fields_at) = match &source {
            Source::Read(batch) => (batch.record_batch(), batch.fields_at()),
            Source::Consumed(batch) => (batch.record_batch(), batch.fields_at()),
            Source::Owned(batch) => (batch.entries().record_batch(), batch.entries().fields_at()),
        };
        let fields = match fields_at {
            FieldsAt::Column(index) => Fields::All(AllFields::new(batch.column(*index))?),
            FieldsAt::Columns(indexes) => Fields::Columns(indexes.clone()),
        };
        Ok(Self { source, fields, columns: OnceLock::new() })
    }

    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    fn batch(&self) -> &RecordBatch {
        match &self.source {
            Source::Read(batch) => batch.record_batch(),
            Source::Consumed(batch) => batch.record_batch(),
            Source::Owned(batch) => batch.entries().record_batch(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.batch().num_rows()
    }

    pub(crate) fn stream(&self) -> &[u8] {
        match &self.source {
            Source::Read(batch) => batch.stream(),
            Source::Consumed(batch) => batch.stream(),
            Source::Owned(batch) => batch.entries().stream(),
        }
    }

    pub(crate) fn id(&self, row: usize) -> EntryId {
        let id = match &self.source {
            Source::Read(batch) => batch.id(row),
            Source::Consumed(batch) => batch.ids().get(row).copied(),
            Source::Owned(batch) => batch.entries().id(row),
        };
        id.unwrap_or_default()
    }

    /// All columns, those of the metadata too.
    fn columns(&self, py: Python<'_>) -> &[NamedColumn] {
        if let Some(columns) = self.columns.get() {
            return columns;
        }
        // Not within the lock: an import may release the GIL, and a thread that has it may wait for the lock.
        let columns = NamedColumn::of_batch(py, self.batch(), 0);
        self.columns.get_or_init(|| columns)
    }

    /// A dict for each row, with the values of all columns.
    pub(crate) fn to_pylist<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, named_column::dicts(py, self.columns(py), self.len())?)
    }

    /// The names and values of the fields of a row, in order.
    pub(crate) fn items<'py>(
        &self,
        py: Python<'py>,
        row: usize,
    ) -> PyResult<Vec<(Bound<'py, PyAny>, Bound<'py, PyAny>)>> {
        match &self.fields {
            Fields::All(all) => Ok(all.places(row).map(|at| (all.name(py, at), all.value(py, at))).collect()),
            Fields::Columns(indexes) => {
                let columns = self.columns(py);
                let item = |index: &usize| {
                    let column = &columns[*index];
                    Ok((column.name.bind(py).clone().into_any(), column.get(py, row)?))
                };
                indexes.iter().map(item).collect()
            }
        }
    }

    /// The value of a field of a row, the last of several of the name; `None`: there is no such field.
    pub(crate) fn value<'py>(&self, row: usize, name: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = name.py();
        match &self.fields {
            Fields::All(all) => {
                let bytes = match &all.names {
                    NameArray::Text(_) => text_of(name)?.as_bytes(),
                    NameArray::Binary(_) => name.cast::<PyBytes>().map_err(|_| wrong_name("bytes", name))?.as_bytes(),
                };
                let found = all.places(row).rev().find(|at| all.name_bytes(*at) == bytes);
                Ok(found.map(|at| all.value(py, at)))
            }
            Fields::Columns(indexes) => {
                let text = text_of(name)?;
                let schema = self.batch().schema_ref();
                let found = indexes.iter().find(|index| schema.field(**index).name() == text);
                found.map(|index| self.columns(py)[*index].get(py, row)).transpose()
            }
        }
    }

    /// The names of the first `most` fields of a row, and the beginnings of their values, as Python shows them; in a table
    /// objects without their types, and None as nothing.
    pub(crate) fn shown(
        &self,
        py: Python<'_>,
        row: usize,
        most: usize,
        in_table: bool,
    ) -> PyResult<Vec<(String, String)>> {
        match &self.fields {
            Fields::All(all) => all
                .places(row)
                .take(most)
                .map(|at| {
                    let name = all.name(py, at);
                    let name = name.cast::<PyString>().map_or_else(|_| shown::repr(&name), ToString::to_string);
                    let (start, rest) = match all.value_bytes(at) {
                        None => return Ok((name, shown_value(&py.None().into_bound(py), in_table)?)),
                        Some(value) => value.split_at(value.len().min(MAX_VALUE)),
                    };
                    let more = if rest.is_empty() { "" } else { "…" };
                    Ok((name, format!("{}{more}", PyBytes::new(py, start).repr()?)))
                })
                .collect(),
            Fields::Columns(indexes) => {
                let columns = self.columns(py);
                let shown = |index: &usize| {
                    let column = &columns[*index];
                    // A value that Python does not have must not hide the others.
                    let value = column.get(py, row).and_then(|value| shown_value(&value, in_table));
                    let value = value.unwrap_or_else(|_| "?".to_owned());
                    let short: String = value.chars().take(MAX_VALUE).collect();
                    let more = if short.len() < value.len() { "…" } else { "" };
                    (column.name.bind(py).to_string(), format!("{short}{more}"))
                };
                Ok(indexes.iter().take(most).map(shown).collect())
            }
        }
    }
}

fn shown_value(value: &Bound<'_, PyAny>, in_table: bool) -> PyResult<String> {
    match in_table {
        true if value.is_none() => Ok(String::new()),
        true if !value.is_instance_of::<PyBytes>() => Ok(value.str()?.to_string()),
        _ => Ok(value.repr()?.to_string()),
    }
}

fn text_of<'a>(name: &'a Bound<'_, PyAny>) -> PyResult<&'a str> {
    name.cast::<PyString>().map_err(|_| wrong_name("str", name))?.to_str()
}

fn wrong_name(wanted: &str, name: &Bound<'_, PyAny>) -> PyErr {
    PyTypeError::new_err(format!(
        "the names of fields are {wanted}, got {}: {}",
        shown::type_name(name),
        shown::repr(name)
    ))
}

/// The column with all fields of each entry.
struct AllFields {
    offsets: OffsetBuffer<i32>,
    nulls: Option<NullBuffer>,
    names: NameArray,
    values: BinaryArray,
    objects: Names,
}

enum NameArray {
    Text(StringArray),
    Binary(BinaryArray),
}

impl AllFields {
    /// The column as the core builds it: a map, or a list of pairs.
    fn new(column: &ArrayRef) -> PyResult<Self> {
        let parts = match (column.as_map_opt(), column.as_list_opt::<i32>()) {
            (Some(map), _) => Some((map.offsets(), map.entries().columns())),
            (None, Some(list)) => list.values().as_struct_opt().map(|pairs| (list.offsets(), pairs.columns())),
            (None, None) => None,
        };
        let wrong = || PyTypeError::new_err(format!("the fields are a column of another type: {}", column.data_type()));
        let Some((offsets, [names, values])) = parts else { return Err(wrong()) };
        let text = names.as_string_opt::<i32>().cloned().map(NameArray::Text);
        let names = text.or_else(|| names.as_binary_opt::<i32>().cloned().map(NameArray::Binary)).ok_or_else(wrong)?;
        let values = values.as_binary_opt::<i32>().cloned().ok_or_else(wrong)?;
        Ok(Self { offsets: offsets.clone(), nulls: column.nulls().cloned(), names, values, objects: Names::default() })
    }

    /// The places of the fields of a row; none for an entry that was deleted.
    #[allow(clippy::cast_sign_loss)] // offsets are not negative
    fn places(&self, row: usize) -> Range<usize> {
        if self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
            return 0..0;
        }
        self.offsets[row] as usize..self.offsets[row + 1] as usize
    }

    fn name_bytes(&self, at: usize) -> &[u8] {
        match &self.names {
            NameArray::Text(names) => names.value(at).as_bytes(),
            NameArray::Binary(names) => names.value(at),
        }
    }

    fn name<'py>(&self, py: Python<'py>, at: usize) -> Bound<'py, PyAny> {
        match &self.names {
            NameArray::Text(names) => self.objects.get(py, names.value(at)).into_any(),
            NameArray::Binary(names) => PyBytes::new(py, names.value(at)).into_any(),
        }
    }

    fn value_bytes(&self, at: usize) -> Option<&[u8]> {
        (!self.values.is_null(at)).then(|| self.values.value(at))
    }

    fn value<'py>(&self, py: Python<'py>, at: usize) -> Bound<'py, PyAny> {
        self.value_bytes(at).map_or_else(|| py.None().into_bound(py), |value| PyBytes::new(py, value).into_any())
    }
}
