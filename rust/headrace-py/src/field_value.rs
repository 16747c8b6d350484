//! The value of a field of one message.

use std::borrow::Cow;

use headrace_core::{Value, quoted};
use pyo3::exceptions::{PyAttributeError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyFloat, PyInt, PyMemoryView, PyString, PyType};

use crate::exception::raise;
use crate::shown::{repr, type_name};

/// The day 1970-01-01 as Python counts days.
const EPOCH: i64 = 719_163;
const MICROS_PER_SECOND: i64 = 1_000_000;
const MICROS_PER_DAY: i64 = 86_400 * MICROS_PER_SECOND;
/// The most digits of a decimal before and after its point: those of the widest column take 76.
const MAX_DIGITS: i64 = 1_000;

/// The value of the field `name`. It is not None.
pub(crate) fn field_value<'a>(name: &[u8], value: &'a Bound<'_, PyAny>) -> PyResult<Value<'a>> {
    if let Ok(bytes) = value.cast::<PyBytes>() {
        return Ok(Value::Bytes(Cow::Borrowed(bytes.as_bytes())));
    }
    if let Ok(text) = value.cast::<PyString>() {
        let text = text.to_str().map_err(|_| wrong(name, "a str with lone surrogates, which must be valid Unicode"))?;
        return Ok(Value::Bytes(Cow::Borrowed(text.as_bytes())));
    }
    if let Ok(value) = value.cast::<PyBool>() {
        return Ok(Value::Bool(value.is_true()));
    }
    if value.is_instance_of::<PyInt>() {
        return integer(name, value);
    }
    if let Ok(value) = value.cast::<PyFloat>() {
        return Ok(Value::Float(value.value()));
    }
    if let Ok(bytes) = value.cast::<PyByteArray>() {
        return Ok(owned(bytes.to_vec()));
    }
    other(name, value)
}

#[inline(never)]
fn other<'a>(name: &[u8], value: &Bound<'_, PyAny>) -> PyResult<Value<'a>> {
    let py = value.py();
    macro_rules! class {
        ($module:literal, $class:literal) => {{
            static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
            CLASS.import(py, $module, $class)?
        }};
    }
    macro_rules! is {
        ($module:literal, $class:literal) => {
            value.is_instance(class!($module, $class))?
        };
    }
    if is!("datetime", "datetime") {
        return timestamp(name, value);
    }
    if is!("datetime", "date") {
        return Ok(Value::Date(i32::try_from(days(value)?)?));
    }
    if is!("datetime", "time") {
        if !value.getattr(intern!(py, "tzinfo"))?.is_none() {
            return Err(wrong(name, "a time with a time zone, which no column has: use a datetime"));
        }
        return Ok(Value::Time(micros_of_day(value)?));
    }
    if is!("datetime", "timedelta") {
        check_nanoseconds(name, value, "nanoseconds")?;
        let micros = micros(value)?.ok_or_else(|| wrong(name, "a timedelta of more microseconds than 64 bits hold"))?;
        return Ok(Value::Duration(micros));
    }
    if is!("decimal", "Decimal") {
        return decimal(name, value, class!("decimal", "Decimal"));
    }
    if is!("uuid", "UUID") {
        // A subclass may show itself in another way.
        let text = class!("uuid", "UUID").call_method1(intern!(py, "__str__"), (value,))?;
        return Ok(owned(text.cast::<PyString>()?.to_str()?.into()));
    }
    match value.call_method0(intern!(py, "__index__")) {
        Ok(number) => return integer(name, &number),
        // An array of numpy has the method too.
        Err(error) if is_missing(py, &error) => {}
        Err(error) => return Err(error),
    }
    if is_numpy_bool(value)? {
        return Ok(Value::Bool(value.is_truthy()?));
    }
    bytes_like(value)?.map(owned).ok_or_else(|| {
        let got = format!(
            "{}, and must be bytes-like, a str, int, float, bool, Decimal, date, time, datetime, timedelta, UUID or None: \
             encode it, as with json.dumps(…)",
            article(&type_name(value))
        );
        wrong(name, got)
    })
}

fn owned<'a>(bytes: Vec<u8>) -> Value<'a> {
    Value::Bytes(Cow::Owned(bytes))
}

fn article(noun: &str) -> String {
    format!("a value of type {noun}")
}

/// The error for a value.
fn wrong(name: &[u8], what: impl AsRef<str>) -> PyErr {
    raise("MessageError", format!("fields: {} is {}", quoted(name), what.as_ref()))
}

fn integer<'a>(name: &[u8], value: &Bound<'_, PyAny>) -> PyResult<Value<'a>> {
    if let Ok(number) = value.extract() {
        return Ok(Value::Int(number));
    }
    // A subclass may show itself in another way. Python raises for ints of thousands of digits.
    let py = value.py();
    let digits = py.get_type::<PyInt>().call_method1(intern!(py, "__repr__"), (value,));
    let digits = digits.map_err(|_| wrong(name, "an int with more digits than Python prints"))?;
    Ok(owned(digits.cast::<PyString>()?.to_str()?.into()))
}

