//! Inspections for Python.

use headrace_core::inspect::{InspectOptions, Streams};
use headrace_core::{Inspection, Table};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::endpoint::PyEndpoint;
use crate::errors::to_py;
use crate::options::{from_python, option_values};
use crate::panics::contained;
use crate::signals::without_gil;
use crate::unpack::PyRows;

/// The server's time in microseconds, whether more streams exist, and the tables: streams, groups, consumers, pending, leases,
/// members.
type Found = (Option<i64>, bool, [PyRows; 6]);

/// Inspect streams; `headrace.inspect` wraps it. `streams`: keys, or a pattern alone, or None for the endpoint's.
#[pyfunction]
pub(crate) fn inspect(
    py: Python<'_>,
    endpoint: &Bound<'_, PyEndpoint>,
    streams: Option<Vec<Bound<'_, PyAny>>>,
    is_pattern: bool,
    options: &Bound<'_, PyDict>,
) -> PyResult<Found> {
    let values = streams.map(|keys| keys.iter().map(from_python).collect::<PyResult<Vec<_>>>()).transpose()?;
    let streams = match values.as_deref() {
        None => None,
        Some([pattern]) if is_pattern => Some(Streams::pattern(pattern)),
        Some(keys) => Some(Streams::keys(keys.iter().cloned())),
    };
    let streams = streams.transpose().map_err(|error| to_py(&error))?;
    let options = InspectOptions::new(streams, option_values(options)?).map_err(|error| to_py(&error))?;
    let endpoint = &endpoint.get().0;
    let found = contained(py, || without_gil(py, |signals| headrace_core::inspect(endpoint, &options, signals)))?;
    let Inspection { now, truncated, streams, groups, consumers, pending, leases, members } = found;
    let tables = [streams, groups, consumers, pending, leases, members];
    Ok((now, truncated, tables.map(|table: Table| PyRows::from(table))))
}
