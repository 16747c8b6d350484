//! The rows of one entry as an Arrow stream, for any Arrow library.

use std::cell::Cell;
use std::panic;
use std::sync::Once;

use arrow_array::RecordBatchIterator;
use headrace_core::ipc::{Decoded, decode};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule};
use pyo3_arrow::PyRecordBatchReader;
use pyo3_arrow::ffi::to_schema_pycapsule;

use crate::errors::to_py;

/// The rows of one entry; `headrace.unpack_arrow` returns them.
#[pyclass(frozen, name = "Rows", module = "headrace._headrace")]
pub(crate) struct PyRows(Decoded);

#[pymethods]
impl PyRows {
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyCapsule>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Decoded { schema, batches } = self.0.clone();
        let reader = RecordBatchIterator::new(batches.into_iter().map(Ok), schema);
        Bound::new(py, PyRecordBatchReader::new(Box::new(reader)))?
            .call_method1("__arrow_c_stream__", (requested_schema,))
    }

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

/// Reads an Arrow IPC stream.
#[pyfunction]
pub(crate) fn decode_rows(py: Python<'_>, stream: &Bound<'_, PyBytes>) -> PyResult<PyRows> {
    let stream = stream.as_bytes().to_vec();
    py.detach(|| quietly(|| decode(stream))).map(PyRows).map_err(|error| to_py(&error))
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs what catches its own panics, without a word of them on stderr: bytes that somebody else broke are an exception,
/// and no bug of this process. The hook is that of this library; other Rust in the process has its own.
fn quietly<T>(run: impl FnOnce() -> T) -> T {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                before(info);
            }
        }));
    });
    QUIET.set(true);
    let result = run();
    QUIET.set(false);
    result
}
