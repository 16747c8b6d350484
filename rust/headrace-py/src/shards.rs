//! The shard numbers of rows, for Python.

use std::sync::Arc;

use headrace_core::rows;
use pyo3::prelude::*;
use pyo3_arrow::PyArray;

use crate::capsules::read;
use crate::errors::to_py;
use crate::panics::contained;

/// Return the shard number of each row, by the key in the only column: 32-bit integers, null for a null.
#[pyfunction]
pub(crate) fn shard_numbers(
    py: Python<'_>,
    keys: &Bound<'_, PyAny>,
    shards: i64,
    shard_hash: &str,
) -> PyResult<PyArray> {
    contained(py, || {
        let mut numbers = Vec::new();
        for batch in read(keys)? {
            let batch = batch.map_err(|error| to_py(&error))?;
            let found = rows::shard_numbers(&batch, shards, shard_hash).map_err(|error| to_py(&error))?;
            numbers.extend(found.iter());
        }
        Ok(PyArray::from_array_ref(Arc::new(arrow_array::Int32Array::from(numbers))))
    })
}
