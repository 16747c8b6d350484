//! The one place where an error of the core becomes a Python exception: the classes are those of `headrace.errors`.

use headrace_core::Error;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::panics;

/// The exception for `error`.
pub(crate) fn to_py(error: &Error) -> PyErr {
    let message = error.to_string();
    Python::attach(panics::log_place);
    match error {
        Error::Config { option, .. } => raise_with("ConfigError", message, Some(("option", option))),
        Error::Schema { .. } => raise("SchemaError", message),
        Error::Message { .. } => raise("MessageError", message),
        Error::State { .. } => raise("StateError", message),
        Error::Reader { message } => crate::reader::to_py(message),
        Error::Internal { .. } => raise("InternalError", message),
        Error::Closed => raise("ClosedError", message),
        // The binding raises what the signal handler raised; this is for a caller that has none.
        Error::Interrupted => pyo3::exceptions::PyKeyboardInterrupt::new_err(()),
        // New kinds of errors must be given a class here; until then none is swallowed.
        _ => raise("HeadraceError", message),
    }
}

/// An exception of the class `name` in `headrace.errors`.
pub(crate) fn raise(name: &str, message: impl Into<String>) -> PyErr {
    raise_with(name, message.into(), None)
}

fn raise_with(name: &str, message: String, attribute: Option<(&str, &str)>) -> PyErr {
    Python::attach(|py| {
        let make = || -> PyResult<PyErr> {
            let class = py.import("headrace.errors")?.getattr(name)?;
            let keywords = PyDict::new(py);
            if let Some((key, value)) = attribute {
                keywords.set_item(key, value)?;
            }
            Ok(PyErr::from_value(class.call((message,), Some(&keywords))?))
        };
        make().unwrap_or_else(|error| error)
    })
}
