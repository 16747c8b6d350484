//! `_headrace.Endpoint`, made from options. The core makes every check.

use headrace_core::Endpoint;
use headrace_core::endpoint::{Form, OPTIONS, OptionValue};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString, PyTuple};

use crate::errors::to_py;
use crate::options::{option_values, to_dict, to_python};
use crate::panics::contained;
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
