//! The reader of streams for Python, and its batches. The GIL is held only to read arguments.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use arrow_array::{RecordBatch, RecordBatchIterator};
use arrow_schema::{ArrowError, SchemaRef};
use headrace_core::endpoint::Form;
use headrace_core::{
    EntryTable, Error, LoopReader, READER_OPTIONS, ReadBatch, ReadCounters, Reader, ReaderOptions, ReaderStop,
    entry_lines, quoted,
};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule, PyDict, PyList, PyString, PyTuple};

use crate::capsules;
use crate::counters::{PyReadCounters, Reading};
use crate::endpoint::PyEndpoint;
use crate::entry::{self, PyEntryIterator};
use crate::entry_rows::{EntryRows, Source};
use crate::errors::to_py;
use crate::log;
use crate::one_caller::{self, ONE_CALLER};
use crate::options::{column_values, seconds};
use crate::panics::contained;
use crate::shown;
use crate::signals::{Logged, without_gil};
use crate::sockets::{Socket, waited};

/// The native half of `headrace.Reader`, which documents it.
#[pyclass(frozen, subclass, name = "Reader", module = "headrace._headrace")]
pub(crate) struct PyReader {
    inner: Mutex<LoopReader>,
    /// The schema of the batches, once it is known.
    schema: OnceLock<SchemaRef>,
    counters: Arc<ReadCounters>,
    stop: ReaderStop,
    /// Whether a batch was dropped unseen, which is said once.
    has_unseen: Arc<AtomicBool>,
}

/// Wait for a batch, for at most this time. `None`: without a limit.
#[derive(Clone, Copy)]
struct Wait(Option<Duration>);

impl PyReader {
    /// Locks the reader for this call, including against a signal handler that runs during it.
    fn lock(&self) -> PyResult<MutexGuard<'_, LoopReader>> {
        one_caller::lock(&self.inner, || format!("the reader is in use by another call: {ONE_CALLER}"))
    }

    /// Does something with the reader that neither reads nor waits.
    fn with<T>(&self, work: impl FnOnce(&mut Reader) -> T) -> PyResult<T> {
        Ok(work(self.lock()?.reader().map_err(|error| to_py(&error))?))
    }

    /// Returns the next batch that has arrived; unless `wait` is none, waits for one first.
    fn next(slf: &Bound<'_, Self>, mut wait: Option<Wait>) -> PyResult<Option<PyReadBatch>> {
        let py = slf.py();
        loop {
            let mut inner = slf.get().lock()?;
            let reader = inner.reader().map_err(|error| to_py(&error))?;
            let read = without_gil(py, |signals| {
                if let Some(Wait(timeout)) = wait {
                    reader.wait(timeout, signals)?;
                    signals.check()?;
                    wait = None;
                }
                reader.take_doubt().map_or_else(|| reader.take_batch().map(Ok), |doubt| Ok(Err(doubt)))
            })?;
            let misspelt = read.as_ref().ok().and_then(Option::as_ref).and_then(ReadBatch::misspelt);
            let missing = reader.take_missing();
            drop(inner);
            for text in missing.into_iter().chain(misspelt) {
                // The batch must arrive even if it cannot be said what is strange about it.
                let told = slf.call_method1("_notice", (text,)).map(drop);
                told.unwrap_or_else(|error| error.write_unraisable(py, Some(slf)));
            }
            match read {
                Ok(None) => return Ok(None),
                Ok(Some(batch)) => {
                    let reader = slf.get();
                    reader.schema.get_or_init(|| batch.record_batch().schema());
                    return Ok(Some(PyReadBatch::new(batch, &reader.has_unseen)));
                }
                Err(doubt) => slf.call_method1("_doubt", (doubt,))?,
            };
        }
    }

    /// The schema of all batches that are left: reads the first entry if it determines it.
    fn schema_ahead(&self, py: Python<'_>) -> PyResult<&SchemaRef> {
        if let Some(schema) = self.schema.get() {
            return Ok(schema);
        }
        let mut inner = self.lock()?;
        let reader = inner.reader().map_err(|error| to_py(&error))?;
        loop {
            if let Some(schema) = reader.schema() {
                return Ok(self.schema.get_or_init(|| schema));
            }
            without_gil(py, |signals| {
                reader.wait(None, signals)?;
                signals.check()?;
                // There is no batch without a schema: only an error.
                if reader.schema().is_none() { reader.take_batch().map(drop) } else { Ok(()) }
            })?;
            if (reader.is_finished() || self.stop.is_stopped()) && reader.schema().is_none() {
                let message =
                    "there is no entry, and the columns are those of the first one: give schema or the names of fields";
                return Err(to_py(&Error::schema(message)));
            }
        }
    }
}

