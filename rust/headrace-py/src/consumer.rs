//! The consumer for Python, and its batches. The GIL is held only to read arguments.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use arrow_schema::SchemaRef;
use headrace_core::endpoint::Form;
use headrace_core::group::entry_ids;
use headrace_core::{
    CONSUMER_OPTIONS, Chosen, Consumer, ConsumerBatch, ConsumerHandle, ConsumerOptions, EntryId, LoopConsumer,
};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule, PyDict, PyList, PyTuple};

use crate::capsules;
use crate::counters::{PyReadCounters, Reading, to_dict};
use crate::endpoint::PyEndpoint;
use crate::entry::{self, PyEntry, PyEntryIterator};
use crate::entry_rows::{EntryRows, Source};
use crate::errors::to_py;
use crate::exception::raise;
use crate::log;
use crate::one_caller;
use crate::options::{column_values, from_python, seconds};
use crate::panics::contained;
use crate::shown::{self, type_name};
use crate::signals::{Logged, without_gil};
use crate::sockets::{Socket, waited};

const IN_USE: &str = "the consumer is in use by another call: poll, flush and close take one caller at a time; create one per \
                      thread, each with a name of its own";

/// The consumer itself, for a call that waits for it.
fn here(consumer: &mut LoopConsumer) -> PyResult<&mut Consumer> {
    consumer.consumer().ok_or_else(|| raise("ConcurrentUseError", IN_USE.to_owned()))
}

/// The native half of `headrace.Consumer`, which documents it.
#[pyclass(frozen, name = "Consumer", module = "headrace._headrace")]
pub(crate) struct PyConsumer {
    inner: Mutex<LoopConsumer>,
    /// As long as it is not open.
    closed: ConsumerHandle,
    open: OnceLock<ConsumerHandle>,
    /// The schema of the batches, once it is known.
    schema: OnceLock<SchemaRef>,
}

impl PyConsumer {
    /// Locks the consumer for a call that reads, including against a signal handler that runs during it.
    fn lock(&self) -> PyResult<MutexGuard<'_, LoopConsumer>> {
        one_caller::lock(&self.inner, || IN_USE.to_owned())
    }

    fn handle(&self) -> &ConsumerHandle {
        self.open.get().unwrap_or(&self.closed)
    }

    /// The batch that a poll returned, for Python.
    fn batch(&self, py: Python<'_>, batch: Option<ConsumerBatch>) -> Option<PyConsumerBatch> {
        let batch = batch?;
        if let Some(text) = batch.misspelt() {
            log::notice(text).write().unwrap_or_else(|error| error.write_unraisable(py, None));
        }
        self.schema.get_or_init(|| batch.record_batch().schema());
        Some(PyConsumerBatch { batch, rows: OnceLock::new(), handle: self.handle().clone() })
    }
}

