//! Makes the exceptions of `headrace.errors`, by the names of their classes.

use pyo3::prelude::*;
use pyo3::types::PyDict;

/// An exception of the class `name`.
pub(crate) fn raise(name: &str, message: impl Into<String>) -> PyErr {
    raise_with(name, message.into(), |_, _| Ok(()))
}

/// The same with attributes, which `give` sets as the keyword arguments of the class.
pub(crate) fn raise_with(
    name: &str,
    message: String,
    give: impl Fn(Python<'_>, &Bound<'_, PyDict>) -> PyResult<()>,
) -> PyErr {
    Python::attach(|py| {
        let make = || -> PyResult<PyErr> {
            let class = py.import("headrace.errors")?.getattr(name)?;
            let keywords = PyDict::new(py);
            give(py, &keywords)?;
            Ok(PyErr::from_value(class.call((message,), Some(&keywords))?))
        };
        make().unwrap_or_else(|error| error)
    })
}
