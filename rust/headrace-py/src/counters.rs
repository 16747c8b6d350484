//! The counters of a dispatcher, a reader or a consumer for Python, readable from any thread, even after the object was
//! collected.

use std::sync::Arc;

use headrace_core::{ConsumerHandle, Counters, NodeValues, ReadCounterValues, ReadCounters};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::shown::counted;

/// The counters of a dispatcher. Any thread may read them, even after the dispatcher was collected.
#[pyclass(frozen, name = "Counters", module = "headrace._headrace")]
pub(crate) struct PyCounters(pub(crate) Arc<Counters>);

#[pymethods]
impl PyCounters {
    /// Return all counters by name, as `headrace.stats.read_stats` takes them.
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
            ("reconnects", values.reconnects),
            ("redirects", values.redirects),
            ("refreshes", values.refreshes),
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
        let nodes: Vec<_> = values.nodes.into_iter().map(|node| node_values(py, node)).collect::<PyResult<_>>()?;
        read.set_item("nodes", nodes)?;
        Ok(read)
    }

    fn __repr__(&self) -> String {
        format!("<Counters: {}>", counted(self.0.read().messages, "message"))
    }
}

fn node_values(py: Python<'_>, node: NodeValues) -> PyResult<Bound<'_, PyDict>> {
    let NodeValues {
        address,
        in_flight,
        in_flight_bytes,
        connections,
        redirects,
        down_since_ms,
        fills_window,
        waiting_shard,
    } = node;
    let read = PyDict::new(py);
    read.set_item("address", address)?;
    for (name, count) in [
        ("in_flight", in_flight),
        ("in_flight_bytes", in_flight_bytes),
        ("connections", connections),
        ("redirects", redirects),
    ] {
        read.set_item(name, count)?;
    }
    #[allow(clippy::cast_precision_loss)]
    read.set_item("down_since", down_since_ms.map(|ms| ms as f64 / 1_000.0))?;
    read.set_item("fills_window", fills_window)?;
    read.set_item("waiting_shard", waiting_shard)?;
    Ok(read)
}

/// Whose counters they are.
pub(crate) enum Reading {
    Reader(Arc<ReadCounters>),
    Consumer(ConsumerHandle),
}

/// The counters of a reader or a consumer. Any thread may read them, even after the object was collected.
#[pyclass(frozen, name = "ReadCounters", module = "headrace._headrace")]
pub(crate) struct PyReadCounters(pub(crate) Reading);

#[pymethods]
impl PyReadCounters {
    /// Return all counters by name, as `headrace.ReaderStats` or `headrace.ConsumerStats` takes them.
    fn read<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let read = PyDict::new(py);
        let values = match &self.0 {
            Reading::Reader(counters) => counters.read(),
            Reading::Consumer(handle) => {
                let stats = handle.stats();
                let report = stats.report;
                for (name, count) in [
                    ("redelivered", report.redelivered),
                    ("reclaimed", report.reclaimed),
                    ("acked", report.acked),
                    ("stale", report.stale),
                    ("unknown", report.unknown),
                    ("released", report.released),
                    ("dead", report.dead),
                    ("pending", report.pending),
                    ("renewals", stats.renewals),
                ] {
                    read.set_item(name, count)?;
                }
                stats.read
            }
        };
        let ReadCounterValues {
            batches,
            rows,
            entries,
            lost,
            bytes_received,
            requests,
            connections,
            reconnects,
            retry_waits,
            retry_wait_seconds,
            last_entry_ms,
        } = values;
        for (name, count) in [
            ("batches", batches),
            ("rows", rows),
            ("entries", entries),
            ("lost", lost),
            ("bytes_received", bytes_received),
            ("requests", requests),
            ("connections", connections),
            ("reconnects", reconnects),
            ("retry_waits", retry_waits),
        ] {
            read.set_item(name, count)?;
        }
        read.set_item("retry_wait_seconds", retry_wait_seconds)?;
        // A stream may have IDs that are not times, up to 2^64 - 1.
        #[allow(clippy::cast_precision_loss)]
        read.set_item("last_entry_time", last_entry_ms.map(|ms| ms as f64 / 1_000.0))?;
        Ok(read)
    }

    fn __repr__(&self) -> String {
        let values = match &self.0 {
            Reading::Reader(counters) => counters.read(),
            Reading::Consumer(handle) => handle.stats().read,
        };
        format!("<ReadCounters: {}>", counted(values.rows, "row"))
    }
}
