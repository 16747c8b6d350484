//! The arguments of one message.

use headrace_core::{IdArgument, Message};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyDict, PyInt, PyMemoryView, PyString};

use crate::exception::raise;
use crate::fields::Fields;
use crate::shown::type_name;

/// The arguments of a message, but its ID. None is equivalent to an argument that is not given.
#[derive(Clone, Copy)]
pub(crate) struct Parts<'a, 'py> {
    pub(crate) payload: Option<&'a Bound<'py, PyAny>>,
    pub(crate) key: Option<&'a Bound<'py, PyAny>>,
    pub(crate) fields: Option<&'a Bound<'py, PyAny>>,
    pub(crate) stream_key: Option<&'a Bound<'py, PyAny>>,
    pub(crate) entry_id: Option<&'a Bound<'py, PyAny>>,
}

/// Passes the message with these parts to `take`.
pub(crate) fn with_message<T>(parts: Parts<'_, '_>, take: impl FnOnce(&Message<'_>) -> PyResult<T>) -> PyResult<T> {
    let Parts { payload, key, fields, stream_key, entry_id } = parts;
    let fields = fields.map(Fields::new).transpose()?.unwrap_or_default();
    let fields = fields.read()?;
    let entry_id = entry_id.map(|id| text("entry_id", id)).transpose()?.map(str::as_bytes);
    with_optional("payload", payload, |payload| {
        with_optional("key", key, |key| {
            with_optional("stream_key", stream_key, |stream_key| {
                take(&Message { payload, fields: &fields, stream_key, entry_id, key })
            })
        })
    })
}

/// Reads a message ID: a 64-bit int, a str, or nothing.
#[inline]
pub(crate) fn given_id<'a>(id: Option<&'a Bound<'_, PyAny>>) -> PyResult<IdArgument<'a>> {
    let Some(id) = id else { return Ok(IdArgument::None) };
    if let Ok(text) = id.cast::<PyString>() {
        return match text.to_str() {
            Ok(text) => Ok(IdArgument::Text(text)),
            Err(_) => Err(raise("MessageError", "a message ID must be valid Unicode: it has lone surrogates")),
        };
    }
    if id.is_instance_of::<PyInt>() && !id.is_instance_of::<PyBool>() {
        return id.extract().map(IdArgument::Int).map_err(|_| {
            // Python raises when it prints ints of thousands of digits.
            let value = id.str().map_or_else(|_| "a larger one".to_owned(), |text| text.to_string());
            raise("MessageError", format!("an int message ID must fit 64 bits (-2**63 to 2**63-1): {value}"))
        });
    }
    Err(raise("MessageError", format!("a message ID must be a str or an int: got {}", type_name(id))))
}

/// The text of an argument.
fn text<'a>(what: &str, value: &'a Bound<'_, PyAny>) -> PyResult<&'a str> {
    let wrong = |wrong: String| raise("MessageError", format!("{what} must be a str: {wrong}"));
    let text = value.cast::<PyString>().map_err(|_| wrong(format!("got {}", type_name(value))))?;
    text.to_str().map_err(|_| wrong("it has lone surrogates".to_owned()))
}

/// Passes the bytes of an argument to `read`, if it is given.
#[inline]
fn with_optional<T>(
    what: &str,
    value: Option<&Bound<'_, PyAny>>,
    read: impl FnOnce(Option<&[u8]>) -> PyResult<T>,
) -> PyResult<T> {
    match value {
        None => read(None),
        Some(value) => with_bytes(what, value, |value| read(Some(value))),
    }
}

/// Passes the bytes of `value` to `read`, without a copy for `bytes` and `str`. `what` is the name of the argument.
pub(crate) fn with_bytes<T>(
    what: &str,
    value: &Bound<'_, PyAny>,
    read: impl FnOnce(&[u8]) -> PyResult<T>,
) -> PyResult<T> {
    if let Ok(bytes) = value.cast::<PyBytes>() {
        return read(bytes.as_bytes());
    }
    if let Ok(text) = value.cast::<PyString>() {
        return match text.to_str() {
            Ok(text) => read(text.as_bytes()),
            Err(_) => Err(raise("MessageError", format!("a str {what} must be valid Unicode: it has lone surrogates"))),
        };
    }
    // Mutable buffers are copied: they may change while this call waits for room.
    if let Ok(bytes) = value.cast::<PyByteArray>() {
        return read(&bytes.to_vec());
    }
    // A number or a time of numpy has a buffer too, and no length.
    let view = value.len().ok().and_then(|_| PyMemoryView::from(value).ok());
    let Some(view) = view else {
        let message = format!("a {what} must be bytes-like or a str: got {}; {}", type_name(value), encoding(value));
        return Err(raise("MessageError", message));
    };
    read(view.call_method0("tobytes")?.cast::<PyBytes>()?.as_bytes())
}

/// How a value that is neither bytes nor text becomes a payload or a key.
fn encoding(value: &Bound<'_, PyAny>) -> &'static str {
    if value.is_instance_of::<PyDict>() {
        "fields={…} sends a dict as fields, json.dumps(…) as text"
    } else {
        "encode it, as with str(…) or json.dumps(…)"
    }
}
