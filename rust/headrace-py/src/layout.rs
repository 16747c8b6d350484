//! Converts the keyword arguments of `produce_batch`, each on its own; the core checks how they fit together.

use headrace_core::ipc::Codec;
use headrace_core::{Error, JsonColumns, MAX_ROWS_PER_ENTRY};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt, PyString};

use crate::errors::to_py;
use crate::exception::raise;
use crate::shown::repr;

pub(crate) fn json(value: &Bound<'_, PyAny>) -> PyResult<JsonColumns> {
    Ok(match value.extract::<bool>() {
        Ok(false) => JsonColumns::None,
        Ok(true) => JsonColumns::All,
        Err(_) => {
            JsonColumns::Named(names("json", "True, False or a sequence of column names, such as ['id']", value)?)
        }
    })
}

pub(crate) fn columns(argument: &str, value: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    names(argument, "a sequence of column names, such as ['id']", value)
}

pub(crate) fn rows_per_entry(value: &Bound<'_, PyAny>) -> PyResult<usize> {
    let is_int = value.is_instance_of::<PyInt>() && !value.is_instance_of::<PyBool>();
    let rows = if is_int { value.extract().ok() } else { None };
    rows.filter(|rows| (1..=MAX_ROWS_PER_ENTRY).contains(rows)).ok_or_else(|| {
        let got = repr(value);
        let message = format!("rows_per_entry must be an integer from 1 to {MAX_ROWS_PER_ENTRY}: got {got}");
        to_py(&Error::config("rows_per_entry", message))
    })
}

pub(crate) fn codec(value: &Bound<'_, PyAny>) -> PyResult<Codec> {
    if let Ok(name) = value.extract::<&str>() {
        return Codec::named(name).map_err(|error| to_py(&error));
    }
    let got = repr(value);
    Err(to_py(&Error::config("codec", format!("codec must be None, \"lz4\" or \"zstd\": got {got}"))))
}

fn names(argument: &str, allowed: &str, value: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    // Python takes a single string as a sequence of one-letter names, which is never meant.
    let names = if value.is_instance_of::<PyString>() { None } else { value.extract::<Vec<String>>().ok() };
    names.ok_or_else(|| {
        let got = repr(value);
        raise("SchemaError", format!("{argument} must be {allowed}: got {got}"))
    })
}
