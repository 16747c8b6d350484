//! A Python callable that returns the password at each connect.

use std::any::Any;

use headrace_core::endpoint::{NoPassword, PasswordProvider, Secret};
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyString};

use crate::signals::raise_later;

/// The callable, and its name for messages.
pub(crate) struct Callable {
    object: Py<PyAny>,
    name: String,
}

impl Callable {
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> Self {
        Self { name: name_of(object), object: object.clone().unbind() }
    }

    pub(crate) fn object<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        self.object.bind(py).clone()
    }
}

impl PasswordProvider for Callable {
    fn ask(&self) -> Result<Secret, NoPassword> {
        Python::attach(|py| match self.object.bind(py).call0() {
            Ok(password) => secret(&password),
            // Without its message, which may contain the password or another secret.
            Err(error) if error.is_instance_of::<PyException>(py) => {
                let class = error.get_type(py);
                let name = class.fully_qualified_name().map_or_else(|_| "an exception".to_owned(), |n| n.to_string());
                Err(NoPassword::Failed(format!("raised {name}")))
            }
            Err(error) => {
                raise_later(error);
                Err(NoPassword::Interrupted)
            }
        })
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn equals(&self, other: &dyn PasswordProvider) -> bool {
        let Some(other) = other.as_any().downcast_ref::<Self>() else { return false };
        // By equality too: each access to a bound method creates a new object.
        Python::attach(|py| self.object.is(&other.object) || self.object.bind(py).eq(&other.object).unwrap_or(false))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn secret(password: &Bound<'_, PyAny>) -> Result<Secret, NoPassword> {
    let bytes = if let Ok(bytes) = password.cast::<PyBytes>() {
        bytes.as_bytes().to_vec()
    } else if let Ok(bytes) = password.cast::<PyByteArray>() {
        bytes.to_vec()
    } else if let Ok(text) = password.cast::<PyString>() {
        match text.to_str() {
            Ok(text) => text.as_bytes().to_vec(),
            Err(_) => return Err(NoPassword::Failed("returned a str with a lone surrogate".to_owned())),
        }
    } else {
        let name = password.get_type().name().map_or_else(|_| "another type".to_owned(), |name| name.to_string());
        return Err(NoPassword::Failed(format!("returned {name}, not str or bytes")));
    };
    Ok(Secret::new(bytes))
}

/// The module and qualified name of a callable or of its class. Never the repr, which may show anything.
fn name_of(object: &Bound<'_, PyAny>) -> String {
    let named = |of: &Bound<'_, PyAny>| {
        let text = |name: &str| of.getattr(name).ok()?.extract::<String>().ok();
        let name = text("__qualname__")?;
        Some(match text("__module__") {
            Some(module) if module != "builtins" => format!("{module}.{name}"),
            _ => name,
        })
    };
    named(object).or_else(|| named(object.get_type().as_any())).unwrap_or_else(|| "without a name".to_owned())
}
