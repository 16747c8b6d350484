//! The batches of a shard consumer for Python.

use std::sync::{Arc, OnceLock};

use headrace_core::{ShardBatch, ShardHandle};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule, PyList, PyTuple};

use crate::capsules;
use crate::entry::{self, PyEntryIterator};
use crate::entry_rows::{EntryRows, Source};
use crate::errors::to_py;
use crate::panics::contained;
use crate::shown;

/// Entries of one stream, in their order, as an Arrow record batch: one row each, unless `unpack` is given.
///
/// `for entry in batch` and `batch[0]` return rows as objects of the class `Entry`, and `batch.to_pylist()` as dicts.
/// `pyarrow.record_batch(batch)`, `polars.DataFrame(batch)` and others take the batch without a copy.
#[pyclass(frozen, sequence, name = "ShardBatch", module = "headrace._headrace")]
pub(crate) struct PyShardBatch {
    pub(crate) batch: ShardBatch,
    rows: OnceLock<Arc<EntryRows>>,
    handle: ShardHandle,
}

impl PyShardBatch {
    pub(crate) fn new(batch: ShardBatch, handle: ShardHandle) -> Self {
        Self { batch, rows: OnceLock::new(), handle }
    }

    fn rows(&self) -> PyResult<&Arc<EntryRows>> {
        if let Some(rows) = self.rows.get() {
            return Ok(rows);
        }
        let rows = Arc::new(EntryRows::new(Source::Owned(self.batch.clone()))?);
        Ok(self.rows.get_or_init(|| rows))
    }
}

#[pymethods]
impl PyShardBatch {
    /// The number of rows.
    #[getter]
    fn num_rows(&self) -> usize {
        self.batch.entries().record_batch().num_rows()
    }

    /// The key of the stream.
    #[getter]
    fn stream<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.batch.entries().stream())
    }

    /// The number of the stream among those of the consumer: with shards, the number of the shard.
    #[getter]
    fn shard(&self) -> usize {
        self.batch.shard()
    }

    /// The fencing token: a number that grows each time the stream is taken, from 1 to 2**53.
    ///
    /// A database that stores it with the rows can refuse those of an earlier owner (docs/shards.md#fencing).
    #[getter]
    fn epoch(&self) -> u64 {
        self.batch.epoch()
    }

    /// The ID of the first entry.
    #[getter]
    fn first_id(&self) -> String {
        self.batch.entries().first_id().to_string()
    }

    /// The ID of the last entry: the place of this batch in its stream.
    #[getter]
    fn last_id(&self) -> String {
        self.batch.entries().last_id().to_string()
    }

    /// The number of entries of the stream that were trimmed before they were read, since its previous batch.
    ///
    /// Greater than 0 only with `on_loss="report"`.
    #[getter]
    fn lost(&self) -> u64 {
        self.batch.entries().lost().0
    }

    /// Whether `lost` is exact; otherwise it is an upper bound.
    #[getter]
    fn is_lost_exact(&self) -> bool {
        self.batch.entries().lost().1
    }

    /// Before a commit, raise `LeaseLostError` if another member may own the stream by now.
    fn check(&self) -> PyResult<()> {
        self.handle.check(&self.batch).map_err(|error| to_py(&error))
    }

    /// Return the batch as `PyCapsule`s of the Arrow C data interface.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        capsules::export_batch(py, self.batch.entries().record_batch(), requested_schema)
    }

    /// Return the schema of the batch as a `PyCapsule`.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        capsules::export_schema(py, self.batch.entries().record_batch().schema_ref())
    }

    fn __len__(&self) -> usize {
        self.num_rows()
    }

    /// True also without rows: a loop over `poll` or `read` ends with None.
    #[allow(clippy::unused_self)] // the protocol requires a method
    fn __bool__(&self) -> bool {
        true
    }

    fn __iter__(&self) -> PyResult<PyEntryIterator> {
        Ok(PyEntryIterator::new(self.rows()?))
    }

    fn __getitem__<'py>(&self, row: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        entry::select(self.rows()?, row)
    }

    /// Return a dict for each row, with the values of all columns as Python objects; no Arrow library is needed.
    ///
    /// The values are those of pyarrow's `to_pylist`: `Decimal`, `datetime` with a `ZoneInfo`, `UUID`, and so on; a
    /// map is a list of pairs. A value that Python's `datetime` cannot hold (nanoseconds, years outside 1 to 9999) is
    /// a `ValueError` that names its column and row: read it with an Arrow library.
    fn to_pylist<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        contained(py, || self.rows()?.to_pylist(py))
    }

    /// Return the ID, and names and beginnings of values, of the first rows, for notebooks.
    fn _shown_rows<'py>(&self, py: Python<'py>, rows: usize, fields: usize) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        contained(py, || entry::shown_rows(py, self.rows()?, [rows, fields]))
    }

    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        shown::html(slf)
    }

    fn __getattr__(slf: &Bound<'_, Self>, name: &str) -> PyResult<()> {
        Err(shown::no_attribute(slf, name))
    }

    fn __repr__(&self) -> String {
        let ends = [self.first_id(), self.last_id()];
        shown::batch("ShardBatch", self.num_rows(), self.batch.entries().stream(), ends)
    }
}
