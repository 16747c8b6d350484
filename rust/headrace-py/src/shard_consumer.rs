//! The shard consumer for Python. The GIL is held only to read arguments.

use std::sync::{Mutex, MutexGuard, OnceLock};

use arrow_schema::SchemaRef;
use headrace_core::endpoint::Form;
use headrace_core::{
    LoopShardConsumer, Polled, SHARD_CONSUMER_OPTIONS, ShardBatch, ShardConsumer, ShardConsumerOptions, ShardHandle,
};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule, PyDict, PyList};

use crate::capsules;
use crate::counters::{PyReadCounters, Reading, to_dict};
use crate::endpoint::PyEndpoint;
use crate::entry::PyEntry;
use crate::errors::to_py;
use crate::exception::raise;
use crate::log;
use crate::one_caller;
use crate::options::{column_values, seconds};
use crate::panics::contained;
use crate::shard_batch::PyShardBatch;
use crate::shown::type_name;
use crate::signals::{Logged, without_gil};
use crate::sockets::{Socket, waited};

const IN_USE: &str = "the consumer is in use by another call: poll, flush and close take one caller at a time; create one per \
                      thread, each with a name of its own";

/// The consumer itself, for a call that waits for it.
fn here(consumer: &mut LoopShardConsumer) -> PyResult<&mut ShardConsumer> {
    consumer.consumer().ok_or_else(|| raise("ConcurrentUseError", IN_USE.to_owned()))
}

/// What a poll returned, and its name.
type PolledRow<'py> = (&'static str, Bound<'py, PyAny>);

/// The native half of `headrace.ShardConsumer`, which documents it.
#[pyclass(frozen, name = "ShardConsumer", module = "headrace._headrace")]
pub(crate) struct PyShardConsumer {
    inner: Mutex<LoopShardConsumer>,
    handle: ShardHandle,
    /// The schema of the batches, once it is known.
    schema: OnceLock<SchemaRef>,
}

impl PyShardConsumer {
    /// Locks the consumer for a call that reads, including against a signal handler that runs during it.
    fn lock(&self) -> PyResult<MutexGuard<'_, LoopShardConsumer>> {
        one_caller::lock(&self.inner, || IN_USE.to_owned())
    }

    /// What a poll returned, for Python.
    fn polled<'py>(&self, py: Python<'py>, polled: Polled) -> PyResult<PolledRow<'py>> {
        let keys = |keys: Vec<Vec<u8>>| PyList::new(py, keys.iter().map(|key| PyBytes::new(py, key)));
        Ok(match polled {
            Polled::Batch(batch) => {
                if let Some(text) = batch.entries().misspelt() {
                    log::notice(text).write().unwrap_or_else(|error| error.write_unraisable(py, None));
                }
                self.schema.get_or_init(|| batch.entries().record_batch().schema());
                ("batch", Bound::new(py, PyShardBatch::new(*batch, self.handle.clone()))?.into_any())
            }
            Polled::Assigned(streams) => ("assigned", keys(streams)?.into_any()),
            Polled::Revoked(streams) => ("revoked", keys(streams)?.into_any()),
            Polled::Nothing => ("nothing", py.None().into_bound(py)),
        })
    }
}

#[pymethods]
impl PyShardConsumer {
    /// Checks the options. Unless an event loop does that later, finds out where the streams are, and starts the thread that takes
    /// and renews leases.
    #[new]
    #[pyo3(signature = (endpoint, streams, options, schema = None, opens = true))]
    #[allow(clippy::needless_pass_by_value)] // what pyo3 extracts
    fn new(
        py: Python<'_>,
        endpoint: &Bound<'_, PyEndpoint>,
        streams: Vec<Vec<u8>>,
        options: &Bound<'_, PyDict>,
        schema: Option<&Bound<'_, PyAny>>,
        opens: bool,
    ) -> PyResult<Self> {
        let schema = schema.map(capsules::schema_of).transpose()?;
        let options = column_values(options, SHARD_CONSUMER_OPTIONS)?;
        let options = ShardConsumerOptions::new(options, Form::Typed, schema.as_deref());
        let options = options.map_err(|error| to_py(&error))?;
        let mut inner = ShardConsumer::new(&endpoint.get().0, &streams, options).map_err(|error| to_py(&error))?;
        if opens {
            without_gil(py, |signals| inner.open(signals))?;
        }
        let schema = inner.schema().map_or_else(OnceLock::new, OnceLock::from);
        let handle = inner.handle();
        Ok(Self { handle, schema, inner: Mutex::new(LoopShardConsumer::new(inner, Box::new(Logged))) })
    }

    /// Return the next batch, or the streams that came or went; or nothing after `timeout` seconds or `stop`.
    ///
    /// The first is "batch", "assigned", "revoked" or "nothing", the second a `ShardBatch`, a list of keys, or None.
    #[pyo3(signature = (timeout = None))]
    fn poll<'py>(&self, py: Python<'py>, timeout: Option<&Bound<'py, PyAny>>) -> PyResult<PolledRow<'py>> {
        contained(py, || {
            let timeout = timeout.map(|given| seconds("timeout", given)).transpose()?;
            let mut inner = self.lock()?;
            let consumer = here(&mut inner)?;
            let polled = without_gil(py, |signals| consumer.poll(timeout, signals))?;
            self.polled(py, polled)
        })
    }

