//! Rows as an Arrow stream, for any Arrow library: those of one entry, and those of a table.

use arrow_array::{RecordBatch, RecordBatchIterator};
use arrow_schema::SchemaRef;
use headrace_core::Table;
use headrace_core::ipc::{Decoded, decode};
use headrace_core::rows::json_rows;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule, PyDict};

use crate::errors::to_py;
use crate::named_column::{self, NamedColumn};
use crate::shown::counted;
use crate::{capsules, panics};

/// Rows for any Arrow library: `pyarrow.table(rows)`, `polars.DataFrame(rows)`. `rows.to_pylist()` needs none.
///
/// `headrace.unpack_arrow`, `headrace.inspect`, `headrace.Group.pending` and `headrace.read_dead_letters` return them.
#[pyclass(frozen, name = "Rows", module = "headrace._headrace")]
pub(crate) struct PyRows {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
}

impl From<Decoded> for PyRows {
    fn from(Decoded { schema, batches }: Decoded) -> Self {
        Self { schema, batches }
    }
}

impl From<RecordBatch> for PyRows {
    fn from(batch: RecordBatch) -> Self {
        Self { schema: batch.schema(), batches: vec![batch] }
    }
}

impl From<Table> for PyRows {
    fn from(Table { schema, batches }: Table) -> Self {
        Self { schema, batches }
    }
}

#[pymethods]
impl PyRows {
    /// Return the rows as a `PyCapsule` of the Arrow C stream interface.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let batches = self.batches.clone().into_iter().map(Ok);
        capsules::export_stream(py, RecordBatchIterator::new(batches, SchemaRef::clone(&self.schema)), requested_schema)
    }

    /// Return the schema of the rows as a `PyCapsule`.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        capsules::export_schema(py, &self.schema)
    }

    /// The names of the columns.
    #[getter]
    fn _columns(&self) -> Vec<&str> {
        self.schema.fields().iter().map(|field| field.name().as_str()).collect()
    }

    /// Return each row, or the first `limit`, as a JSON object without its nulls, for commands and notebooks.
    #[pyo3(signature = (limit = None))]
    fn _json_rows<'py>(&self, py: Python<'py>, limit: Option<usize>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        panics::contained(py, || {
            let most = limit.unwrap_or(usize::MAX).min(self.__len__());
            let mut rows = Vec::with_capacity(most);
            for batch in &self.batches {
                let batch = batch.slice(0, batch.num_rows().min(most - rows.len()));
                let found = py.detach(|| json_rows(&batch)).map_err(|error| to_py(&error))?;
                rows.extend(found.iter().map(|row| PyBytes::new(py, row)));
            }
            Ok(rows)
        })
    }

    /// Return a dict for each row, with Python objects as values, as `ReadBatch.to_pylist` does.
    fn to_pylist<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        panics::contained(py, || {
            let mut rows = Vec::with_capacity(self.__len__());
            for batch in &self.batches {
                let columns = NamedColumn::of_batch(py, batch, rows.len());
                rows.extend(named_column::dicts(py, &columns, batch.num_rows())?);
            }
            Ok(rows)
        })
    }

    fn __len__(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }

    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let notebook = slf.py().import("headrace.notebook")?;
        notebook.call_method1("rows", (slf, "row", "rows"))
    }

    fn __repr__(&self) -> String {
        let (rows, columns) = (self.__len__() as u64, self.schema.fields().len() as u64);
        format!("<Rows: {}, {}>", counted(rows, "row"), counted(columns, "column"))
    }
}

/// Read an Arrow IPC stream; `headrace.unpack_arrow` wraps it.
#[pyfunction]
pub(crate) fn decode_rows(py: Python<'_>, stream: &Bound<'_, PyBytes>) -> PyResult<PyRows> {
    let stream = stream.as_bytes().to_vec();
    let decoded = py.detach(|| decode(stream));
    // A panic over malformed bytes is not a defect of this process.
    panics::forget();
    decoded.map(PyRows::from).map_err(|error| to_py(&error))
}
