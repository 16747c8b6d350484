//! Option values: converts Python's to the core's, which makes every check, and back.

use std::time::Duration;

use headrace_core::Error;
use headrace_core::endpoint::{OPTIONS, OptionSpec, OptionValue, Provider, Takes};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyDict, PyFloat, PyInt, PyMapping, PyString, PyTuple};
use zeroize::Zeroizing;

use crate::errors::to_py;
use crate::password::Callable;
use crate::shown::repr;

/// The items of `options` as the core takes them.
pub(crate) fn option_values(options: &Bound<'_, PyDict>) -> PyResult<Vec<(String, OptionValue)>> {
    options.iter().map(|(name, value)| to_option(&name, &value)).collect()
}

/// The options of `table` as they were given; sequences of names are column names.
pub(crate) fn column_values(options: &Bound<'_, PyDict>, table: &[OptionSpec]) -> PyResult<Vec<(String, OptionValue)>> {
    let mut values = option_values(options)?;
    for (name, value) in &mut values {
        let given = options.get_item(&*name)?.filter(|given| !given.is_instance_of::<PyString>());
        let takes_columns = table.iter().any(|spec| {
            spec.name == name && matches!(spec.takes, Takes::Columns | Takes::ColumnsOrAll | Takes::RenamedColumns)
        });
        if let Some(names) = given.filter(|_| takes_columns).and_then(|given| given.extract::<Vec<String>>().ok()) {
            *value = OptionValue::Names(names);
        }
    }
    Ok(values)
}

fn to_option(name: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<(String, OptionValue)> {
    // A key that is not a str is an unknown option: the core's message for those names it.
    let name = name.str()?.to_string_lossy().into_owned();
    let spec = OPTIONS.iter().find(|spec| spec.name == name);
    let takes_path = spec.is_some_and(OptionSpec::takes_path);
    let takes_nodes = spec.is_some_and(|spec| spec.takes == Takes::Nodes) && !value.is_instance_of::<PyString>();
    let value = if let Some(nodes) = takes_nodes.then(|| value.extract::<Vec<String>>().ok()).flatten() {
        OptionValue::Names(nodes)
    } else if takes_path && value.hasattr("__fspath__")? {
        from_python(&value.py().import("os")?.call_method1("fsdecode", (value,))?)?
    } else {
        match from_python(value)? {
            OptionValue::Other(_) if value.is_callable() && spec.is_some_and(|spec| spec.takes == Takes::Secret) => {
                OptionValue::Provider(Provider::new(Callable::new(value)))
            }
            value => value,
        }
    };
    Ok((name, value))
}

pub(crate) fn from_python(value: &Bound<'_, PyAny>) -> PyResult<OptionValue> {
    // bool before int: Python's is a subclass of it.
    if value.is_none() {
        Ok(OptionValue::Null)
    } else if let Ok(value) = value.cast::<PyBool>() {
        Ok(OptionValue::Bool(value.is_true()))
    } else if let Ok(value) = value.cast::<PyInt>() {
        Ok(value
            .extract()
            .map_or_else(|_| OptionValue::Other("int of more than 128 bits".to_owned()), OptionValue::Int))
    } else if let Ok(value) = value.cast::<PyFloat>() {
        Ok(OptionValue::Float(value.extract()?))
    } else if let Ok(value) = value.cast::<PyString>() {
        let text = value.to_str().map(|text| OptionValue::Text(Zeroizing::new(text.to_owned())));
        Ok(text.unwrap_or_else(|_| OptionValue::Other("str with a lone surrogate".to_owned())))
    } else if let Ok(value) = value.cast::<PyBytes>() {
        Ok(OptionValue::Bytes(Zeroizing::new(value.as_bytes().to_vec())))
    } else if let Ok(value) = value.cast::<PyByteArray>() {
        Ok(OptionValue::Bytes(Zeroizing::new(value.to_vec())))
    } else if let Ok(value) = value.cast::<PyMapping>() {
        // The core reads mappings as JSON, as they come in files and from Spark.
        let json =
            value.py().import("json")?.call_method1("dumps", (value.py().get_type::<PyDict>().call1((value,))?,));
        Ok(match json {
            Ok(json) => OptionValue::text(json.cast::<PyString>()?.to_str()?),
            Err(_) => OptionValue::Other("mapping that JSON cannot represent".to_owned()),
        })
    } else {
        Ok(OptionValue::Other(value.get_type().name()?.to_string()))
    }
}

pub(crate) fn to_python<'py>(py: Python<'py>, value: &OptionValue) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        OptionValue::Null | OptionValue::Other(_) => py.None().into_bound(py),
        OptionValue::Bool(value) => PyBool::new(py, *value).to_owned().into_any(),
        OptionValue::Int(value) => value.into_pyobject(py)?.into_any(),
        OptionValue::Float(value) => PyFloat::new(py, *value).into_any(),
        OptionValue::Text(text) => PyString::new(py, text).into_any(),
        OptionValue::Bytes(bytes) => PyBytes::new(py, bytes).into_any(),
        OptionValue::Names(names) => PyTuple::new(py, names)?.into_any(),
        OptionValue::Provider(provider) => match provider.get().as_any().downcast_ref::<Callable>() {
            Some(callable) => callable.object(py),
            None => py.None().into_bound(py),
        },
    })
}

pub(crate) fn to_dict<'py>(py: Python<'py>, options: Vec<(&'static str, OptionValue)>) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (name, value) in options {
        dict.set_item(name, to_python(py, &value)?)?;
    }
    Ok(dict)
}

/// A duration given in seconds.
pub(crate) fn seconds(option: &str, given: &Bound<'_, PyAny>) -> PyResult<Duration> {
    given.extract().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).ok_or_else(|| {
        let message = format!("{option} must be a number of seconds of at least 0, got {}", repr(given));
        to_py(&Error::config(option, message))
    })
}
