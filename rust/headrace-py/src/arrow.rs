//! Arrow comes in by `PyCapsule`, so that pyarrow, polars, pandas and others all work and none is imported.

use arrow_array::RecordBatchReader;
use headrace_core::rows::{Body, Layout};
use pyo3::prelude::*;
use pyo3::types::PyString;
use pyo3_arrow::input::AnyRecordBatch;

use crate::errors::raise;

/// A reader over whatever record batches `data` holds.
pub(crate) fn read(data: &Bound<'_, PyAny>) -> PyResult<Box<dyn RecordBatchReader + Send>> {
    const WANTED: &str = "data must be an Arrow record batch, table or reader";
    if !data.hasattr("__arrow_c_array__")? && !data.hasattr("__arrow_c_stream__")? {
        let message =
            format!("{WANTED} (an object with __arrow_c_array__ or __arrow_c_stream__): got {}", type_name(data));
        return Err(raise("SchemaError", message));
    }
    data.extract::<AnyRecordBatch>().and_then(AnyRecordBatch::into_reader).map_err(|cause| {
        // An array or a column speaks the protocol as well, and has no columns.
        let message = format!("{WANTED}: got {}, which cannot be read as one", type_name(data));
        let error = raise("SchemaError", message);
        error.set_cause(data.py(), Some(cause));
        error
    })
}

/// The layout that the keyword arguments of `produce_batch` ask for.
pub(crate) fn layout(
    payload: Option<String>,
    fields: Option<&Bound<'_, PyAny>>,
    json: Option<&Bound<'_, PyAny>>,
    message_id: Option<String>,
    stream_key: Option<String>,
    entry_id: Option<String>,
) -> PyResult<Layout> {
    let json = match json {
        None => None,
        Some(json) => match json.extract::<bool>() {
            Ok(false) => None,
            Ok(true) => Some(Body::Json(None)),
            Err(_) => Some(Body::Json(Some(names("json", json)?))),
        },
    };
    let fields = fields.map(|fields| names("fields", fields)).transpose()?.map(Body::Fields);
    let body = match (payload, fields, json) {
        (None, None, None) => Body::Payload("payload".to_owned()),
        (Some(column), None, None) => Body::Payload(column),
        (None, Some(body), None) | (None, None, Some(body)) => body,
        _ => return Err(raise("SchemaError", "payload, fields and json exclude each other: give one of them")),
    };
    Ok(Layout { body, message_id, stream_key, entry_id })
}

fn names(argument: &str, value: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    // A lone string is a sequence of one-letter names to Python; nobody means that.
    let names = if value.is_instance_of::<PyString>() { None } else { value.extract::<Vec<String>>().ok() };
    names.ok_or_else(|| {
        let shape =
            if argument == "json" { "True, False or a sequence of column names" } else { "a sequence of column names" };
        let got = value.repr().map_or_else(|_| type_name(value), |repr| repr.to_string());
        raise("SchemaError", format!("{argument} must be {shape}: got {got}"))
    })
}

/// The name of the type of `value`, for messages.
pub(crate) fn type_name(value: &Bound<'_, PyAny>) -> String {
    value.get_type().qualname().map_or_else(|_| "an object".to_owned(), |name| name.to_string())
}
