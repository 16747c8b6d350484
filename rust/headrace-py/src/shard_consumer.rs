//! The shard consumer for Python. The GIL is held only to read arguments.

use std::sync::{Mutex, MutexGuard, OnceLock};

use arrow_schema::SchemaRef;
use headrace_core::endpoint::Form;
use headrace_core::{Polled, SHARD_CONSUMER_OPTIONS, ShardBatch, ShardConsumer, ShardConsumerOptions, ShardHandle};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule, PyDict, PyList};

use crate::capsules;
use crate::counters::to_dict;
use crate::endpoint::PyEndpoint;
use crate::entry::PyEntry;
use crate::errors::to_py;
use crate::log;
use crate::one_caller::{self, ONE_CALLER};
use crate::options::{column_values, seconds};
use crate::panics::contained;
use crate::shard_batch::PyShardBatch;
use crate::shown::type_name;
use crate::signals::without_gil;

/// What a poll returned, and its name.
type PolledRow<'py> = (&'static str, Bound<'py, PyAny>);

/// The native half of `headrace.ShardConsumer`, which documents it.
#[pyclass(frozen, name = "ShardConsumer", module = "headrace._headrace")]
pub(crate) struct PyShardConsumer {
    inner: Mutex<ShardConsumer>,
    handle: ShardHandle,
    /// The schema of the batches, once it is known.
    schema: OnceLock<SchemaRef>,
}

impl PyShardConsumer {
    /// Locks the consumer for a call that reads, including against a signal handler that runs during it.
    fn lock(&self) -> PyResult<MutexGuard<'_, ShardConsumer>> {
        one_caller::lock(&self.inner, || format!("the consumer is in use by another call: {ONE_CALLER}"))
    }
}

#[pymethods]
impl PyShardConsumer {
    /// Checks the options, finds out where the streams are, and starts the thread that takes and renews leases.
    #[new]
    #[pyo3(signature = (endpoint, streams, options, schema = None))]
    #[allow(clippy::needless_pass_by_value)] // what pyo3 extracts
    fn new(
        py: Python<'_>,
        endpoint: &Bound<'_, PyEndpoint>,
        streams: Vec<Vec<u8>>,
        options: &Bound<'_, PyDict>,
        schema: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let schema = schema.map(capsules::schema_of).transpose()?;
        let options = column_values(options, SHARD_CONSUMER_OPTIONS)?;
        let options = ShardConsumerOptions::new(options, Form::Typed, schema.as_deref());
        let options = options.map_err(|error| to_py(&error))?;
        let mut inner = ShardConsumer::new(&endpoint.get().0, &streams, options).map_err(|error| to_py(&error))?;
        without_gil(py, |signals| inner.open(signals))?;
        let schema = inner.schema().map_or_else(OnceLock::new, OnceLock::from);
        Ok(Self { handle: inner.handle(), schema, inner: Mutex::new(inner) })
    }

    /// Return the next batch, or the streams that came or went, or nothing after `timeout` seconds or once `stop` was called.
    ///
    /// The first is "batch", "assigned", "revoked" or "nothing", the second a `ShardBatch`, a list of keys, or None.
    #[pyo3(signature = (timeout = None))]
    fn poll<'py>(&self, py: Python<'py>, timeout: Option<&Bound<'py, PyAny>>) -> PyResult<PolledRow<'py>> {
        contained(py, || {
            let timeout = timeout.map(|given| seconds("timeout", given)).transpose()?;
            let mut inner = self.lock()?;
            let consumer = &mut *inner;
            let polled = without_gil(py, |signals| consumer.poll(timeout, signals))?;
            let keys = |keys: Vec<Vec<u8>>| PyList::new(py, keys.iter().map(|key| PyBytes::new(py, key)));
            Ok(match polled {
                Polled::Batch(batch) => {
                    if let Some(text) = batch.entries().misspelt() {
                        log::notice(text).write().unwrap_or_else(|error| error.write_unraisable(py, None));
                    }
                    self.schema.get_or_init(|| batch.entries().record_batch().schema());
                    let batch = PyShardBatch::new(*batch, self.handle.clone());
                    ("batch", Bound::new(py, batch)?.into_any())
                }
                Polled::Assigned(streams) => ("assigned", keys(streams)?.into_any()),
                Polled::Revoked(streams) => ("revoked", keys(streams)?.into_any()),
                Polled::Nothing => ("nothing", py.None().into_bound(py)),
            })
        })
    }

    /// Commit a batch, or the entries of its batch up to an entry, and everything before it in its stream.
    fn commit(&self, batch: &Bound<'_, PyAny>) -> PyResult<()> {
        let (batch, row) = own(batch)?;
        self.handle.commit(batch, row).map_err(|error| to_py(&error))
    }

    /// The keys of the streams that this member owns.
    #[getter]
    fn assignment<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        self.handle.assignment().iter().map(|key| PyBytes::new(py, key)).collect()
    }

    /// Wait until the server has processed every commit, for at most `timeout` seconds.
    ///
    /// Returns the counts by name, as `headrace.ShardReport` takes them.
    #[pyo3(signature = (timeout = None))]
    fn flush<'py>(&self, py: Python<'py>, timeout: Option<&Bound<'_, PyAny>>) -> PyResult<Bound<'py, PyDict>> {
        let report = contained(py, || {
            let timeout = timeout.map(|given| seconds("timeout", given)).transpose()?;
            let mut inner = self.lock()?;
            let consumer = &mut *inner;
            without_gil(py, |signals| consumer.flush(timeout, signals))
        })?;
        to_dict(py, report.counts())
    }

    /// Close the consumer: send its commits, and give its streams up.
    fn close<'py>(&self, py: Python<'py>, timeout: &Bound<'_, PyAny>) -> PyResult<Bound<'py, PyDict>> {
        let report = contained(py, || {
            let timeout = seconds("timeout", timeout)?;
            let mut inner = self.lock()?;
            let consumer = &mut *inner;
            without_gil(py, |signals| consumer.close(timeout, signals))
        })?;
        to_dict(py, report.counts())
    }

    /// Return no further batches: `poll` returns None. Can be called from any thread and from a signal handler.
    fn stop(&self) {
        self.handle.stop();
    }

    /// Whether `stop` was called.
    #[getter]
    fn is_stopped(&self) -> bool {
        self.handle.is_stopped()
    }

    /// Return the counts so far.
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        to_dict(py, self.handle.report().map_err(|error| to_py(&error))?.counts())
    }

    /// The number of entries that were committed, and that the server has not confirmed.
    ///
    /// Zero once the consumer is closed, and in a forked process.
    #[getter]
    fn unconfirmed(&self) -> u64 {
        self.handle.unconfirmed()
    }

    /// Return the schema of the batches as a `PyCapsule`.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        capsules::export_known_schema(py, self.schema.get())
    }
}

/// The batch that was passed, and the row of an entry.
fn own<'a>(given: &'a Bound<'_, PyAny>) -> PyResult<(&'a ShardBatch, Option<usize>)> {
    if let Ok(batch) = given.cast::<PyShardBatch>() {
        return Ok((&batch.get().batch, None));
    }
    if given.is_none() {
        return Err(PyTypeError::new_err("batch is None: poll returned no batch"));
    }
    let got = match given.cast::<PyEntry>().map(|entry| entry.get().owned()) {
        Ok(Some((batch, row))) => return Ok((batch, Some(row))),
        Ok(None) => "an Entry of a Reader or a Consumer".to_owned(),
        Err(_) => type_name(given),
    };
    Err(PyTypeError::new_err(format!("batch must be one that poll returned, or an entry of one, got {got}")))
}
