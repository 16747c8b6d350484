//! The shard numbers of rows, for Python.

use std::sync::Arc;

use arrow_array::{ArrayRef, Int32Array, RecordBatch};
use headrace_core::rows;
use pyo3::prelude::*;

use crate::capsules::read;
use crate::errors::to_py;
use crate::exception::raise;
use crate::panics::contained;
use crate::unpack::PyRows;

/// Return the shard number of each row, by the key in the only column, as 32-bit integers; null for a null.
#[pyfunction]
pub(crate) fn shard_numbers(
    py: Python<'_>,
    keys: &Bound<'_, PyAny>,
    shards: i64,
    shard_hash: &str,
) -> PyResult<PyRows> {
    contained(py, || {
        let mut numbers = Vec::new();
        for batch in read(keys)? {
            let batch = batch.map_err(|error| to_py(&error))?;
            let found = rows::shard_numbers(&batch, shards, shard_hash).map_err(|error| to_py(&error))?;
            numbers.extend(found.iter());
        }
        let numbers: ArrayRef = Arc::new(Int32Array::from(numbers));
        let rows = RecordBatch::try_from_iter_with_nullable([("shard", numbers, true)]);
        Ok(PyRows::from(rows.map_err(|error| raise("InternalError", error.to_string()))?))
    })
}
