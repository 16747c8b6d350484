//! The counters of a dispatcher for Python: read from any thread, also after the dispatcher is gone.

use std::sync::Arc;

use headrace_core::Counters;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

/// What a dispatcher has done so far; `headrace.Dispatcher.stats` reads it.
#[pyclass(frozen, name = "Counters", module = "headrace._headrace")]
pub(crate) struct PyCounters(pub(crate) Arc<Counters>);

#[pymethods]
impl PyCounters {
    /// All counters by name.
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
