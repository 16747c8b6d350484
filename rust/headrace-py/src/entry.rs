//! Rows of a batch, one object each.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use headrace_core::{ConsumerBatch, ShardBatch, quoted};
use pyo3::exceptions::{PyAttributeError, PyIndexError, PyKeyError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PySlice, PyTuple};

use crate::entry_rows::{EntryRows, Source};
use crate::python_time;
use crate::shown::{self, counted, type_name};

/// The maximum number of fields in a repr, and of names in an error.
const MAX_SHOWN: usize = 5;

/// A row of a batch: an entry of a stream, or with `unpack` a row of one.
///
/// ```python
/// for entry in batch:
///     print(entry.id, entry.timestamp, entry["payload"])
/// ```
///
/// The fields are those of the entry, with bytes as values. With `fields`, `schema` or `unpack` they are the columns
/// of the batch but those of the metadata, with Python objects as values, as `to_pylist` returns them. The rows of an
/// entry that was unpacked are entries with the same ID.
///
/// An entry keeps its whole batch in memory, and makes each object when it is asked for. Entries are equal if they are
/// the same row of the same batch. They are neither iterable nor pickled: `items()` returns the fields, and the ID and
/// the fields can be pickled.
#[pyclass(frozen, name = "Entry", module = "headrace._headrace")]
pub(crate) struct PyEntry {
    rows: Arc<EntryRows>,
    row: usize,
}

impl PyEntry {
    /// The batch of a consumer that the entry is in, and its row there.
    pub(crate) fn consumed(&self) -> Option<(&ConsumerBatch, usize)> {
        match self.rows.source() {
            Source::Consumed(batch) => Some((batch, self.row)),
            Source::Read(_) | Source::Owned(_) => None,
        }
    }

    /// The batch of a shard consumer that the entry is in, and its row there.
    pub(crate) fn owned(&self) -> Option<(&ShardBatch, usize)> {
        match self.rows.source() {
            Source::Owned(batch) => Some((batch, self.row)),
            Source::Read(_) | Source::Consumed(_) => None,
        }
    }

    fn consumer_batch(&self, name: &str) -> PyResult<&ConsumerBatch> {
        let batch = self.consumed().map(|(batch, _)| batch);
        batch.ok_or_else(|| {
            PyAttributeError::new_err(format!(
                "only an entry of a Consumer has {name}, not one of a Reader or a ShardConsumer"
            ))
        })
    }

    #[cold]
    fn no_field(&self, name: &Bound<'_, PyAny>) -> PyErr {
        let py = name.py();
        let names = self.rows.shown(py, self.row, MAX_SHOWN + 1, false).unwrap_or_default();
        let mut shown: Vec<_> = names.iter().take(MAX_SHOWN).map(|(name, _)| quoted(name.as_bytes())).collect();
        if names.len() > MAX_SHOWN {
            shown.push("…".to_owned());
        }
        let has = if shown.is_empty() { "none".to_owned() } else { shown.join(", ") };
        PyKeyError::new_err(format!(
            "entry {} has no field {}; it has {has}",
            self.rows.id(self.row),
            shown::repr(name)
        ))
    }
}

