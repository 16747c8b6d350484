//! Consumer groups for Python: arguments in, tables and lists out. The core makes every check.

use headrace_core::group::{GroupArguments, PendingQuery, Pins, entry_ids};
use headrace_core::{Error, Group, Watch};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};

use crate::endpoint::PyEndpoint;
use crate::errors::to_py;
use crate::options::{from_python, option_values};
use crate::panics::contained;
use crate::signals::without_gil;
use crate::unpack::PyRows;

/// The native half of `headrace.Group`, which documents it. Arguments are dicts; a None value counts as omitted.
#[pyclass(frozen, name = "Group", module = "headrace._headrace")]
pub(crate) struct PyGroup(Group);

#[pymethods]
impl PyGroup {
    #[new]
    fn new(endpoint: &Bound<'_, PyEndpoint>, arguments: &Bound<'_, PyDict>) -> PyResult<Self> {
        let name = needed(arguments, "name", |given| given.name.take())?;
        Ok(Self(Group::new(endpoint.get().0.clone(), name)))
    }

    /// XGROUP CREATE: `start`, `mkstream`. Returns whether the group was created.
    fn create(&self, py: Python<'_>, arguments: &Bound<'_, PyDict>) -> PyResult<bool> {
        let mkstream = needed(arguments, "mkstream", |given| given.mkstream)?;
        let start = needed(arguments, "start", |given| given.start)?;
        self.call(py, |group, watch| group.create(start, mkstream, watch))
    }

    /// XGROUP SETID: `start`, `entries_read`.
    fn set_position(&self, py: Python<'_>, arguments: &Bound<'_, PyDict>) -> PyResult<()> {
        let start = needed(arguments, "start", |given| given.start)?;
        let entries_read = read(arguments)?.entries_read;
        self.call(py, |group, watch| group.set_position(start, entries_read, watch))
    }

    /// XPENDING: `min_idle`, `consumer`, `start`, `limit`.
    fn pending(&self, py: Python<'_>, arguments: &Bound<'_, PyDict>) -> PyResult<PyRows> {
        let query = PendingQuery::new(option_values(arguments)?).map_err(|error| to_py(&error))?;
        self.call(py, |group, watch| group.pending(&query, watch)).map(PyRows::from)
    }

    #[allow(clippy::needless_pass_by_value)] // pyo3 converts into a vector
    /// XCLAIM of `ids`: `consumer`, `min_idle`. Returns the entry IDs that were claimed.
    fn claim(
        &self,
        py: Python<'_>,
        ids: Vec<Bound<'_, PyAny>>,
        arguments: &Bound<'_, PyDict>,
    ) -> PyResult<Vec<String>> {
        let consumer = needed(arguments, "consumer", |given| given.consumer.take())?;
        let min_idle = needed(arguments, "min_idle", |given| given.min_idle)?;
        let ids = ids.iter().map(from_python).collect::<PyResult<Vec<_>>>()?;
        let ids = entry_ids(ids).map_err(|error| to_py(&error))?;
        let claimed = self.call(py, |group, watch| group.claim(&consumer, &ids, min_idle, watch))?;
        Ok(claimed.iter().map(ToString::to_string).collect())
    }

    /// XGROUP DELCONSUMER of `consumer`, if nothing is pending for it. Returns whether it existed.
    fn delete_consumer(&self, py: Python<'_>, arguments: &Bound<'_, PyDict>) -> PyResult<bool> {
        let consumer = needed(arguments, "consumer", |given| given.consumer.take())?;
        self.call(py, |group, watch| group.delete_consumer(&consumer, watch))
    }

    /// XGROUP DELCONSUMER of those idle for `idle`. Returns their names: each a str, or bytes if it is not UTF-8.
    fn remove_idle_consumers<'py>(
        &self,
        py: Python<'py>,
        arguments: &Bound<'_, PyDict>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let idle = needed(arguments, "idle", |given| given.idle)?;
        let removed = self.call(py, |group, watch| group.remove_idle_consumers(idle, watch))?;
        Ok(removed.iter().map(|name| name_to_py(py, name)).collect())
    }

    #[allow(clippy::needless_pass_by_value)] // pyo3 converts into vectors
    /// HSET or HDEL of leases: `pins`, pairs of a stream and a member or None; `streams`, or the endpoint's.
    fn assign(
        &self,
        py: Python<'_>,
        pins: Vec<(Bound<'_, PyAny>, Bound<'_, PyAny>)>,
        streams: Option<Vec<Bound<'_, PyAny>>>,
    ) -> PyResult<()> {
        let pin = |(stream, member): &(_, _)| Ok((from_python(stream)?, from_python(member)?));
        let pins = pins.iter().map(pin).collect::<PyResult<Vec<_>>>()?;
        let streams = streams.map(|keys| keys.iter().map(from_python).collect::<PyResult<Vec<_>>>()).transpose()?;
        let pins = Pins::new(pins, streams).map_err(|error| to_py(&error))?;
        self.call(py, |group, watch| group.assign(&pins, watch))
    }

    /// XGROUP DESTROY. Returns whether the group existed.
    fn destroy(&self, py: Python<'_>) -> PyResult<bool> {
        self.call(py, Group::destroy)
    }

    /// The name of the group: a str, or bytes if it is not UTF-8.
    #[getter]
    fn name<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        name_to_py(py, self.0.name())
    }
}

impl PyGroup {
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Group, &mut dyn Watch) -> headrace_core::Result<T> + Send,
    ) -> PyResult<T> {
        contained(py, || without_gil(py, |signals| call(&self.0, signals)))
    }
}

fn read(arguments: &Bound<'_, PyDict>) -> PyResult<GroupArguments> {
    GroupArguments::new(option_values(arguments)?).map_err(|error| to_py(&error))
}

/// An argument that must not be None.
fn needed<T>(
    arguments: &Bound<'_, PyDict>,
    name: &str,
    take: impl FnOnce(&mut GroupArguments) -> Option<T>,
) -> PyResult<T> {
    take(&mut read(arguments)?).ok_or_else(|| to_py(&Error::config(name, format!("{name} must not be None"))))
}

fn name_to_py<'py>(py: Python<'py>, name: &[u8]) -> Bound<'py, PyAny> {
    match std::str::from_utf8(name) {
        Ok(text) => PyString::new(py, text).into_any(),
        Err(_) => PyBytes::new(py, name).into_any(),
    }
}
