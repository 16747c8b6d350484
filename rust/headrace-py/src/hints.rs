//! Errors for data that is not Arrow: its type, the cause, and the call that converts it to Arrow.
//!
//! Types are recognised by module, name and methods: no library is imported, and no method that may read data is called.

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple, PyType};

use crate::exception::raise;
use crate::reader::interruption;
use crate::shown::type_name;

const WANTED: &str = "data must be an Arrow record batch, table or reader";

/// The maximum length of a cause, in characters.
const MAX_CAUSE: usize = 256;

/// Methods that return Arrow: those of pyarrow's scanners and datasets, of `DuckDB` old and new, and of Parquet files.
const METHODS: [(&str, &str); 5] = [
    ("to_reader", "pass the result of its .to_reader()"),
    ("scanner", "pass the result of its .scanner().to_reader()"),
    ("to_arrow_reader", "pass the result of its .to_arrow_reader()"),
    ("fetch_record_batch", "pass the result of its .fetch_record_batch()"),
    ("iter_batches", "call produce_batch for each of its .iter_batches()"),
];

/// Types of polars without an Arrow equivalent.
const NOT_IN_ARROW: [&str; 3] = ["Int128", "UInt128", "Object"];

/// The error for data without the Arrow `PyCapsule` interface.
pub(crate) fn no_arrow(data: &Bound<'_, PyAny>) -> PyErr {
    let name = type_name(data);
    let hint = conversion(data).map_or_else(String::new, |hint| format!("; {hint}"));
    let message = format!("{WANTED} (an object with __arrow_c_array__ or __arrow_c_stream__): got {name}{hint}");
    raise("SchemaError", message)
}

/// The error for data with the interface that could not be read because of `cause`. Exceptions that end the program pass
/// unchanged.
pub(crate) fn unreadable(data: &Bound<'_, PyAny>, cause: PyErr) -> PyErr {
    if !cause.is_instance_of::<PyException>(data.py()) {
        return cause;
    }
    let reason = text_of(data.py(), &cause);
    if let Some(interruption) = interruption(&reason) {
        return interruption;
    }
    let reason: String = reason.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(MAX_CAUSE).collect();
    let is_mixed = reason.contains("Conversion failed for column");
    let hint = conversion(data).or_else(|| is_mixed.then(|| "give the column values of one type".to_owned()));
    let hint = hint.map_or_else(String::new, |hint| format!("; {hint}"));
    let message = format!("{WANTED}: got {}, which cannot be read as one: {reason}{hint}", type_name(data));
    let error = raise("SchemaError", message);
    error.set_cause(data.py(), Some(cause));
    error
}

/// How to convert `data` to Arrow, if that is known.
pub(crate) fn conversion(data: &Bound<'_, PyAny>) -> Option<String> {
    if let Some(first) = first_of(data) {
        let class = first.get_type();
        return if has(&class, "__arrow_c_array__") {
            Some("pass pyarrow.Table.from_batches(...), or call produce_batch for each".to_owned())
        } else if has(&class, "__arrow_c_stream__") {
            Some("call produce_batch for each".to_owned())
        } else {
            first.is_instance_of::<PyDict>().then(|| "pass pyarrow.Table.from_pylist(rows)".to_owned())
        };
    }
    if data.is_instance_of::<PyDict>() {
        return Some("pass pyarrow.table(columns)".to_owned());
    }
    let class = data.get_type();
    let module = class.module().map_or_else(|_| String::new(), |module| module.to_string());
    let name = type_name(data);
    match (module.split('.').next().unwrap_or_default(), &*name) {
        ("pyspark", "DataFrame") => return Some("write it with headrace.spark.write(df, endpoint)".to_owned()),
        ("polars", "DataFrame") => return uncast(data),
        ("polars", "LazyFrame") => return Some("pass the result of its .collect()".to_owned()),
        ("pyarrow" | "numpy", name) if name.to_ascii_lowercase().ends_with("array") => {
            return Some("a single column is not a table: pass pyarrow.table({\"payload\": column})".to_owned());
        }
        _ if has(&class, "to_frame") => {
            return Some("a single column is not a table: pass the result of its .to_frame()".to_owned());
        }
        // An object with the interface needs no conversion.
        _ if has(&class, "__arrow_c_stream__") || has(&class, "__arrow_c_array__") => return None,
        ("pandas", "DataFrame") => {
            return Some("pass pyarrow.Table.from_pandas(df), or use pandas 2.2 or later".to_owned());
        }
        _ => {}
    }
    if has(&class, "__next__") && !has(&class, "read") {
        return Some("pass pyarrow.RecordBatchReader.from_batches(schema, batches)".to_owned());
    }
    METHODS.iter().find(|(method, _)| has(&class, method)).map(|(_, hint)| (*hint).to_owned())
}

fn first_of<'py>(data: &Bound<'py, PyAny>) -> Option<Bound<'py, PyAny>> {
    if let Ok(list) = data.cast::<PyList>() {
        return list.get_item(0).ok();
    }
    data.cast::<PyTuple>().ok()?.get_item(0).ok()
}

/// Whether the type has the attribute. An object may invent attributes.
fn has(class: &Bound<'_, PyType>, name: &str) -> bool {
    class.hasattr(name).unwrap_or(false)
}

/// Names the columns of a polars frame that must be cast.
fn uncast(frame: &Bound<'_, PyAny>) -> Option<String> {
    let mut columns = Vec::new();
    for item in frame.getattr("schema").ok()?.call_method0("items").ok()?.try_iter().ok()? {
        let (name, data_type) = item.ok()?.extract::<(String, Bound<'_, PyAny>)>().ok()?;
        let data_type = data_type.str().ok()?.to_string();
        if NOT_IN_ARROW.contains(&&*data_type) {
            columns.push(format!("{name:?} ({data_type})"));
        }
    }
    (!columns.is_empty()).then(|| format!("cast the columns without an Arrow type: {}", columns.join(", ")))
}

/// The text of an exception: its arguments if they are texts, as those of pyarrow are.
fn text_of(py: Python<'_>, error: &PyErr) -> String {
    let value = error.value(py);
    let arguments = value.getattr("args").and_then(|args| args.extract::<Vec<Bound<'_, PyString>>>());
    match arguments {
        Ok(texts) if texts.len() > 1 => {
            texts.iter().map(|text| text.to_string_lossy().into_owned()).collect::<Vec<_>>().join("; ")
        }
        Ok(_) | Err(_) => value.str().map_or_else(|_| type_name(value), |text| text.to_string_lossy().into_owned()),
    }
}