#[pymethods]
impl PyReader {
    /// Checks the options. Unless an event loop does that later, connects, and finds where each stream begins and ends.
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
        let options = ReaderOptions::new(column_values(options, READER_OPTIONS)?, Form::Typed, schema.as_deref());
        let options = options.map_err(|error| to_py(&error))?;
        let mut inner = Reader::new(&endpoint.get().0, &streams, &options).map_err(|error| to_py(&error))?;
        if opens {
            without_gil(py, |signals| inner.open(signals))?;
        }
        Ok(Self {
            schema: inner.schema().map_or_else(OnceLock::new, OnceLock::from),
            counters: Arc::clone(inner.counters()),
            stop: inner.stopper(),
            inner: Mutex::new(LoopReader::new(inner, Box::new(Logged))),
            has_unseen: Arc::default(),
        })
    }

    /// Return the next batch, or None after `timeout` seconds or once everything was read.
    ///
    /// If the number of lost entries is not known or not exact, `_doubt` is called with the reason first. If that
    /// raises, the next call returns the batch. `_notice` is called with each other text for the caller.
    #[pyo3(signature = (timeout = None))]
    fn read(slf: &Bound<'_, Self>, timeout: Option<&Bound<'_, PyAny>>) -> PyResult<Option<PyReadBatch>> {
        contained(slf.py(), || {
            let timeout = timeout.map(|given| seconds("timeout", given)).transpose()?;
            Self::next(slf, Some(Wait(timeout)))
        })
    }

    /// Whether everything was read.
    #[getter]
    fn is_finished(&self) -> PyResult<bool> {
        self.with(|reader| reader.is_finished())
    }

    /// The position after the batches so far, as text.
    #[getter]
    fn position(&self) -> PyResult<String> {
        self.with(|reader| reader.position())
    }

    /// Return the entry that the position in a stream follows; None: it follows none, or the reader is in use.
    fn _last_entry(&self, stream: &[u8]) -> Option<String> {
        let mut inner = self.inner.try_lock().ok()?;
        inner.reader().ok()?.last_entry(stream).map(|id| id.to_string())
    }

    /// The number of entries of all streams trimmed before they were read, since the reader was created.
    #[getter]
    fn lost(&self) -> PyResult<u64> {
        self.with(|reader| reader.lost().0)
    }

    /// Whether `lost` is exact; otherwise it is an upper bound.
    #[getter]
    fn is_lost_exact(&self) -> PyResult<bool> {
        self.with(|reader| reader.lost().1)
    }

    /// Read a stream no longer.
    fn drop_stream(&self, stream: &[u8]) -> PyResult<()> {
        self.with(|reader| reader.drop_stream(stream))?.map_err(|error| to_py(&error))
    }

    /// The counters so far; `headrace.Reader.stats` reads them.
    #[getter]
    fn counters(&self) -> PyReadCounters {
        PyReadCounters(Reading::Reader(Arc::clone(&self.counters)))
    }

    /// Close the connection.
    fn close(&self) -> PyResult<()> {
        self.with(Reader::close)
    }

    /// Return no further batches: `read` returns None. Can be called from any thread and from a signal handler.
    fn stop(&self) {
        self.stop.stop();
    }

    /// Whether `stop` was called.
    #[getter]
    fn _is_stopped(&self) -> bool {
        self.stop.is_stopped()
    }

    /// Begin to connect, and to find where each stream begins and ends.
    fn _begin_open(&self) -> PyResult<()> {
        self.lock()?.begin_open();
        Ok(())
    }

    /// Begin to wait for a batch, until everything was read, or for `timeout` seconds.
    #[pyo3(signature = (timeout = None))]
    fn _begin_wait(&self, timeout: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let timeout = timeout.map(|given| seconds("timeout", given)).transpose()?;
        self.lock()?.begin_wait(timeout);
        Ok(())
    }

    /// Do what can be done without waiting of what was begun.
    ///
    /// Returns whether it is over; the sockets to watch, as (connection, descriptor, whether to wait until it is
    /// writable too); and in how many seconds to call again at the latest, or None.
    fn _advance(&self, py: Python<'_>) -> PyResult<(bool, Vec<Socket>, Option<f64>)> {
        contained(py, || {
            let mut inner = self.lock()?;
            let reader = &mut *inner;
            py.detach(|| reader.advance());
            let (sockets, seconds) = waited(&reader.wait());
            Ok((!reader.is_at_work(), sockets, seconds))
        })
    }

    /// Raise the error of what was begun.
    fn _take_done(&self) -> PyResult<()> {
        self.lock()?.take_done().map_err(|error| to_py(&error))
    }

    /// End what was begun. The next call continues from there.
    fn _interrupt(&self) -> PyResult<()> {
        self.lock()?.interrupt();
        Ok(())
    }

    /// Return the next batch that has arrived, or None. The rest is as for `read`.
    fn _take(slf: &Bound<'_, Self>) -> PyResult<Option<PyReadBatch>> {
        contained(slf.py(), || Self::next(slf, None))
    }

    /// Return the schema of the batches as a `PyCapsule`.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        capsules::export_known_schema(py, self.schema.get())
    }

    /// Return all remaining batches as a `PyCapsule` of the Arrow C stream interface.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        slf: &Bound<'py, Self>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let (py, reader) = (slf.py(), slf.clone().unbind());
        let schema = SchemaRef::clone(slf.get().schema_ahead(py)?);
        let batches = std::iter::from_fn(move || Python::attach(|py| next_for_arrow(reader.bind(py))));
        let batches = RecordBatchIterator::new(batches, schema);
        capsules::export_stream(py, batches, requested_schema)
    }
}

