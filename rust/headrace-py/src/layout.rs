//! The keyword arguments of `produce_batch`, each converted on its own; the core checks how they fit together.

use headrace_core::ipc::Codec;
use headrace_core::{BatchLayout, BatchPlan, Error, JsonColumns, LAYOUT_OPTIONS, LayoutOptions, MAX_ROWS_PER_ENTRY};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyInt, PyString};

use crate::errors::to_py;
use crate::exception::raise;
use crate::shown::repr;

/// The layout of a call of `produce_batch`.
pub(crate) struct Layout {
    batch: BatchLayout,
    /// The fields that each entry gets besides those of its rows: names and values.
    constants: Vec<(String, String)>,
}

impl Layout {
    /// The plan that a dispatcher makes of the layout, with the constants.
    pub(crate) fn plan(
        &self,
        plan: impl FnOnce(&BatchLayout) -> headrace_core::Result<BatchPlan>,
    ) -> headrace_core::Result<BatchPlan> {
        plan(&self.batch)?.with_constants(&self.constants)
    }
}

/// The layout that keyword arguments select. None is equivalent to an argument that is not given.
pub(crate) fn layout(keywords: Option<&Bound<'_, PyDict>>) -> PyResult<Layout> {
    let mut options = LayoutOptions::default();
    let mut constants = Vec::new();
    for (name, value) in keywords.into_iter().flatten() {
        let name = name.cast::<PyString>()?.to_string_lossy();
        if value.is_none() && LAYOUT_OPTIONS.iter().any(|option| option.name == name) {
            continue;
        }
        match &*name {
            "payload" => options.payload = Some(column(&name, &value)?),
            "fields" => options.fields = Some(columns("fields", "a", &value)?),
            "fields_from" => options.fields_from = Some(column(&name, &value)?),
            "json" => options.json = json(&value)?,
            "message_id" => options.message_id = Some(column(&name, &value)?),
            "stream_key" => options.stream_key = Some(column(&name, &value)?),
            "shard_key" => options.shard_key = Some(column(&name, &value)?),
            "entry_id" => options.entry_id = Some(column(&name, &value)?),
            "rows_per_entry" => options.rows_per_entry = Some(rows_per_entry(&value)?),
            "arrow_ipc" => options.arrow_ipc = is_true(&name, &value)?,
            "codec" => options.codec = Some(codec(&value)?),
            // Of `trace_context`.
            "_constants" => constants = value.extract()?,
            _ => {
                let message = format!("produce_batch() got an unexpected keyword argument '{name}'");
                return Err(PyTypeError::new_err(message));
            }
        }
    }
    let batch = BatchLayout::try_from(options).map_err(|error| to_py(&error))?;
    Ok(Layout { batch, constants })
}

fn column(argument: &str, value: &Bound<'_, PyAny>) -> PyResult<String> {
    value.extract().map_err(|_| wrong(argument, "the name of a column, such as 'id'", value))
}

fn columns(argument: &str, otherwise: &str, value: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    // Python takes a single string as a sequence of one-letter names, which is never meant.
    let names = if value.is_instance_of::<PyString>() { None } else { value.extract().ok() };
    names.ok_or_else(|| wrong(argument, &format!("{otherwise} sequence of column names, such as ['id']"), value))
}

fn json(value: &Bound<'_, PyAny>) -> PyResult<JsonColumns> {
    Ok(match value.extract::<bool>() {
        Ok(false) => JsonColumns::None,
        Ok(true) => JsonColumns::All,
        Err(_) => JsonColumns::Named(columns("json", "True, False or a", value)?),
    })
}

fn is_true(argument: &str, value: &Bound<'_, PyAny>) -> PyResult<bool> {
    value.extract().map_err(|_| wrong(argument, "True or False", value))
}

fn rows_per_entry(value: &Bound<'_, PyAny>) -> PyResult<usize> {
    let is_int = value.is_instance_of::<PyInt>() && !value.is_instance_of::<PyBool>();
    let rows = if is_int { value.extract().ok() } else { None };
    rows.filter(|rows| (1..=MAX_ROWS_PER_ENTRY).contains(rows)).ok_or_else(|| {
        let got = repr(value);
        let message = format!("rows_per_entry must be an integer from 1 to {MAX_ROWS_PER_ENTRY}: got {got}");
        to_py(&Error::config("rows_per_entry", message))
    })
}

fn codec(value: &Bound<'_, PyAny>) -> PyResult<Codec> {
    if let Ok(name) = value.extract::<&str>() {
        return Codec::named(name).map_err(|error| to_py(&error));
    }
    let got = repr(value);
    Err(to_py(&Error::config("codec", format!("codec must be None, \"lz4\" or \"zstd\": got {got}"))))
}

/// The error for an argument of the wrong type.
fn wrong(argument: &str, allowed: &str, value: &Bound<'_, PyAny>) -> PyErr {
    raise("SchemaError", format!("{argument} must be {allowed}: got {}", repr(value)))
}
