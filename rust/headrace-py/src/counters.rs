//! The counters of a dispatcher for Python, readable from any thread, even after the dispatcher was collected.

use std::sync::Arc;

use headrace_core::Counters;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

/// The counters of a dispatcher. Any thread may read them, even after the dispatcher was collected.
#[pyclass(frozen, name = "Counters", module = "headrace._headrace")]
pub(crate) struct PyCounters(pub(crate) Arc<Counters>);

#[pymethods]
impl PyCounters {
    /// All counters by name, as `headrace.metrics.Stats` takes them.
    fn read<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let values = self.0.read();
        let read = PyDict::new(py);
        for (name, count) in [
            ("messages", values.messages),
            ("delivered", values.delivered),
            ("deduplicated", values.deduplicated),
            ("possible_duplicates", values.possible_duplicates),
            ("retries", values.retries),
            ("retry_waits", values.retry_waits),
            ("connections", values.connections),
            ("reconnects", values.connections.saturating_sub(1)),
            ("bytes_sent", values.bytes_sent),
            ("script_calls", values.script_calls),
            ("script_rows_shared", values.script_rows_shared),
            ("script_rows_whole", values.script_rows_whole),
        ] {
            read.set_item(name, count)?;
        }
        read.set_item("retry_wait_seconds", values.retry_wait_seconds)?;
        let failed = PyDict::new(py);
        for (code, count) in &values.failed_by_code {
            failed.set_item(&**code, count)?;
        }
        read.set_item("failed_by_code", failed)?;
        read.set_item("flush_seconds", PyTuple::new(py, values.flush_seconds)?)?;
        read.set_item("flush_seconds_sum", values.flush_seconds_sum)?;
        Ok(read)
    }
}
