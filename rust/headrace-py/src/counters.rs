//! The counters of a dispatcher, a reader or a consumer for Python, readable from any thread, even after the object was
//! collected.

use std::sync::Arc;

use headrace_core::{
    CONSUMER_COUNTERS, ConsumerHandle, CounterSpec, CounterValue, CounterValues, Counters, DISPATCHER_COUNTERS,
    NODE_COUNTERS, READER_COUNTERS, ReadCounters, SHARD_CONSUMER_COUNTERS, ShardHandle,
};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::shown::counted;

/// Name, type, value before anything was counted, whether it may decrease, unit, description of the exported metric, name of the
/// seconds that are exported in place of a time, text.
type CounterRow<'py> = (
    &'static str,
    &'static str,
    Bound<'py, PyAny>,
    bool,
    &'static str,
    Option<&'static str>,
    Option<&'static str>,
    &'static str,
);

/// Return a table of counters by its name, such as `node` or `report`; `headrace.tables` names its parts.
#[pyfunction]
pub(crate) fn counter_table<'py>(py: Python<'py>, name: &str) -> PyResult<Vec<CounterRow<'py>>> {
    let table = match name {
        "dispatcher" => DISPATCHER_COUNTERS,
        "node" => NODE_COUNTERS,
        "reader" => READER_COUNTERS,
        "consumer" | "report" => CONSUMER_COUNTERS,
        "shard_consumer" | "shard_report" => SHARD_CONSUMER_COUNTERS,
        _ => return Err(PyKeyError::new_err(name.to_owned())),
    };
    let row = |row: &CounterSpec| {
        let (kind, zero) = (type_of(row.zero), to_python(py, row.zero)?);
        Ok((row.name, kind, zero, row.is_gauge, row.unit, row.help, row.age, row.text.trim()))
    };
    let has = |row: &&CounterSpec| if name.ends_with("report") { row.in_report } else { row.in_stats };
    table.iter().filter(has).map(row).collect()
}

/// The type of the attribute, as Python writes it.
fn type_of(value: CounterValue) -> &'static str {
    match value {
        CounterValue::Count(_) => "int",
        CounterValue::Seconds(_) => "float",
        CounterValue::Time(_) => "float | None",
        CounterValue::Index(_) => "int | None",
        CounterValue::Flag(_) => "bool",
    }
}

/// Times are in seconds.
#[allow(clippy::cast_precision_loss)] // a stream may have IDs that are not times, up to 2^64 - 1
fn to_python(py: Python<'_>, value: CounterValue) -> PyResult<Bound<'_, PyAny>> {
    Ok(match value {
        CounterValue::Count(count) => count.into_pyobject(py)?.into_any(),
        CounterValue::Seconds(seconds) => seconds.into_pyobject(py)?.into_any(),
        CounterValue::Time(ms) => ms.map(|ms| ms as f64 / 1_000.0).into_pyobject(py)?,
        CounterValue::Index(index) => index.into_pyobject(py)?,
        CounterValue::Flag(flag) => flag.into_pyobject(py)?.to_owned().into_any(),
    })
}

pub(crate) fn to_dict(py: Python<'_>, values: CounterValues) -> PyResult<Bound<'_, PyDict>> {
    let read = PyDict::new(py);
    for (name, value) in values {
        read.set_item(name, to_python(py, value)?)?;
    }
    Ok(read)
}

/// The count of this name with its noun, for a repr.
fn shown(values: &[(&str, CounterValue)], name: &str, noun: &str) -> String {
    let count = values.iter().find_map(|(each, value)| match value {
        CounterValue::Count(count) if *each == name => Some(*count),
        _ => None,
    });
    counted(count.unwrap_or_default(), noun)
}

/// The counters of a dispatcher. Any thread may read them, even after the dispatcher was collected.
#[pyclass(frozen, name = "Counters", module = "headrace._headrace")]
pub(crate) struct PyCounters(pub(crate) Arc<Counters>);

#[pymethods]
impl PyCounters {
    /// Return all counters by name, as `headrace.stats.read_stats` takes them.
    fn read<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let read = to_dict(py, self.0.values())?;
        let failed = PyDict::new(py);
        for (code, count) in &self.0.failed_by_code() {
            failed.set_item(&**code, count)?;
        }
        read.set_item("failed_by_code", failed)?;
        read.set_item("flush_seconds", PyTuple::new(py, self.0.flush_seconds())?)?;
        read.set_item("flush_seconds_sum", self.0.flush_seconds_sum())?;
        let node = |(address, values)| {
            let node = to_dict(py, values)?;
            node.set_item::<_, String>("address", address)?;
            Ok(node)
        };
        read.set_item("nodes", self.0.nodes().into_iter().map(node).collect::<PyResult<Vec<_>>>()?)?;
        Ok(read)
    }

    fn __repr__(&self) -> String {
        format!("<Counters: {}>", shown(&self.0.values(), "messages", "message"))
    }
}

/// Whose counters they are.
pub(crate) enum Reading {
    Reader(Arc<ReadCounters>),
    Consumer(ConsumerHandle),
    ShardConsumer(ShardHandle),
}

impl Reading {
    fn values(&self) -> CounterValues {
        match self {
            Self::Reader(counters) => counters.values(),
            Self::Consumer(handle) => handle.stats(),
            Self::ShardConsumer(handle) => handle.stats(),
        }
    }
}

/// The counters of a reader or a consumer. Any thread may read them, even after the object was collected.
#[pyclass(frozen, name = "ReadCounters", module = "headrace._headrace")]
pub(crate) struct PyReadCounters(pub(crate) Reading);

#[pymethods]
impl PyReadCounters {
    /// Return all counters by name, as `headrace.ReaderStats`, `ConsumerStats` or `ShardStats` takes them.
    fn read<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        to_dict(py, self.0.values())
    }

    fn __repr__(&self) -> String {
        format!("<ReadCounters: {}>", shown(&self.0.values(), "rows", "row"))
    }
}
