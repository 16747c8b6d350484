//! What is said of data that cannot be read as Arrow: what it is, why not, and the call that makes Arrow of it.
//!
//! Known by their types' modules, names and methods: no library is imported, and no method of the object is called that may
//! read data.

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyTuple, PyType};

use crate::errors::raise;
use crate::layout::type_name;
use crate::reader::interruption;

const WANTED: &str = "data must be an Arrow record batch, table or reader";

/// The longest text of a cause, in characters.
const MAX_CAUSE: usize = 256;

/// Methods that return Arrow: those of pyarrow's scanners and datasets, of `DuckDB` new and old, of Parquet files.
const METHODS: [(&str, &str); 5] = [
    ("to_reader", "pass what its .to_reader() returns"),
    ("scanner", "pass what its .scanner().to_reader() returns"),
    ("to_arrow_reader", "pass what its .to_arrow_reader() returns"),
    ("fetch_record_batch", "pass what its .fetch_record_batch() returns"),
    ("iter_batches", "call produce_batch for each of its .iter_batches()"),
];

/// Types of polars that Arrow does not have.
const NOT_IN_ARROW: [&str; 3] = ["Int128", "UInt128", "Object"];

/// The error for data without the Arrow `PyCapsule` interface.
pub(crate) fn no_arrow(data: &Bound<'_, PyAny>) -> PyErr {
    let name = type_name(data);
    let hint = conversion(data).map_or_else(String::new, |hint| format!("; {hint}"));
    let message = format!("{WANTED} (an object with __arrow_c_array__ or __arrow_c_stream__): got {name}{hint}");
    raise("SchemaError", message)
}

/// The error for data with it that could not be read, because of `cause`; what ends the program stays what it is.
pub(crate) fn unreadable(data: &Bound<'_, PyAny>, cause: PyErr) -> PyErr {
    if !cause.is_instance_of::<PyException>(data.py()) {
        return cause;
    }
    let said = text_of(data.py(), &cause);
    if let Some(interruption) = interruption(&said) {
        return interruption;
    }
    let said: String = said.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(MAX_CAUSE).collect();
    let hint = conversion(data).map_or_else(String::new, |hint| format!("; {hint}"));
    let message = format!("{WANTED}: got {}, which cannot be read as one: {said}{hint}", type_name(data));
    let error = raise("SchemaError", message);
    error.set_cause(data.py(), Some(cause));
    error
}

/// How to make Arrow of `data`, if that is known.
pub(crate) fn conversion(data: &Bound<'_, PyAny>) -> Option<String> {
    if let Some(first) = first_of(data) {
        let class = first.get_type();
        return if has(&class, "__arrow_c_array__") {
            Some("pass pyarrow.Table.from_batches(...), or call produce_batch for each".to_owned())
        } else {
            has(&class, "__arrow_c_stream__").then(|| "call produce_batch for each".to_owned())
        };
    }
    let class = data.get_type();
    let module = class.module().map_or_else(|_| String::new(), |module| module.to_string());
    let name = type_name(data);
    match (module.split('.').next().unwrap_or_default(), &*name) {
        ("pyspark", "DataFrame") => return Some("write it by headrace.spark.write(df, endpoint)".to_owned()),
        ("polars", "DataFrame") => return uncast(data),
        ("polars", "LazyFrame") => return Some("pass what its .collect() returns".to_owned()),
        ("pyarrow", name) if name.ends_with("Array") => {
            return Some("a column alone is no table: pass pyarrow.table({\"payload\": column})".to_owned());
        }
        _ if has(&class, "to_frame") => {
            return Some("a column alone is no table: pass what its .to_frame() returns".to_owned());
        }
        // What has the interface is not read by another way.
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

/// Of the type: an object may make up attributes.
fn has(class: &Bound<'_, PyType>, name: &str) -> bool {
    class.hasattr(name).unwrap_or(false)
}

/// Which columns of a frame of polars have to be cast.
fn uncast(frame: &Bound<'_, PyAny>) -> Option<String> {
    let mut columns = Vec::new();
    for item in frame.getattr("schema").ok()?.call_method0("items").ok()?.try_iter().ok()? {
        let (name, data_type) = item.ok()?.extract::<(String, Bound<'_, PyAny>)>().ok()?;
        let data_type = data_type.str().ok()?.to_string();
        if NOT_IN_ARROW.contains(&&*data_type) {
            columns.push(format!("{name:?} ({data_type})"));
        }
    }
    (!columns.is_empty()).then(|| format!("cast the columns that Arrow has no type for: {}", columns.join(", ")))
}

/// What an exception says: its arguments, where these are texts, as those of pyarrow are.
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