#[pymethods]
impl PyConsumer {
    /// Checks the options. Unless an event loop does that later, connects, creates the groups, and starts the thread that
    /// renews leases.
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
        let options = ConsumerOptions::new(column_values(options, CONSUMER_OPTIONS)?, Form::Typed, schema.as_deref());
        let options = options.map_err(|error| to_py(&error))?;
        let mut inner = Consumer::new(&endpoint.get().0, &streams, options).map_err(|error| to_py(&error))?;
        if opens {
            without_gil(py, |signals| inner.open(signals))?;
        }
        let schema = inner.schema().map_or_else(OnceLock::new, OnceLock::from);
        let (closed, open) = (inner.handle(), OnceLock::new());
        Ok(Self { closed, open, schema, inner: Mutex::new(LoopConsumer::new(inner, Box::new(Logged))) })
    }

    /// Return the next batch, or None after `timeout` seconds or once `stop` was called.
    #[pyo3(signature = (timeout = None))]
    fn poll(&self, py: Python<'_>, timeout: Option<&Bound<'_, PyAny>>) -> PyResult<Option<PyConsumerBatch>> {
        contained(py, || {
            let timeout = timeout.map(|given| seconds("timeout", given)).transpose()?;
            let mut inner = self.lock()?;
            let consumer = here(&mut inner)?;
            let batch = without_gil(py, |signals| consumer.next_batch(timeout, signals))?;
            Ok(self.batch(py, batch))
        })
    }

    /// Begin to connect, and to create the groups.
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

    /// Begin to wait for the server to process every `ack`, `fail` and `release`, for at most `timeout` seconds.
    #[pyo3(signature = (timeout = None))]
    fn begin_flush(&self, timeout: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let timeout = timeout.map(|given| seconds("timeout", given)).transpose()?;
        self.lock()?.begin_flush(timeout);
        Ok(())
    }

    /// Begin to close the consumer.
    fn begin_close(&self, releases: bool, timeout: &Bound<'_, PyAny>) -> PyResult<()> {
        let timeout = seconds("timeout", timeout)?;
        self.lock()?.begin_close(releases, timeout);
        Ok(())
    }

    /// Do what can be done without waiting of what was begun, and renew leases.
    ///
    /// Returns whether it is over; the sockets to watch, as (connection, descriptor, whether to wait until it is
    /// writable too); and in how many seconds to call again at the latest, or None.
    fn advance(&self, py: Python<'_>) -> PyResult<(bool, Vec<Socket>, Option<f64>)> {
        contained(py, || {
            let mut inner = self.lock()?;
            let consumer = &mut *inner;
            py.detach(|| consumer.advance());
            if self.open.get().is_none()
                && let Some(handle) = consumer.handle()
            {
                self.open.get_or_init(|| handle);
            }
            if let Some(late) = consumer.take_late() {
                let text = format!(
                    "the event loop was blocked for {:.1} s, and leases of its consumer were not renewed: other consumers may \
                     have taken its entries over, and ConsumerBatch.check raises LeaseLostError then",
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

    /// Return the batch that a poll has returned, or None.
    fn take_batch(&self, py: Python<'_>) -> PyResult<Option<PyConsumerBatch>> {
        contained(py, || {
            let polled = self.lock()?.take_batch();
            Ok(self.batch(py, polled.transpose().map_err(|error| to_py(&error))?.flatten()))
        })
    }

    /// Return what a flush or a close has returned.
    fn take_report<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let reported = self.lock()?.take_report();
        let report = reported.transpose().map_err(|error| to_py(&error))?.unwrap_or_default();
        to_dict(py, report.counts())
    }

    /// Whether `stop` was called.
    #[getter]
    fn is_stopped(&self) -> bool {
        self.handle().is_stopped()
    }

    /// Whether leases must be renewed, or decisions be sent, soon: call `advance`.
    #[getter]
    fn is_woken(&self) -> bool {
        self.inner.try_lock().is_ok_and(|consumer| consumer.is_woken())
    }

    /// Read a stream no longer.
    fn drop_stream(&self, stream: &[u8]) -> PyResult<()> {
        here(&mut *self.lock()?)?.drop_stream(stream).map_err(|error| to_py(&error))
    }

    /// Wait until the server has processed every `ack`, `fail` and `release`, for at most `timeout` seconds.
    ///
    /// Returns the counts by name, as `headrace.ReadReport` takes them.
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

    /// Close the consumer; with `releases`, entries without an `ack`, `fail` or `release` go back to the group.
    fn close<'py>(&self, py: Python<'py>, releases: bool, timeout: &Bound<'_, PyAny>) -> PyResult<Bound<'py, PyDict>> {
        let report = contained(py, || {
            let timeout = seconds("timeout", timeout)?;
            let mut inner = self.lock()?;
            let consumer = here(&mut inner)?;
            without_gil(py, |signals| consumer.close(releases, timeout, signals))
        })?;
        to_dict(py, report.counts())
    }

    /// Whether another consumer of the same name was there when this one connected, and half a second later.
    #[getter]
    fn has_namesake(&self) -> bool {
        self.handle().has_namesake()
    }

    /// Return no further batches: `poll` returns None. Can be called from any thread and from a signal handler.
    fn stop(&self) {
        self.handle().stop();
    }

    /// Return the counts so far.
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        to_dict(py, self.handle().report().map_err(|error| to_py(&error))?.counts())
    }

    /// The number of entries that were acknowledged, failed or released, and that the server has not replied to.
    ///
    /// Zero once the consumer is closed, and in a forked process.
    #[getter]
    fn unconfirmed(&self) -> u64 {
        self.handle().unconfirmed()
    }

    /// The counters so far; `headrace.Consumer.stats` reads them.
    #[getter]
    fn counters(&self) -> PyReadCounters {
        PyReadCounters(Reading::Consumer(self.handle().clone()))
    }

    /// Acknowledge an entry, the entries of a batch, or those that `mask` selects.
    #[pyo3(signature = (batch, mask = None))]
    #[allow(clippy::needless_pass_by_value)] // what pyo3 extracts
    fn ack(&self, batch: &Bound<'_, PyAny>, mask: Option<Vec<bool>>) -> PyResult<()> {
        let (batch, rows) = own(batch, mask.as_deref(), "ack_ids")?;
        self.handle().ack(batch, rows).map_err(|error| to_py(&error))
    }

    /// Acknowledge the entries with these IDs.
    #[allow(clippy::needless_pass_by_value)] // what pyo3 extracts
    fn ack_ids(&self, stream: &[u8], entry_ids: Vec<Bound<'_, PyAny>>) -> PyResult<()> {
        self.handle().ack_ids(stream, &ids(&entry_ids)?).map_err(|error| to_py(&error))
    }

    /// Report an entry, the entries of a batch, or those that `mask` selects, as failed.
    #[pyo3(signature = (batch, mask, reason, delay))]
    #[allow(clippy::needless_pass_by_value)] // what pyo3 extracts
    fn fail(
        &self,
        batch: &Bound<'_, PyAny>,
        mask: Option<Vec<bool>>,
        reason: &str,
        delay: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let delay = delay.map(|given| seconds("delay", given)).transpose()?;
        let (batch, rows) = own(batch, mask.as_deref(), "fail_ids")?;
        self.handle().fail(batch, rows, reason, delay).map_err(|error| to_py(&error))
    }

    /// Report the entries with these IDs as failed. Returns the IDs that this consumer does not have.
    #[allow(clippy::needless_pass_by_value)] // what pyo3 extracts
    fn fail_ids(
        &self,
        stream: &[u8],
        entry_ids: Vec<Bound<'_, PyAny>>,
        reason: &str,
        delay: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Vec<String>> {
        let delay = delay.map(|given| seconds("delay", given)).transpose()?;
        texts(self.handle().fail_ids(stream, &ids(&entry_ids)?, reason, delay))
    }

    /// Give an entry, the entries of a batch, or those that `mask` selects, back to the group.
    #[pyo3(signature = (batch, mask, delay))]
    #[allow(clippy::needless_pass_by_value)] // what pyo3 extracts
    fn release(&self, batch: &Bound<'_, PyAny>, mask: Option<Vec<bool>>, delay: &Bound<'_, PyAny>) -> PyResult<()> {
        let delay = seconds("delay", delay)?;
        let (batch, rows) = own(batch, mask.as_deref(), "release_ids")?;
        self.handle().release(batch, rows, delay).map_err(|error| to_py(&error))
    }

    /// Give the entries with these IDs back to the group. Returns the IDs that this consumer does not have.
    #[allow(clippy::needless_pass_by_value)] // what pyo3 extracts
    fn release_ids(
        &self,
        stream: &[u8],
        entry_ids: Vec<Bound<'_, PyAny>>,
        delay: &Bound<'_, PyAny>,
    ) -> PyResult<Vec<String>> {
        let delay = seconds("delay", delay)?;
        texts(self.handle().release_ids(stream, &ids(&entry_ids)?, delay))
    }

    /// Return the schema of the batches as a `PyCapsule`.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        capsules::export_known_schema(py, self.schema.get())
    }
}

/// Entries of one stream, delivered to a consumer, as an Arrow record batch with one row each.
///
/// `for entry in batch` and `batch[0]` return rows as objects of the class `Entry`, and `batch.to_pylist()` as dicts.
/// `pyarrow.record_batch(batch)`, `polars.DataFrame(batch)` and others take the batch without a copy.
#[pyclass(frozen, sequence, name = "ConsumerBatch", module = "headrace._headrace")]
pub(crate) struct PyConsumerBatch {
    batch: ConsumerBatch,
    rows: OnceLock<Arc<EntryRows>>,
    handle: ConsumerHandle,
}

impl PyConsumerBatch {
    fn rows(&self) -> PyResult<&Arc<EntryRows>> {
        if let Some(rows) = self.rows.get() {
            return Ok(rows);
        }
        let rows = Arc::new(EntryRows::new(Source::Consumed(self.batch.clone()))?);
        Ok(self.rows.get_or_init(|| rows))
    }
}

#[pymethods]
impl PyConsumerBatch {
    /// The number of rows.
    #[getter]
    fn num_rows(&self) -> usize {
        self.batch.record_batch().num_rows()
    }

    /// The key of the stream.
    #[getter]
    fn stream<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.batch.stream())
    }

    /// The IDs of the entries, in the order of the rows.
    #[getter]
    fn entry_ids(&self) -> Vec<String> {
        self.batch.ids().iter().map(EntryId::to_string).collect()
    }

    /// Before a commit, raise `LeaseLostError` if entries of the batch may belong to another consumer by now.
    fn check(&self) -> PyResult<()> {
        self.handle.check(&self.batch).map_err(|error| to_py(&error))
    }

    /// Return the batch as `PyCapsule`s of the Arrow C data interface.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        capsules::export_batch(py, self.batch.record_batch(), requested_schema)
    }

    /// Return the schema of the batch as a `PyCapsule`.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        capsules::export_schema(py, self.batch.record_batch().schema_ref())
    }

    fn __len__(&self) -> usize {
        self.num_rows()
    }

    /// True also without rows: a loop over `poll` or `read` ends with None.
    #[allow(clippy::unused_self)] // the protocol requires a method
    fn __bool__(&self) -> bool {
        true
    }

    fn __iter__(&self) -> PyResult<PyEntryIterator> {
        Ok(PyEntryIterator::new(self.rows()?))
    }

    fn __getitem__<'py>(&self, row: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        entry::select(self.rows()?, row)
    }

    /// Return a dict for each row, with the values of all columns as Python objects; no Arrow library is needed.
    ///
    /// The values are those of pyarrow's `to_pylist`: `Decimal`, `datetime` with a `ZoneInfo`, `UUID`, and so on; a
    /// map is a list of pairs. A value that Python's `datetime` cannot hold (nanoseconds, years outside 1 to 9999) is
    /// a `ValueError` that names its column and row: read it with an Arrow library.
    fn to_pylist<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        contained(py, || self.rows()?.to_pylist(py))
    }

    /// Return the ID, and names and beginnings of values, of the first rows, for notebooks.
    fn _shown_rows<'py>(&self, py: Python<'py>, rows: usize, fields: usize) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        contained(py, || entry::shown_rows(py, self.rows()?, [rows, fields]))
    }

    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        shown::html(slf)
    }

    fn __getattr__(slf: &Bound<'_, Self>, name: &str) -> PyResult<()> {
        Err(shown::no_attribute(slf, name))
    }

    fn __repr__(&self) -> String {
        let ids = self.batch.ids();
        let ends = [ids.first(), ids.last()].map(|id| id.copied().unwrap_or_default().to_string());
        shown::batch("ConsumerBatch", self.num_rows(), self.batch.stream(), ends)
    }
}

