//! The token and the version that name a batch. Any Python value becomes one of them or a `MessageError`.

use std::convert::Infallible;

use headrace_core::{Error, wrong_version};
use pyo3::exceptions::{PyException, PyOverflowError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyString};

use crate::errors::to_py;
use crate::exception::raise;
use crate::shown::type_name;

/// An optional argument. Unlike `Option` it distinguishes a missing argument from None.
#[derive(Clone, Copy)]
pub(crate) struct Given<'a, 'py>(pub(crate) Option<Borrowed<'a, 'py, PyAny>>);

impl<'a, 'py> FromPyObject<'a, 'py> for Given<'a, 'py> {
    type Error = Infallible;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> Result<Self, Infallible> {
        Ok(Self(Some(object)))
    }
}

/// Reads a token. The core checks its length.
pub(crate) fn token<'a>(value: &'a Bound<'_, PyAny>) -> PyResult<&'a str> {
    let Ok(text) = value.cast::<PyString>() else {
        return Err(raise("MessageError", format!("a token must be a str: got {}", type_name(value))));
    };
    text.to_str().map_err(|_| raise("MessageError", "a token must be valid Unicode: it has lone surrogates"))
}

/// Reads a version of up to 64 bits; 0 if it is missing. Any object with `__index__` is an integer, as those of numpy are,
/// but not a bool.
pub(crate) fn version(value: Given<'_, '_>) -> PyResult<u64> {
    let Some(value) = value.0 else { return Ok(0) };
    let is_bool = value.is_instance_of::<PyBool>();
    match value.extract::<u64>() {
        Ok(version) if !is_bool => Ok(version),
        Err(error) if error.is_instance_of::<PyOverflowError>(value.py()) => {
            // Python raises when it prints ints of thousands of digits.
            let got = value.str().map_or_else(|_| "a larger one".to_owned(), |text| text.to_string());
            Err(to_py(&wrong_version(got)))
        }
        Err(error) if !error.is_instance_of::<PyException>(value.py()) => Err(error),
        Ok(_) | Err(_) => {
            let message = format!("a version must be an integer: got {}", type_name(&value));
            Err(to_py(&Error::message(message)))
        }
    }
}
