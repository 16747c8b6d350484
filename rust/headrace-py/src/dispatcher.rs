//! The dispatcher for Python. The GIL is held only to read arguments.

use std::sync::Arc;
use std::time::Duration;

use headrace_core::endpoint::Form;
use headrace_core::error::Failure;
use headrace_core::{
    DeliveryReport, Dispatcher, DispatcherOptions, EntryId, Error, IdArgument, Message, SharedDispatcher, Watch,
};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

use crate::batch_name::{self, Given};
use crate::capsules::read;
use crate::counters::PyCounters;
use crate::endpoint::PyEndpoint;
use crate::errors::to_py;
use crate::layout::layout;
use crate::message::{Parts, given_id, with_bytes, with_message};
use crate::options::option_values;
use crate::panics::contained;
use crate::report::PyReport;
use crate::signals::{Records, SharedSignals, sharing_lock};

/// The native half of `headrace.Dispatcher`, which documents it.
#[pyclass(frozen, subclass, name = "Dispatcher", module = "headrace._headrace")]
pub(crate) struct PyDispatcher {
    inner: SharedDispatcher,
    records: Records,
}

impl PyDispatcher {
    /// Runs a call without the GIL, whose log records are written once it has released the lock.
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl Send + FnOnce(&SharedDispatcher, &mut SharedSignals<'_>) -> headrace_core::Result<T>,
    ) -> PyResult<T> {
        sharing_lock(py, &self.records, |signals| {
            let done = call(&self.inner, signals);
            signals.released();
            done
        })
    }

    /// Like [`call`](Self::call), for a call that returns a report. It has written the log records by then: an exception from one
    /// would keep the report from its caller.
    fn report(
        &self,
        py: Python<'_>,
        call: impl Send + FnOnce(&SharedDispatcher, &mut SharedSignals<'_>) -> headrace_core::Result<DeliveryReport>,
    ) -> PyResult<PyReport> {
        let report = sharing_lock(py, &self.records, |signals| {
            call(&self.inner, signals).inspect_err(|_| {
                signals.released();
            })
        })?;
        Ok(PyReport(report))
    }

    /// Takes a message, once there is room for it. Separate from the most common call.
    #[cold]
    #[inline(never)]
    fn produce_when_room(&self, py: Python<'_>, message: &Message<'_>, id: IdArgument<'_>) -> PyResult<()> {
        self.call(py, |dispatcher, signals| dispatcher.produce(message, id, signals))
    }
}

// The doc comments of methods are their Python docstrings; tools/stub_docstrings.py copies them into the stub.
#[allow(clippy::doc_markdown)] // Python's names, in Python's markup
#[pymethods]
impl PyDispatcher {
    /// With `text` all values of `options` are text, as Spark passes them.
    #[new]
    #[pyo3(signature = (endpoint, options, text = false))]
    fn new(endpoint: &Bound<'_, PyEndpoint>, options: &Bound<'_, PyDict>, text: bool) -> PyResult<Self> {
        let form = if text { Form::Text } else { Form::Typed };
        let options = DispatcherOptions::new(option_values(options)?, form).map_err(|e| to_py(&e))?;
        let dispatcher = Dispatcher::new(endpoint.get().0.clone(), options).map_err(|e| to_py(&e))?;
        let records = Records::default();
        let inner = SharedDispatcher::new(dispatcher, Box::new(records.clone()), records.is_urgent());
        Ok(Self { inner, records })
    }