    /// Begin to find out where the streams are.
    fn begin_open(&self) -> PyResult<()> {
        self.lock()?.begin_open();
        Ok(())
    }

    /// Begin to wait for a batch, for at most `timeout` seconds.
    #[pyo3(signature = (timeout = None))]
    fn begin_poll(&self, timeout: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let timeout = timeout.map(|given| seconds("timeout", given)).transpose()?;
        self.lock()?.begin_poll(timeout);
        Ok(())
    }

    /// Begin to wait for the server to process every commit, for at most `timeout` seconds.
    #[pyo3(signature = (timeout = None))]
    fn begin_flush(&self, timeout: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let timeout = timeout.map(|given| seconds("timeout", given)).transpose()?;
        self.lock()?.begin_flush(timeout);
        Ok(())
    }

    /// Begin to close the consumer.
    fn begin_close(&self, timeout: &Bound<'_, PyAny>) -> PyResult<()> {
        let timeout = seconds("timeout", timeout)?;
        self.lock()?.begin_close(timeout);
        Ok(())
    }

    /// Do what can be done without waiting of what was begun, and take and renew leases.
    ///
    /// Returns whether it is over; the sockets to watch, as (connection, descriptor, whether to wait until it is
    /// writable too); and in how many seconds to call again at the latest, or None.
    fn advance(&self, py: Python<'_>) -> PyResult<(bool, Vec<Socket>, Option<f64>)> {
        contained(py, || {
            let mut inner = self.lock()?;
            let consumer = &mut *inner;
            py.detach(|| consumer.advance()).map_err(|error| to_py(&error))?;
            if let Some(late) = consumer.take_late() {
                let text = format!(
                    "the event loop was blocked for {:.1} s, and leases of its consumer were not renewed: other members may own its \
                     streams, and ShardBatch.check raises LeaseLostError then",
                    late.as_secs_f64()
                );
                log::notice(text).write().unwrap_or_else(|error| error.write_unraisable(py, None));
            }
            let (sockets, seconds) = waited(&consumer.wait());
            Ok((!consumer.is_at_work(), sockets, seconds))
        })
    }

    /// End what was begun. The next call continues from there.
    fn interrupt(&self) -> PyResult<()> {
        self.lock()?.interrupt();
        Ok(())
    }

    /// Raise the error of an open that failed.
    fn take_opened(&self) -> PyResult<()> {
        self.lock()?.take_opened().map_err(|error| to_py(&error))
    }

    /// Return what a poll has returned, as `poll` does.
    fn take_polled<'py>(&self, py: Python<'py>) -> PyResult<PolledRow<'py>> {
        contained(py, || {
            let polled = self.lock()?.take_polled().map_err(|error| to_py(&error))?;
            self.polled(py, polled)
        })
    }

    /// Return what a flush or a close has returned.
    fn take_report<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let reported = self.lock()?.take_report();
        let report = reported.transpose().map_err(|error| to_py(&error))?.unwrap_or_default();
        to_dict(py, report.counts())
    }

    /// Whether leases must be renewed, or commits be sent, soon: call `advance`.
    #[getter]
    fn is_woken(&self) -> bool {
        self.inner.try_lock().is_ok_and(|consumer| consumer.is_woken())
    }

    /// Commit a batch, or the entries of its batch up to an entry, and everything before it in its stream.
    fn commit(&self, batch: &Bound<'_, PyAny>) -> PyResult<()> {
        let (batch, row) = own(batch)?;
        self.handle.commit(batch, row).map_err(|error| to_py(&error))
    }

    /// Report a batch, or an entry of one, as failed.
    #[pyo3(signature = (batch, reason, delay))]
    fn fail(&self, batch: &Bound<'_, PyAny>, reason: &str, delay: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let delay = delay.map(|given| seconds("delay", given)).transpose()?;
        let (batch, row) = own(batch)?;
        self.handle.fail(batch, row, reason, delay).map_err(|error| to_py(&error))
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
            let consumer = here(&mut inner)?;
            without_gil(py, |signals| consumer.flush(timeout, signals))
        })?;
        to_dict(py, report.counts())
    }

    /// Close the consumer: send its commits, and give its streams up.
    fn close<'py>(&self, py: Python<'py>, timeout: &Bound<'_, PyAny>) -> PyResult<Bound<'py, PyDict>> {
        let report = contained(py, || {
            let timeout = seconds("timeout", timeout)?;
            let mut inner = self.lock()?;
            let consumer = here(&mut inner)?;
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

    /// The counters so far; `headrace.ShardConsumer.stats` reads them.
    #[getter]
    fn counters(&self) -> PyReadCounters {
        PyReadCounters(Reading::ShardConsumer(self.handle.clone()))
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
