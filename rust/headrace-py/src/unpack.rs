//! The rows of one entry as an Arrow stream, for any Arrow library.

use arrow_array::RecordBatchIterator;
use headrace_core::ipc::{Decoded, decode};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule};
use pyo3_arrow::ffi::to_schema_pycapsule;

use crate::errors::to_py;
use crate::{capsules, panics};

/// The rows of one entry, for any Arrow library; `headrace.unpack_arrow` returns them.
#[pyclass(frozen, name = "Rows", module = "headrace._headrace")]
pub(crate) struct PyRows(Decoded);

#[pymethods]
impl PyRows {
    /// The rows as a `PyCapsule` of the Arrow C stream interface.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyCapsule>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Decoded { schema, batches } = self.0.clone();
        capsules::export(py, RecordBatchIterator::new(batches.into_iter().map(Ok), schema), requested_schema)
    }

    /// The schema of the rows as a `PyCapsule`.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        Ok(to_schema_pycapsule(py, self.0.schema.as_ref())?)
    }

    fn __len__(&self) -> usize {
        self.0.batches.iter().map(arrow_array::RecordBatch::num_rows).sum()
    }

    fn __repr__(&self) -> String {
        format!("<headrace.Rows: {} rows, {} columns>", self.__len__(), self.0.schema.fields().len())
    }
}

/// Read an Arrow IPC stream; `headrace.unpack_arrow` wraps it.
#[pyfunction]
pub(crate) fn decode_rows(py: Python<'_>, stream: &Bound<'_, PyBytes>) -> PyResult<PyRows> {
    let stream = stream.as_bytes().to_vec();
    let decoded = py.detach(|| decode(stream));
    // A panic over malformed bytes is not a defect of this process.
    panics::forget();
    decoded.map(PyRows).map_err(|error| to_py(&error))
}