fn timestamp<'a>(name: &[u8], value: &Bound<'_, PyAny>) -> PyResult<Value<'a>> {
    let py = value.py();
    check_nanoseconds(name, value, "nanosecond")?;
    let days = days(value).map_err(|_| wrong(name, format!("{}, which has no date", repr(value))))?;
    let offset = value.call_method0(intern!(py, "utcoffset"))?;
    let offset = if offset.is_none() {
        None
    } else {
        let micros = micros(&offset)?.unwrap_or(1);
        if micros % MICROS_PER_SECOND != 0 {
            return Err(wrong(name, format!("{}, whose offset from UTC is not in whole seconds", repr(value))));
        }
        Some(i32::try_from(micros / MICROS_PER_SECOND)?)
    };
    let local = days.checked_mul(MICROS_PER_DAY).and_then(|micros| micros.checked_add(micros_of_day(value).ok()?));
    let local = local.ok_or_else(|| wrong(name, format!("{}, which has no date", repr(value))))?;
    Ok(Value::Timestamp { local, offset })
}

/// Refuses digits that would be lost: `pandas.Timestamp` is a datetime with nanoseconds, and `Timedelta` a timedelta.
fn check_nanoseconds(name: &[u8], value: &Bound<'_, PyAny>, attribute: &str) -> PyResult<()> {
    let nanoseconds = value.getattr_opt(attribute)?.and_then(|nanoseconds| nanoseconds.extract::<i64>().ok());
    if nanoseconds.unwrap_or(0) == 0 {
        return Ok(());
    }
    Err(wrong(name, format!("{}, which has nanoseconds: use produce_batch, or round it", repr(value))))
}

fn days(value: &Bound<'_, PyAny>) -> PyResult<i64> {
    Ok(value.call_method0(intern!(value.py(), "toordinal"))?.extract::<i64>()? - EPOCH)
}

fn micros_of_day(value: &Bound<'_, PyAny>) -> PyResult<i64> {
    let py = value.py();
    // A subclass may return anything.
    let part = |part: &Bound<'_, PyString>| value.getattr(part)?.extract::<u32>().map(i64::from);
    let minutes = part(intern!(py, "hour"))? * 60 + part(intern!(py, "minute"))?;
    let seconds = minutes * 60 + part(intern!(py, "second"))?;
    Ok(seconds * MICROS_PER_SECOND + part(intern!(py, "microsecond"))?)
}

/// The microseconds of a timedelta; None: 64 bits do not hold them.
fn micros(value: &Bound<'_, PyAny>) -> PyResult<Option<i64>> {
    let py = value.py();
    let part = |part: &Bound<'_, PyString>| value.getattr(part)?.extract::<i32>().map(i64::from);
    let rest = part(intern!(py, "seconds"))? * MICROS_PER_SECOND + part(intern!(py, "microseconds"))?;
    let days = i128::from(part(intern!(py, "days"))?);
    Ok(i64::try_from(days * i128::from(MICROS_PER_DAY) + i128::from(rest)).ok())
}

fn decimal<'a>(name: &[u8], value: &Bound<'_, PyAny>, class: &Bound<'_, PyType>) -> PyResult<Value<'a>> {
    let py = value.py();
    let (_, _, exponent): (u8, Bound<'_, PyAny>, Bound<'_, PyAny>) =
        value.call_method0(intern!(py, "as_tuple"))?.extract()?;
    let Ok(exponent) = exponent.extract::<i64>() else {
        return Err(wrong(name, format!("{}, which no column of decimals has", repr(value))));
    };
    let first = value.call_method0(intern!(py, "adjusted"))?.extract::<i64>()?;
    if exponent < -MAX_DIGITS || first >= MAX_DIGITS {
        let what = format!("a Decimal of more than {MAX_DIGITS} digits before or after the point");
        return Err(wrong(name, what));
    }
    // A column has no negative zero.
    let value = if value.is_truthy()? { value.clone() } else { value.call_method0(intern!(py, "copy_abs"))? };
    // A subclass may show itself in another way.
    let text = class.call_method1(intern!(py, "__format__"), (value, intern!(py, "f")))?;
    Ok(owned(text.cast::<PyString>()?.to_str()?.into()))
}

/// Whether an error of a method says that the object has none.
fn is_missing(py: Python<'_>, error: &PyErr) -> bool {
    error.is_instance_of::<PyAttributeError>(py) || error.is_instance_of::<PyTypeError>(py)
}

fn is_numpy_bool(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    let class = value.get_type();
    Ok(class.module()? == "numpy" && matches!(&*class.name()?.to_string_lossy(), "bool" | "bool_"))
}

/// The bytes of an object with a buffer of bytes; None: it is none. A number or a time of numpy has a buffer too, and no length.
fn bytes_like(value: &Bound<'_, PyAny>) -> PyResult<Option<Vec<u8>>> {
    if value.len().is_err() {
        return Ok(None);
    }
    let Ok(view) = PyMemoryView::from(value) else { return Ok(None) };
    let py = value.py();
    let format = view.getattr(intern!(py, "format"))?;
    let is_bytes = matches!(&*format.cast::<PyString>()?.to_string_lossy(), "B" | "b" | "c");
    if !is_bytes || view.getattr(intern!(py, "ndim"))?.extract::<usize>()? == 0 {
        return Ok(None);
    }
    Ok(Some(view.call_method0(intern!(py, "tobytes"))?.cast::<PyBytes>()?.as_bytes().to_vec()))
}
