//! `_headrace.Endpoint`: converts Python values to and from [`Endpoint`]. The core makes every check.

use headrace_core::Endpoint;
use headrace_core::endpoint::{Form, OPTIONS, OptionSpec, OptionValue, Provider, Takes};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyDict, PyFloat, PyInt, PyMapping, PyString, PyTuple};
use zeroize::Zeroizing;

use crate::errors::to_py;
use crate::panics::contained;
use crate::password::Callable;
use crate::signals::without_gil;

/// The native half of `headrace.Endpoint`, which documents the options.
#[pyclass(frozen, subclass, eq, hash, name = "Endpoint", module = "headrace._headrace")]
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct PyEndpoint(pub Endpoint);

#[pymethods]
impl PyEndpoint {
    /// `url` adds options, which those in `options` override with `options_win`; `inherited` is the second half of `_state()`;
    /// with `text` all values are text, which `options_win` requires.
    #[new]
    #[pyo3(signature = (options, *, url = None, inherited = None, text = false, options_win = false))]
    fn new(
        options: &Bound<'_, PyDict>,
        url: Option<&Bound<'_, PyString>>,
        inherited: Option<&Bound<'_, PyDict>>,
        text: bool,
        options_win: bool,
    ) -> PyResult<Self> {
        let options = option_values(options)?;
        let form = if text { Form::Text } else { Form::Typed };
        let endpoint = match (url, inherited) {
            (Some(url), _) if options_win => Endpoint::from_url_under(url.to_str()?, options),
            (Some(url), _) => Endpoint::from_url_in(form, url.to_str()?, options),
            (None, Some(inherited)) => Endpoint::restore(options, option_values(inherited)?),
            (None, None) => Endpoint::new(options, form),
        };
        endpoint.map(Self).map_err(|error| to_py(&error))
    }

    /// The effective value of the option `name`; None for a secret.
    fn _option<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        let value = self.0.effective(name).map_err(|error| to_py(&error))?;
        value.map(|value| to_python(py, &value)).transpose()
    }

    /// The keys of the streams: that of the endpoint, or those of its shards.
    #[getter]
    fn stream_keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.stream_keys().iter().map(|key| PyBytes::new(py, key)))
    }

    /// The options that are not at their defaults, with `'***'` for secrets.
    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let mut shown = Vec::new();
        for (spec, value) in OPTIONS.iter().filter_map(|spec| Some((spec, slf.get().0.option(spec.name)?))) {
            let value = match &value {
                value if spec.hides(value) => "'***'".to_owned(),
                OptionValue::Provider(provider) => format!("{provider:?}"),
                value => to_python(slf.py(), value)?.repr()?.to_string(),
            };
            shown.push(format!("{}={value}", spec.name));
        }
        Ok(format!("{}({})", slf.get_type().name()?, shown.join(", ")))
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    /// The server alone, as `str()` begins.
    fn _server(&self) -> String {
        format!("{:#}", self.0)
    }

    /// The options, secrets included, and the inherited defaults: the constructor's `options` and `inherited`.
    fn _state<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyDict>, Bound<'py, PyDict>)> {
        let inherited = self.0.inherited().map_err(|error| to_py(&error))?;
        Ok((to_dict(py, self.0.options())?, to_dict(py, inherited)?))
    }

    /// The options of the same endpoint with the shards that its stream has; `headrace.Endpoint.find_shards` wraps it.
    fn _found_shards<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyDict>> {
        let (py, endpoint) = (slf.py(), &slf.get().0);
        let found = contained(py, || without_gil(py, |signals| headrace_core::find_shards(endpoint, signals)))?;
        to_dict(py, found.options())
    }

    /// The Rust debug output, for the test that looks for secrets in it.
    fn _debug(&self) -> String {
        format!("{:#?}", self.0)
    }

    /// The warnings for the code that builds the endpoint.
    fn _warnings(&self) -> Vec<String> {
        self.0.warnings()
    }
}

/// The items of `options` as the core takes them.
pub(crate) fn option_values(options: &Bound<'_, PyDict>) -> PyResult<Vec<(String, OptionValue)>> {
    options.iter().map(|(name, value)| to_option(&name, &value)).collect()
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