#[pymethods]
impl PyEntry {
    /// The key of the stream.
    #[getter]
    fn stream<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.rows.stream())
    }

    /// The entry ID, as `"<milliseconds>-<sequence>"`.
    #[getter]
    fn id(&self) -> String {
        self.rows.id(self.row).to_string()
    }

    /// The time of the entry ID: a `datetime` in UTC.
    ///
    /// Raises:
    ///     ValueError: The ID was not made from a clock: its milliseconds are after the year 9999.
    #[getter]
    #[allow(clippy::doc_markdown)] // Python's names, in Python's markup
    fn timestamp<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let id = self.rows.id(self.row);
        python_time::utc(py, id.ms).map_err(|_| {
            PyValueError::new_err(format!("entry {id} has no timestamp: datetime ends with the year 9999; use its id"))
        })
    }

    /// The fields: names and values; the last value of several of the same name.
    ///
    /// Names are str, or bytes with `names="binary"`. An entry that was deleted has none.
    #[getter]
    fn fields<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let fields = PyDict::new(py);
        for (name, value) in self.rows.items(py, self.row)? {
            fields.set_item(name, value)?;
        }
        Ok(fields)
    }

    /// Return the names and values of all fields, in order.
    ///
    /// Only with `fields_as="list"` does an entry have several fields of the same name.
    fn items<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.rows.items(py, self.row)?)
    }

    /// Return the value of a field, or `default`.
    #[pyo3(signature = (name, default = None))]
    fn get<'py>(
        &self,
        name: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(self.rows.value(self.row, name)?.or(default))
    }

    fn __getitem__<'py>(&self, name: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.rows.value(self.row, name)?.ok_or_else(|| self.no_field(name))
    }

    fn __contains__(&self, name: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(self.rows.value(self.row, name)?.is_some())
    }

    /// Without it Python would iterate by calling `__getitem__` with 0, 1, 2.
    #[allow(clippy::unused_self)] // the protocol requires a method
    fn __iter__(&self) -> PyResult<Py<PyAny>> {
        Err(PyTypeError::new_err(
            "an Entry is not iterable: items() returns the names and values of its fields, fields is a dict of them",
        ))
    }

    /// How many times the entry was delivered to a consumer of the group, with this time. Only of a `Consumer`.
    #[getter]
    fn deliveries(&self) -> PyResult<u64> {
        Ok(self.consumer_batch("deliveries")?.deliveries(self.row))
    }

    /// Whether the entry was taken over from another consumer. Only of a `Consumer`.
    #[getter]
    fn reclaimed(&self) -> PyResult<bool> {
        Ok(self.consumer_batch("reclaimed")?.is_reclaimed())
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        let is_same = |other: &Self| self.row == other.row && Arc::ptr_eq(&self.rows, &other.rows);
        other.cast::<Self>().is_ok_and(|other| is_same(other.get()))
    }

    fn __hash__(&self) -> u64 {
        (Arc::as_ptr(&self.rows) as u64).rotate_right(4) ^ self.row as u64
    }

    /// The entry itself, because it does not change.
    fn __copy__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    /// The entry itself, because it does not change.
    #[allow(clippy::needless_pass_by_value)] // the protocol's signature
    fn __deepcopy__<'py>(slf: PyRef<'py, Self>, _memo: Bound<'py, PyAny>) -> PyRef<'py, Self> {
        slf
    }

    #[allow(clippy::unused_self)] // the protocol requires a method
    fn __reduce__(&self) -> PyResult<Py<PyAny>> {
        Err(PyTypeError::new_err("cannot pickle an Entry, which is a row of its batch: pickle its id and fields"))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let shown = self.rows.shown(py, self.row, MAX_SHOWN + 1, false)?;
        let fields =
            shown.iter().take(MAX_SHOWN).map(|(name, value)| format!(", {}: {value}", quoted(name.as_bytes())));
        let more = if shown.len() > MAX_SHOWN { ", …" } else { "" };
        let fields: String = fields.collect();
        Ok(format!("<Entry: {} of {}{fields}{more}>", self.rows.id(self.row), quoted(self.rows.stream())))
    }
}

/// Goes over the rows of a batch.
#[pyclass(frozen, name = "EntryIterator", module = "headrace._headrace")]
pub(crate) struct PyEntryIterator {
    rows: Arc<EntryRows>,
    next: AtomicUsize,
}

impl PyEntryIterator {
    pub(crate) fn new(rows: &Arc<EntryRows>) -> Self {
        Self { rows: Arc::clone(rows), next: AtomicUsize::new(0) }
    }
}

#[pymethods]
impl PyEntryIterator {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&self) -> Option<PyEntry> {
        let has_next = self
            .next
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |row| (row < self.rows.len()).then_some(row + 1));
        has_next.ok().map(|row| PyEntry { rows: Arc::clone(&self.rows), row })
    }

    fn __length_hint__(&self) -> usize {
        self.rows.len() - self.next.load(Ordering::Relaxed)
    }
}

/// The row with this number, or a list of those in a slice.
pub(crate) fn select<'py>(rows: &Arc<EntryRows>, which: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = which.py();
    let count = rows.len().cast_signed();
    let entry = |row: isize| Bound::new(py, PyEntry { rows: Arc::clone(rows), row: row.cast_unsigned() });
    if let Ok(slice) = which.cast::<PySlice>() {
        let part = slice.indices(count)?;
        let entries = (0..part.slicelength).map(|at| entry(part.start + part.step * at.cast_signed()));
        return Ok(PyList::new(py, entries.collect::<PyResult<Vec<_>>>()?)?.into_any());
    }
    let index = which.call_method0(pyo3::intern!(py, "__index__"));
    if let Err(error) = &index
        && !error.is_instance_of::<PyTypeError>(py)
        && !error.is_instance_of::<PyAttributeError>(py)
    {
        return index;
    }
    let Ok(index) = index else {
        let message =
            "rows are selected by an int or a slice, got {}; batch[0][\"payload\"] is a field of the first row";
        return Err(PyTypeError::new_err(message.replace("{}", &type_name(which))));
    };
    let row = index.extract::<isize>().ok().map(|row| if row < 0 { row + count } else { row });
    match row.filter(|row| (0..count).contains(row)) {
        Some(row) => Ok(entry(row)?.into_any()),
        None => Err(PyIndexError::new_err(format!(
            "row {index} is out of range: the batch has {}",
            counted(rows.len() as u64, "row")
        ))),
    }
}

/// The ID, and the names and beginnings of values, of the first rows.
pub(crate) fn shown_rows<'py>(
    py: Python<'py>,
    rows: &Arc<EntryRows>,
    [most_rows, most_fields]: [usize; 2],
) -> PyResult<Vec<Bound<'py, PyTuple>>> {
    let shown = |row| (rows.id(row).to_string(), rows.shown(py, row, most_fields, true)?).into_pyobject(py);
    (0..rows.len().min(most_rows)).map(shown).collect()
}