fn next_for_arrow(reader: &Bound<'_, PyReader>) -> Option<Result<RecordBatch, ArrowError>> {
    let batch = PyReader::read(reader, None).map_err(|error| {
        // The C stream interface carries only a text: the reader keeps the exception.
        let is_kept = reader.setattr("_error", error.value(reader.py())).is_ok();
        let kept = if is_kept { "; Reader.error has this exception" } else { "" };
        ArrowError::ExternalError(format!("{error}{kept}").into())
    });
    batch.map(|batch| batch.map(|batch| batch.seen().record_batch().clone())).transpose()
}

/// Entries of one stream, in order of their IDs, as an Arrow record batch: one row each unless `unpack` is given.
///
/// `for entry in batch` and `batch[0]` return rows as objects of the class `Entry`, and `batch.to_pylist()` as dicts.
/// `pyarrow.record_batch(batch)`, `polars.DataFrame(batch)` and others take the batch without a copy.
#[pyclass(frozen, sequence, name = "ReadBatch", module = "headrace._headrace")]
pub(crate) struct PyReadBatch {
    batch: ReadBatch,
    rows: OnceLock<Arc<EntryRows>>,
    is_seen: AtomicBool,
    /// Whether the reader has dropped another batch unseen.
    has_unseen: Arc<AtomicBool>,
}

impl PyReadBatch {
    fn new(batch: ReadBatch, has_unseen: &Arc<AtomicBool>) -> Self {
        Self { batch, rows: OnceLock::new(), is_seen: AtomicBool::new(false), has_unseen: Arc::clone(has_unseen) }
    }

    /// The batch, for a caller that looks at it.
    pub(crate) fn seen(&self) -> &ReadBatch {
        self.is_seen.store(true, Ordering::Relaxed);
        &self.batch
    }

    /// The rows, for a caller that looks at them.
    fn rows(&self) -> PyResult<&Arc<EntryRows>> {
        if let Some(rows) = self.rows.get() {
            return Ok(rows);
        }
        let rows = Arc::new(EntryRows::new(Source::Read(self.seen().clone()))?);
        Ok(self.rows.get_or_init(|| rows))
    }
}

