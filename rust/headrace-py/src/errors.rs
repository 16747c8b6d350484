//! The only place where a core error becomes a Python exception. The classes are those of `headrace.errors`.

use headrace_core::Error;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::panics;

/// Converts a core error to its exception.
pub(crate) fn to_py(error: &Error) -> PyErr {
    let message = error.to_string();
    Python::attach(panics::log_place);
    match error {
        Error::Config { option, .. } => raise_with("ConfigError", message, &[("option", option)]),
        Error::Schema { .. } => raise("SchemaError", message),
        Error::Message { .. } => raise("MessageError", message),
        Error::State { .. } => raise("StateError", message),
        Error::Reader { message } => crate::reader::to_py(message),
        Error::Internal { .. } => raise("InternalError", message),
        Error::Connection { .. } => raise("ConnectionFailedError", message),
        Error::Command { code, kind, .. } => {
            raise_with("CommandError", message, &[("code", code), ("kind", kind.as_str())])
        }
        Error::GroupMissing { .. } => raise("GroupMissingError", message),
        Error::Closed => raise("ClosedError", message),
        // The binding raises the exception of the signal handler; this is for calls without one.
        Error::Interrupted => pyo3::exceptions::PyKeyboardInterrupt::new_err(()),
        // A new kind of error needs a class here; until it has one, it is still raised.
        _ => raise("HeadraceError", message),
    }
}

/// Makes an exception of the class `name` in `headrace.errors`.
pub(crate) fn raise(name: &str, message: impl Into<String>) -> PyErr {
    raise_with(name, message.into(), &[])
}

fn raise_with(name: &str, message: String, attributes: &[(&str, &str)]) -> PyErr {
    Python::attach(|py| {
        let make = || -> PyResult<PyErr> {
            let class = py.import("headrace.errors")?.getattr(name)?;
            let keywords = PyDict::new(py);
            for (key, value) in attributes {
                keywords.set_item(key, value)?;
            }
            Ok(PyErr::from_value(class.call((message,), Some(&keywords))?))
        };
        make().unwrap_or_else(|error| error)
    })
}
