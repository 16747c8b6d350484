//! Converts the keyword arguments of `produce_batch` to a layout.

use headrace_core::ipc::Codec;
use headrace_core::rows::{Body, Layout};
use headrace_core::{BatchLayout, Error, MAX_ROWS_PER_ENTRY};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt, PyString};

use crate::errors::{raise, to_py};

/// The default `rows_per_entry` of `arrow_ipc`: the rows of a record batch of Spark.
const ARROW_ROWS_PER_ENTRY: usize = 10_000;

/// The keyword arguments of `produce_batch`.
pub(crate) struct BatchArguments<'a, 'py> {
    pub(crate) payload: Option<String>,
    pub(crate) fields: Option<&'a Bound<'py, PyAny>>,
    pub(crate) json: Option<&'a Bound<'py, PyAny>>,
    pub(crate) message_id: Option<String>,
    pub(crate) stream_key: Option<String>,
    pub(crate) entry_id: Option<String>,
    pub(crate) rows_per_entry: Option<&'a Bound<'py, PyAny>>,
    pub(crate) arrow_ipc: bool,
    pub(crate) codec: Option<&'a Bound<'py, PyAny>>,
}

/// Checks the keyword arguments of `produce_batch` and returns the layout that they select.
pub(crate) fn layout(given: BatchArguments<'_, '_>) -> PyResult<BatchLayout> {
    let json = match given.json {
        None => None,
        Some(json) => match json.extract::<bool>() {
            Ok(false) => None,
            Ok(true) => Some(Body::Json(None)),
            Err(_) => Some(Body::Json(Some(names("json", json)?))),
        },
    };
    let fields = given.fields.map(|fields| names("fields", fields)).transpose()?;
    let rows_per_entry = given.rows_per_entry.map(rows_per_entry).transpose()?;
    let codec = given.codec.map(codec).transpose()?;
    let message_id = given.message_id;
    if given.arrow_ipc {
        for (name, is_given) in [
            ("payload", given.payload.is_some()),
            ("json", json.is_some()),
            ("stream_key", given.stream_key.is_some()),
            ("entry_id", given.entry_id.is_some()),
        ] {
            if is_given {
                return Err(raise("SchemaError", format!("arrow_ipc and {name} are mutually exclusive")));
            }
        }
        let rows_per_entry = rows_per_entry.unwrap_or(ARROW_ROWS_PER_ENTRY);
        return Ok(BatchLayout::Arrow { columns: fields, message_id, codec, rows_per_entry });
    }
    if codec.is_some() {
        return Err(raise("SchemaError", "codec needs arrow_ipc=True"));
    }
    let body = match (given.payload, fields.map(Body::Fields), json) {
        (None, None, None) => Body::Payload("payload".to_owned()),
        (Some(column), None, None) => Body::Payload(column),
        (None, Some(body), None) | (None, None, Some(body)) => body,
        _ => return Err(raise("SchemaError", "payload, fields and json are mutually exclusive")),
    };
    let layout = Layout { body, message_id, stream_key: given.stream_key, entry_id: given.entry_id };
    Ok(match rows_per_entry {
        None | Some(1) => BatchLayout::Rows(layout),
        Some(rows) => BatchLayout::Payloads(layout, rows),
    })
}

fn rows_per_entry(value: &Bound<'_, PyAny>) -> PyResult<usize> {
    let is_int = value.is_instance_of::<PyInt>() && !value.is_instance_of::<PyBool>();
    let rows = if is_int { value.extract().ok() } else { None };
    rows.filter(|rows| (1..=MAX_ROWS_PER_ENTRY).contains(rows)).ok_or_else(|| {
        let got = value.repr().map_or_else(|_| type_name(value), |repr| repr.to_string());
        let message = format!("rows_per_entry must be an integer from 1 to {MAX_ROWS_PER_ENTRY}: got {got}");
        to_py(&Error::config("rows_per_entry", message))
    })
}

fn codec(value: &Bound<'_, PyAny>) -> PyResult<Codec> {
    if let Ok(name) = value.extract::<&str>() {
        return Codec::named(name).map_err(|error| to_py(&error));
    }
    let got = value.repr().map_or_else(|_| type_name(value), |repr| repr.to_string());
    Err(to_py(&Error::config("codec", format!("codec must be None, \"lz4\" or \"zstd\": got {got}"))))
}

fn names(argument: &str, value: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    // Python takes a single string as a sequence of one-letter names, which is never meant.
    let names = if value.is_instance_of::<PyString>() { None } else { value.extract::<Vec<String>>().ok() };
    names.ok_or_else(|| {
        let shape =
            if argument == "json" { "True, False or a sequence of column names" } else { "a sequence of column names" };
        let got = value.repr().map_or_else(|_| type_name(value), |repr| repr.to_string());
        raise("SchemaError", format!("{argument} must be {shape}: got {got}"))
    })
}

/// The name of a value's type, for messages.
pub(crate) fn type_name(value: &Bound<'_, PyAny>) -> String {
    value.get_type().qualname().map_or_else(|_| "an object".to_owned(), |name| name.to_string())
}