impl Drop for PyReadBatch {
    /// Tells of a batch whose entries went nowhere: its call was given up, or its result was ignored.
    fn drop(&mut self) {
        if !self.is_seen.load(Ordering::Relaxed) && !self.has_unseen.swap(true, Ordering::Relaxed) {
            let rows = shown::counted(self.batch.record_batch().num_rows() as u64, "row");
            let stream = quoted(self.batch.stream());
            let text = format!(
                "a batch with {rows} of {stream} was dropped unseen: the call that read it was given up, as by asyncio.wait_for, \
                 or its result was not used; the reader continues after it (docs/reading.md#on-an-event-loop)"
            );
            // Nothing is left to be told of it when the interpreter ends.
            let _ = Python::try_attach(|py| {
                // The exception that drops the batch on its way, as from `list(reader)`, is not there while Python runs.
                let raised = PyErr::take(py);
                let logged = log::notice(text).write();
                if let Some(raised) = raised {
                    raised.restore(py);
                }
                logged
            });
        }
    }
}

/// An entry: its ID, the milliseconds of the ID, and its fields.
type EntryTuple<'py> = (Bound<'py, PyString>, u64, Option<Vec<(Bound<'py, PyString>, Bound<'py, PyBytes>)>>);

#[pymethods]
impl PyReadBatch {
    /// The number of rows.
    #[getter]
    fn num_rows(&self) -> usize {
        self.seen().record_batch().num_rows()
    }

    /// The key of the stream.
    #[getter]
    fn stream<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.seen().stream())
    }

    /// The ID of the first entry.
    #[getter]
    fn first_id(&self) -> String {
        self.seen().first_id().to_string()
    }

    /// The ID of the last entry.
    #[getter]
    fn last_id(&self) -> String {
        self.seen().last_id().to_string()
    }

    /// The reader's position after this batch, in all its streams: a short JSON text.
    ///
    /// A reader that has it as `start` reads what follows.
    #[getter]
    fn position(&self) -> String {
        self.seen().position()
    }

    /// The number of entries of the stream that were trimmed before they were read, since its previous batch.
    ///
    /// Greater than 0 only with `on_loss="report"`. What a `FieldError` in between has reported is not included.
    #[getter]
    fn lost(&self) -> u64 {
        self.seen().lost().0
    }

    /// Whether `lost` is exact; otherwise it is an upper bound.
    #[getter]
    fn is_lost_exact(&self) -> bool {
        self.seen().lost().1
    }

    /// Return the entries as lines of JSON: `id`, `timestamp`, `stream`, `fields`.
    ///
    /// For the command. The reader must have the metadata `entry_id` and `entry_ms`, and `fields_as="list"`.
    fn _json_lines<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        contained(py, || {
            let lines = py.detach(|| entry_lines(self.seen().record_batch(), self.seen().stream()));
            Ok(PyBytes::new(py, &lines.map_err(|error| to_py(&error))?))
        })
    }

    /// Return the entries as tuples: ID, milliseconds of the ID, names and values of the fields, or None for one that was
    /// deleted.
    ///
    /// Of the same reader as [`_json_lines`](Self::_json_lines).
    fn _entries<'py>(&self, py: Python<'py>) -> PyResult<Vec<EntryTuple<'py>>> {
        contained(py, || {
            let batch = self.seen().record_batch();
            let table = EntryTable::new(batch).map_err(|error| to_py(&error))?;
            let field =
                |place| (PyString::new(py, table.names.value(place)), PyBytes::new(py, table.values.value(place)));
            let fields = |row| table.places(row).map(|places| places.map(field).collect());
            Ok((0..batch.num_rows())
                .map(|row| (PyString::new(py, table.ids.value(row)), table.millisecond(row), fields(row)))
                .collect())
        })
    }

    /// Return the batch as `PyCapsule`s of the Arrow C data interface.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        capsules::export_batch(py, self.seen().record_batch(), requested_schema)
    }

    /// Return the schema of the batch as a `PyCapsule`.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        capsules::export_schema(py, self.seen().record_batch().schema_ref())
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
        shown::batch("ReadBatch", self.num_rows(), self.seen().stream(), [self.first_id(), self.last_id()])
    }
}