    /// Produce one message: a payload, fields, or both. Waits only for room in the window.
    ///
    /// The entry has the payload, then the fields, then `ts`. A message without any field fails: permanent, `EMPTY`.
    ///
    /// Args:
    ///     payload: Bytes-like, or a str that is sent as UTF-8. A payload longer than the server accepts
    ///         (`proto-max-bulk-len`, 512 MiB by default) fails alone: permanent, `TOO_LARGE`. Default None: there is
    ///         none.
    ///     message_id: The caller's name for the message, which reports contain: a str of at most 16 KiB, or a 64-bit
    ///         int. Default None: the message's ordinal since the last flush.
    ///     key: The key that selects the shard, if the endpoint has `shards`: bytes-like, or a str, which is read as
    ///         UTF-8. Messages with equal keys go to the same shard, in order. Default None: the shards take turns.
    ///     fields: A mapping, or a sequence of pairs, which may have equal names. Names are str or bytes. Values are
    ///         bytes-like or str, or of a type that is written as a column of it would be (see `produce_batch`): int,
    ///         float, bool, Decimal, date, time, datetime, timedelta, UUID. A field with None is left out.
    ///     stream_key: The message's own stream, bytes-like or a str. Default None: the endpoint's. Mutually exclusive
    ///         with `shards`.
    ///     entry_id: The message's own entry ID, a str: `ms`, `ms-seq`, `ms-*` (Redis 7.0) or `*`. Anything else fails:
    ///         permanent, `BAD_ENTRY_ID`. Default None: the server chooses it.
    ///
    /// Raises:
    ///     ConfigError: `key` was given, but the endpoint has no shards; or an argument that the options rule out.
    ///     MessageError: An argument has the wrong type or is out of range, or a field has the name of the payload's
    ///         field or of `ts`. Nothing was sent.
    ///     ClosedError: The dispatcher is closed.
    ///     ConcurrentUseError: A handler of signals or log records calls it in the middle of another call.
    #[pyo3(
        signature = (payload = None, message_id = None, key = None, *, fields = None, stream_key = None, entry_id = None)
    )]
    #[allow(clippy::too_many_arguments)] // those of Python
    fn produce(
        &self,
        py: Python<'_>,
        payload: Option<&Bound<'_, PyAny>>,
        message_id: Option<&Bound<'_, PyAny>>,
        key: Option<&Bound<'_, PyAny>>,
        fields: Option<&Bound<'_, PyAny>>,
        stream_key: Option<&Bound<'_, PyAny>>,
        entry_id: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        contained(py, || {
            let id = given_id(message_id)?;
            let (Some(payload), None, None, None, None) = (payload, key, fields, stream_key, entry_id) else {
                let parts = Parts { payload, key, fields, stream_key, entry_id };
                return with_message(parts, |message| match self.inner.try_produce_message(message, id) {
                    Err(Error::Full) => self.produce_when_room(py, message, id),
                    taken => taken.map_err(|error| to_py(&error)),
                });
            };
            with_bytes("payload", payload, |payload| match self.inner.try_produce(payload, id) {
                Err(Error::Full) => self.produce_when_room(py, &Message::new(payload), id),
                taken => taken.map_err(|error| to_py(&error)),
            })
        })
    }

    /// Produce every row of Arrow data as a message, read directly from its buffers.
    ///
    /// `payload`, `fields` or both, `fields_from` or `json` select the contents of a row's entry; each entry also has
    /// the field `ts`, with `fields_from` only if `ts_field` was given. A row that cannot be written (a null payload,
    /// no field at all) fails alone, with a permanent outcome. `rows_per_entry` and `arrow_ipc` put many rows into one
    /// entry, which costs the server less: each row has its own outcome, but shares the ID of its entry, and `maxlen`
    /// counts entries.
    ///
    /// Args:
    ///     data: A record batch, table or reader with the Arrow PyCapsule interface: pyarrow, polars, pandas and
    ///         others. A reader is read one record batch at a time. If it fails, the rows before the failure are
    ///         accepted.
    ///     payload: Column with the payload: utf8, large_utf8, utf8_view, binary, large_binary or binary_view. Default
    ///         `"payload"`, unless `fields`, `fields_from` or `json` is given. A null fails: `NULL_PAYLOAD`; with
    ///         `fields`, which come after the payload, it is left out.
    ///     fields: Columns that become one field each, under their names. Typed values are written as text; nulls are
    ///         left out. A row with only nulls fails: `EMPTY`; one with a time outside a day fails: `BAD_VALUE`. Nested
    ///         columns are refused.
    ///     fields_from: Column with all fields of the entry, which are sent unchanged and in order: a map, or a list of
    ///         `struct<name, value>`, whose names and values are utf8 or binary of any kind. Null values are left out;
    ///         a row without fields fails: `EMPTY`. An entry that was read into such a column is copied unchanged.
    ///     json: True: the payload is the whole row as JSON, as Spark's `to_json` writes it (nulls left out). A
    ///         sequence of names: only these columns. A time outside a day fails: `BAD_VALUE`.
    ///     message_id: Column that names each row in reports: an integer type, utf8 of at most 16 KiB, or `arrow.uuid`.
    ///         A null means the ordinal.
    ///     stream_key: Column with the row's own stream key, utf8 or binary; null means the endpoint's.
    ///     shard_key: Column with the key that selects the row's shard, if the endpoint has `shards`: utf8, binary or
    ///         an integer type, whose values are read as their decimal digits. Rows with equal keys go to the same
    ///         shard, in order. With a null, or without such a column, the shards take turns. Mutually exclusive with
    ///         `stream_key`.
    ///     entry_id: Column with the row's own entry ID, utf8: `ms`, `ms-seq`, `ms-*` (Redis 7.0) or `*`; null means
    ///         `*`. Anything else fails: `BAD_ENTRY_ID`.
    ///     rows_per_entry: With `payload` or `json`: up to this many rows become the fields `payload:0`, `payload:1`,
    ///         ... of one entry, which `headrace.unpack` reads back. Default 1; 1 to 65,536. Mutually exclusive with
    ///         `fields`, `fields_from`, `stream_key`, `shard_key` and `entry_id`. An entry holds rows of a single
    ///         record batch, and ends with the row that fills `window_max_bytes`.
    ///     arrow_ipc: True: the payload of an entry is an Arrow IPC stream of up to `rows_per_entry` rows (default
    ///         10,000), with all columns or those of `fields`; `headrace.unpack_arrow` and
    ///         `pyarrow.ipc.open_stream` read it back. Mutually exclusive with `payload`, `fields_from`, `json`,
    ///         `stream_key`, `shard_key` and `entry_id`.
    ///     codec: Compression for `arrow_ipc`: None (default), `"lz4"` or `"zstd"`.
    ///
    /// Raises:
    ///     ConfigError: `rows_per_entry` or `codec` is invalid, `shard_key` is given but the endpoint has no shards, or
    ///         an argument is given that shards rule out; nothing was sent.
    ///     SchemaError: A column does not exist or has a type that cannot be written, or arguments are mutually
    ///         exclusive; nothing was sent.
    ///     ReaderError: The reader failed, or its record batch is malformed: no row of that record batch was accepted,
    ///         but all rows before it were.
    ///     InternalError: A defect in headrace. The rows of the record batch that were not accepted fail: permanent,
    ///         `INTERNAL`, written no (unknown in a batch that was begun).
    ///     ClosedError: The dispatcher is closed.
    ///     ConcurrentUseError: A handler of signals or log records calls it in the middle of another call.
    ///     KeyboardInterrupt: The rows of the record batch that were not accepted yet fail: retryable, `INTERRUPTED`,
    ///         written no (unknown in a batch that was begun).
    ///     KeyboardInterrupt, SystemExit: Raised by the reader's own Python code, such as a generator behind
    ///         `pyarrow.RecordBatchReader.from_batches`. Their subclasses are raised as `ReaderError`.
    #[pyo3(
        signature = (data, **keywords),
        text_signature = "($self, data, *, payload=None, fields=None, fields_from=None, json=None, message_id=None, stream_key=None, shard_key=None, entry_id=None, rows_per_entry=None, arrow_ipc=False, codec=None)"
    )]
    fn produce_batch(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        keywords: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<()> {
        contained(py, || {
            let layout = layout(keywords)?;
            let mut reader = read(data)?;
            self.call(py, |dispatcher, signals| {
                let mut plan = layout.plan(|layout| dispatcher.plan(reader.schema(), layout, signals))?;
                reader.read_only(&plan.columns());
                for batch in reader {
                    dispatcher.produce_batch(&batch?, &mut plan, signals)?;
                }
                Ok(())
            })
        })
    }

    /// Begin a batch under a token, for `exactly_once`.
    ///
    /// Its messages are numbered from 0 in the order in which they are produced, across flushes. Token and number
    /// identify a message permanently: beginning the same token again, after a crash or in another process, and
    /// producing the same messages in the same order writes only those that are missing. The others count as delivered
    /// and as `DeliveryReport.deduplicated`; their entry IDs are unknown. Without `begin` the token is random: messages
    /// are then safe against lost connections, but not against a crash.
    ///
    /// Only the server knows what an earlier attempt wrote. If a message fails before the server was asked about it (no
    /// connection, no permission, the whole command refused), its `written` is `"unknown"`; running the batch again
    /// under the same token settles it.
    ///
    /// With `"script"` the progress of a batch is stored beside each of its streams, in a key
    /// `{<stream key>}:headrace:<token>` that expires `token_ttl` seconds after the batch's last row. With `"idmp"` the
    /// server remembers IDs for `idmp_duration` seconds, replies with the original entry IDs, and does not report which
    /// messages it deduplicated; with `exactly_once_key="message_id"` token and message ID identify a message and order
    /// does not matter.
    ///
    /// Args:
    ///     token: 1 to 1,024 bytes of UTF-8.
    ///     version: An integer from 0 to 2**53, not a bool. A batch with a higher version takes the token over and
    ///         starts from 0; every message of a batch with a lower version is deduplicated. So one key serves all
    ///         micro-batches of a stream. With `"idmp"`, the version is part of the token.
    ///
    /// Raises:
    ///     ConfigError: `exactly_once` is off.
    ///     MessageError: The token or the version has the wrong type or is out of range.
    ///     StateError: Messages are still waiting for their outcomes: call `flush` first.
    ///     ConcurrentUseError: Another call is in progress.
    #[pyo3(signature = (token, version = Given(None)), text_signature = "($self, token, version=0)")]
    fn begin(&self, py: Python<'_>, token: &Bound<'_, PyAny>, version: Given<'_, '_>) -> PyResult<()> {
        contained(py, || {
            let (token, version) = (batch_name::token(token)?, batch_name::version(version)?);
            py.detach(|| self.inner.begin(token, version)).map_err(|error| to_py(&error))
        })
    }

    /// Continue the batch after failed messages, for `exactly_once`.
    ///
    /// Messages of one stream stay in order: after one that was not written, the later ones fail too, as `BLOCKED`,
    /// until the batch begins again or `skip_failed` declares the reported failures handled (as dead letters, for
    /// example). Those messages then count as passed: once a later message of their stream is written, they are never
    /// written under this token.
    ///
    /// Raises:
    ///     StateError: Messages are still waiting for their outcomes: call `flush` first.
    ///     ConcurrentUseError: Another call is in progress.
    fn skip_failed(&self, py: Python<'_>) -> PyResult<()> {
        contained(py, || py.detach(|| self.inner.skip_failed()).map_err(|error| to_py(&error)))
    }

    /// Return the outcomes since the last report; `headrace.Dispatcher.poll` wraps it.
    fn poll(&self, py: Python<'_>) -> PyResult<PyReport> {
        contained(py, || self.report(py, |dispatcher, signals| dispatcher.poll(signals)))
    }

    /// Wait for all outcomes and return them; `headrace.Dispatcher.flush` wraps it.
    #[pyo3(signature = (timeout = None))]
    fn flush(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<PyReport> {
        contained(py, || {
            if let Some(seconds) = timeout.filter(|seconds| seconds.is_nan() || *seconds < 0.0) {
                let message = format!("timeout must be a number of seconds of at least 0, got {seconds}");
                return Err(to_py(&Error::config("timeout", message)));
            }
            // A timeout too long for a `Duration` never ends.
            let timeout = timeout.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            self.report(py, |dispatcher, signals| dispatcher.flush(timeout, signals))
        })
    }

    /// Send one message and return its entry ID, or its failure as kind, code, message and written.
    #[pyo3(signature = (payload = None, key = None, *, fields = None, stream_key = None, entry_id = None))]
    fn dispatch<'py>(
        &self,
        py: Python<'py>,
        payload: Option<&Bound<'py, PyAny>>,
        key: Option<&Bound<'py, PyAny>>,
        fields: Option<&Bound<'py, PyAny>>,
        stream_key: Option<&Bound<'py, PyAny>>,
        entry_id: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        contained(py, || {
            let outcome = with_message(Parts { payload, key, fields, stream_key, entry_id }, |message| {
                self.call(py, |dispatcher, signals| dispatcher.dispatch(message, signals))
            })?;
            outcome_to_py(py, outcome)
        })
    }

    /// Close the connection without a flush; `headrace.Dispatcher.close` wraps it.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        contained(py, || py.detach(|| self.inner.close()).map_err(|error| to_py(&error)))
    }

    /// The counters so far; `headrace.Dispatcher.stats` reads them.
    #[getter]
    fn counters(&self) -> PyCounters {
        PyCounters(Arc::clone(self.inner.counters()))
    }

    /// The Rust debug output, for the test that looks for secrets in it.
    fn _debug(&self, py: Python<'_>) -> String {
        py.detach(|| format!("{:#?}", self.inner))
    }

    /// The number of messages whose outcome no report contains yet.
    #[getter]
    fn unreported(&self, py: Python<'_>) -> PyResult<u64> {
        py.detach(|| self.inner.unreported()).map_err(|error| to_py(&error))
    }

    /// Whether the dispatcher is closed.
    #[getter]
    fn closed(&self, py: Python<'_>) -> PyResult<bool> {
        py.detach(|| self.inner.is_closed()).map_err(|error| to_py(&error))
    }
}

fn outcome_to_py(py: Python<'_>, outcome: Result<EntryId, Failure>) -> PyResult<Bound<'_, PyAny>> {
    match outcome {
        Ok(id) => Ok(PyString::new(py, &id.to_string()).into_any()),
        Err(failure) => {
            let Failure { kind, code, message, written } = &failure;
            Ok(PyTuple::new(py, [kind.as_str(), code, message, written.as_str()])?.into_any())
        }
    }
}
