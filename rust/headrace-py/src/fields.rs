//! The fields of one message.

use headrace_core::Value;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyMapping, PyMemoryView, PySequence, PyString};

use crate::exception::raise;
use crate::field_value::field_value;
use crate::shown::type_name;

/// A name and a value.
type Pair<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>);

/// Return fields in a form that does not change: pairs of a name and a value.
#[pyfunction]
pub(crate) fn kept_fields<'py>(fields: &Bound<'py, PyAny>) -> PyResult<Vec<Pair<'py>>> {
    let py = fields.py();
    let fields = Fields::new(fields)?;
    // What is wrong with them is said now.
    let values = fields.read()?.into_iter().map(|(_, value)| match value {
        Value::Bytes(bytes) => Some(bytes.into_owned()),
        _ => None,
    });
    let pairs = fields.0.iter().filter(|(_, value)| !value.is_none()).zip(values);
    let kept = |((name, value), bytes): (&Pair<'py>, Option<Vec<u8>>)| {
        let value = bytes.map_or_else(|| value.clone(), |bytes| PyBytes::new(py, &bytes).into_any());
        (name.clone(), value)
    };
    Ok(pairs.map(kept).collect())
}

/// The names and values of the argument `fields`. It owns them: the caller's mapping may change while the message waits for room.
#[derive(Default)]
pub(crate) struct Fields<'py>(Vec<Pair<'py>>);

impl<'py> Fields<'py> {
    pub(crate) fn new(fields: &Bound<'py, PyAny>) -> PyResult<Self> {
        // A subclass may have another order, or other values, than its dict.
        if let Ok(fields) = fields.cast_exact::<PyDict>() {
            return Ok(Self(fields.iter().collect()));
        }
        let pairs = if let Ok(mapping) = fields.cast::<PyMapping>() {
            mapping.items()?.into_any()
        } else if is_sequence(fields) {
            fields.clone()
        } else {
            let got = type_name(fields);
            return Err(raise("MessageError", format!("fields must be a mapping or a sequence of pairs: got {got}")));
        };
        pairs.try_iter()?.map(|pair| pair_of(&pair?)).collect::<PyResult<_>>().map(Self)
    }

    /// The names and values, without those that are None.
    pub(crate) fn read(&self) -> PyResult<Vec<(&[u8], Value<'_>)>> {
        let mut read = Vec::with_capacity(self.0.len());
        for (name, value) in &self.0 {
            let name = name_of(name)?;
            if !value.is_none() {
                read.push((name, field_value(name, value)?));
            }
        }
        Ok(read)
    }
}

fn is_sequence(value: &Bound<'_, PyAny>) -> bool {
    let is_text = value.is_instance_of::<PyString>() || value.is_instance_of::<PyBytes>();
    let is_buffer = value.is_instance_of::<PyByteArray>() || value.is_instance_of::<PyMemoryView>();
    !is_text && !is_buffer && value.cast::<PySequence>().is_ok()
}

fn pair_of<'py>(pair: &Bound<'py, PyAny>) -> PyResult<Pair<'py>> {
    if is_sequence(pair) && pair.len()? == 2 {
        return Ok((pair.get_item(0)?, pair.get_item(1)?));
    }
    let got = type_name(pair);
    Err(raise(
        "MessageError",
        format!("fields must be a mapping or a sequence of pairs: one of its items has the type {got}"),
    ))
}

fn name_of<'a>(name: &'a Bound<'_, PyAny>) -> PyResult<&'a [u8]> {
    if let Ok(bytes) = name.cast::<PyBytes>() {
        return Ok(bytes.as_bytes());
    }
    let Ok(text) = name.cast::<PyString>() else {
        let got = type_name(name);
        return Err(raise("MessageError", format!("fields: a name must be a str or bytes: got {got}")));
    };
    let text = text.to_str().map(str::as_bytes);
    text.map_err(|_| {
        raise("MessageError", "fields: a name that is a str must be valid Unicode: it has lone surrogates")
    })
}