/// The batch and the rows that were passed; `by_ids` is the method that takes entry IDs in their place.
fn own<'a>(
    given: &'a Bound<'_, PyAny>,
    mask: Option<&'a [bool]>,
    by_ids: &str,
) -> PyResult<(&'a ConsumerBatch, Chosen<'a>)> {
    if let Ok(batch) = given.cast::<PyConsumerBatch>() {
        return Ok((&batch.get().batch, mask.into()));
    }
    if given.is_none() {
        return Err(PyTypeError::new_err("batch is None: poll returned no batch"));
    }
    let got = match given.cast::<PyEntry>().map(|entry| entry.get().consumed()) {
        Ok(Some((batch, row))) if mask.is_none() => return Ok((batch, Chosen::Row(row))),
        Ok(Some(_)) => return Err(PyTypeError::new_err("mask selects rows of a batch, got an Entry: leave it out")),
        Ok(None) => "an Entry of a Reader".to_owned(),
        Err(_) => type_name(given),
    };
    let message =
        format!("batch must be one that poll returned, or an entry of one, got {got}; {by_ids} takes entry IDs");
    Err(PyTypeError::new_err(message))
}

fn ids(given: &[Bound<'_, PyAny>]) -> PyResult<Vec<EntryId>> {
    let given = given.iter().map(from_python).collect::<PyResult<Vec<_>>>()?;
    let mut ids = entry_ids(given).map_err(|error| to_py(&error))?;
    ids.sort_unstable();
    Ok(ids)
}

fn texts(ids: headrace_core::Result<Vec<EntryId>>) -> PyResult<Vec<String>> {
    Ok(ids.map_err(|error| to_py(&error))?.iter().map(EntryId::to_string).collect())
}
