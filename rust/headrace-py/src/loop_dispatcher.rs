//! The dispatcher for Python's event loops: nothing here waits. `python/headrace/async_dispatcher.py` waits for what it returns.

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use headrace_core::endpoint::Form;
use headrace_core::import::Reader;
use headrace_core::report::{AwaitedOutcome, OutcomeRouter};
use headrace_core::{
    BatchLayout, BatchPlan, Counters, DeliveryReport, Dispatcher, DispatcherOptions, Error, IdArgument, LoopDispatcher,
};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::batch_name::{self, Given};
use crate::capsules::read;
use crate::counters::PyCounters;
use crate::dispatcher::{given_id, with_bytes, with_key};
use crate::endpoint::PyEndpoint;
use crate::errors::to_py;
use crate::exception::raise;
use crate::layout::layout;
use crate::one_caller;
use crate::options::option_values;
use crate::outcome;
use crate::panics::contained;
use crate::report::PyReport;
use crate::signals::{Logged, without_gil};

/// A socket to watch: the number of its connection, its descriptor, and whether to wait until it is writable too.
type Socket = (u64, RawFd, bool);

/// The native half of `headrace.AsyncDispatcher`, which documents it. No call waits.
#[pyclass(frozen, name = "LoopDispatcher", module = "headrace._headrace")]
pub(crate) struct PyLoopDispatcher {
    inner: Mutex<Driven>,
    counters: Arc<Counters>,
}

/// A dispatcher, and which of its messages are awaited by tasks.
struct Driven {
    dispatcher: LoopDispatcher,
    router: OutcomeRouter,
    /// The sockets that the caller knows of; None: some may be closed now.
    sockets: Option<Vec<Socket>>,
    /// Messages that were taken, and those of them that have an outcome.
    taken: u64,
    settled: u64,
    /// With a script: failures are declared handled once no message is waiting. Until then no more are taken: they would fail
    /// too.
    skips_failed: bool,
    is_to_skip: bool,
}

impl Driven {
    /// Takes a message if there is room.
    fn produce(
        &mut self,
        payload: &[u8],
        id: IdArgument<'_>,
        key: Option<&[u8]>,
        is_awaited: bool,
    ) -> headrace_core::Result<bool> {
        if self.is_to_skip {
            return Ok(false);
        }
        let Some(dispatcher) = self.dispatcher.dispatcher() else { return Ok(false) };
        let produced = match key {
            None => dispatcher.produce(payload, id),
            Some(key) => dispatcher.produce_with_key(payload, id, key),
        };
        match produced {
            Ok(()) => {
                self.router.expect(is_awaited, 1);
                self.taken += 1;
                Ok(true)
            }
            Err(Error::Full) => Ok(false),
            Err(error) => {
                self.expect_unawaited();
                Err(error)
            }
        }
    }

    /// Records that the messages that the last call took, if any, are not awaited.
    fn expect_unawaited(&mut self) {
        let Some(dispatcher) = self.dispatcher.dispatcher() else { return };
        let more = dispatcher.unreported() - (self.taken - self.settled);
        if more > 0 {
            self.router.expect(false, more);
            self.taken += more;
        }
    }

    /// Passes the outcomes of a report to the futures that await them: `futures` has one for each message, in order.
    fn settle(&mut self, report: &DeliveryReport, futures: &Bound<'_, PyAny>) {
        let count = report.delivered() + report.failed();
        if count > 0 {
            self.settled += count;
            self.is_to_skip |= self.skips_failed && report.failed() > 0;
        }
        // Even without outcomes: it counts retries.
        self.router.route(report, |awaited| receive(futures, awaited).is_ok());
        if self.is_to_skip
            && self.settled == self.taken
            && let Some(dispatcher) = self.dispatcher.dispatcher()
            // Not while a WAIT is in flight, with nothing to confirm: its reply leads here again.
            && dispatcher.skip_failed().is_ok()
        {
            self.is_to_skip = false;
        }
    }
}

/// Sets the next future. One that was cancelled refuses its outcome.
fn receive(futures: &Bound<'_, PyAny>, awaited: AwaitedOutcome<'_>) -> PyResult<()> {
    let py = futures.py();
    let future = futures.call_method0(intern!(py, "popleft"))?;
    future.call_method1(intern!(py, "set_result"), (outcome::to_py(py, awaited)?,)).map(drop)
}

impl PyLoopDispatcher {
    /// Locks the dispatcher for this call, including against a signal handler that runs during it.
    fn lock(&self) -> PyResult<MutexGuard<'_, Driven>> {
        one_caller::lock(&self.inner, || "the dispatcher is in use by another call".to_owned())
    }
}

#[pymethods]
impl PyLoopDispatcher {
    /// With `skips_failed`, failures are declared handled as soon as no message is waiting: for a script.
    #[new]
    #[pyo3(signature = (endpoint, options, skips_failed = false))]
    fn new(endpoint: &Bound<'_, PyEndpoint>, options: &Bound<'_, PyDict>, skips_failed: bool) -> PyResult<Self> {
        let options = DispatcherOptions::new(option_values(options)?, Form::Typed).map_err(|e| to_py(&e))?;
        let mut dispatcher = Dispatcher::new(endpoint.get().0.clone(), options).map_err(|e| to_py(&e))?;
        let counters = dispatcher.counters();
        let driven = Driven {
            dispatcher: LoopDispatcher::new(dispatcher, Box::new(Logged)),
            router: OutcomeRouter::default(),
            sockets: Some(Vec::new()),
            taken: 0,
            settled: 0,
            skips_failed,
            is_to_skip: false,
        };
        Ok(Self { inner: Mutex::new(driven), counters })
    }

    /// Take one message if there is room for it now, and return whether it was taken.
    ///
    /// With `is_awaited` a future gets its outcome.
    #[pyo3(signature = (payload, message_id = None, key = None, is_awaited = false))]
    fn produce(
        &self,
        py: Python<'_>,
        payload: &Bound<'_, PyAny>,
        message_id: Option<&Bound<'_, PyAny>>,
        key: Option<&Bound<'_, PyAny>>,
        is_awaited: bool,
    ) -> PyResult<bool> {
        contained(py, || {
            let mut driven = self.lock()?;
            let id = given_id(message_id)?;
            with_key(key, |key| {
                with_bytes("payload", payload, |payload| {
                    driven.produce(payload, id, key, is_awaited).map_err(|error| to_py(&error))
                })
            })
        })
    }

    /// Open Arrow data for `produce_rows`. The arguments are those of `Dispatcher.produce_batch`.
    #[pyo3(signature = (data, **keywords))]
    fn open_batch(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        keywords: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyLoopBatch> {
        contained(py, || {
            let layout = layout(keywords)?;
            let mut batch = OpenBatch { reader: read(data)?, layout, plan: None, current: None };
            if let Some(dispatcher) = self.lock()?.dispatcher.dispatcher() {
                batch.plan(dispatcher).map_err(|error| to_py(&error))?;
            }
            Ok(PyLoopBatch(Mutex::new(batch)))
        })
    }

    /// Take the next rows, at most about 1,024, if there is room now. Return how many, or None if all were taken.
    fn produce_rows(&self, py: Python<'_>, batch: &Bound<'_, PyLoopBatch>) -> PyResult<Option<usize>> {
        contained(py, || {
            let mut driven = self.lock()?;
            let Ok(mut batch) = batch.get().0.try_lock() else {
                return Err(raise("InternalError", "a batch is in use, or a defect in headrace ended an earlier call"));
            };
            if driven.is_to_skip {
                return Ok(Some(0));
            }
            let Some(dispatcher) = driven.dispatcher.dispatcher() else { return Ok(Some(0)) };
            let batch = &mut *batch;
            let taken = without_gil(py, |_| batch.produce(dispatcher));
            driven.expect_unawaited();
            taken
        })
    }

    /// Do what can be done without waiting, and pass outcomes to the futures.
    ///
    /// Returns the sockets to watch, as (connection, descriptor, whether to wait until it is writable too), or None if
    /// they are unchanged; in how many seconds to call again at the latest, or None; and how many messages have an
    /// outcome.
    fn advance(&self, py: Python<'_>, futures: &Bound<'_, PyAny>) -> PyResult<(Option<Vec<Socket>>, Option<f64>, u64)> {
        contained(py, || {
            let mut driven = self.lock()?;
            let dispatcher = &mut driven.dispatcher;
            let progress = py.detach(|| dispatcher.advance()).map_err(|error| to_py(&error))?;
            if let Some(report) = progress.report {
                driven.settle(&report, futures);
            }
            let sockets = progress.sockets.iter();
            let sockets: Vec<_> = sockets.map(|socket| (socket.connection, socket.fd, socket.writable)).collect();
            let seconds = progress.deadline.map(|until| until.saturating_duration_since(Instant::now()).as_secs_f64());
            let changed = (driven.sockets.as_ref() != Some(&sockets)).then(|| sockets.clone());
            driven.sockets = Some(sockets);
            Ok((changed, seconds, driven.settled))
        })
    }

    /// Give messages without a reply the outcome `TIMEOUT`, and number messages from 0 again.
    fn end_batch(&self, py: Python<'_>, futures: &Bound<'_, PyAny>) -> PyResult<u64> {
        contained(py, || {
            let mut driven = self.lock()?;
            driven.dispatcher.interrupt();
            let Some(dispatcher) = driven.dispatcher.dispatcher() else { return Ok(driven.settled) };
            let report = without_gil(py, |signals| dispatcher.flush(Some(Duration::ZERO), signals))?;
            driven.sockets = None;
            driven.settle(&report, futures);
            Ok(driven.settled)
        })
    }

    /// Put an outcome that a future had, but no task received, into the next report.
    fn put_back(&self, outcome: &Bound<'_, PyAny>) -> PyResult<()> {
        let router = &mut self.lock()?.router;
        outcome::with_outcome(outcome, |awaited| router.put_back(awaited));
        Ok(())
    }

    /// Return the outcomes since the last report, except those that futures had.
    fn report(&self) -> PyResult<PyReport> {
        Ok(PyReport(self.lock()?.router.take()))
    }

    /// Begin a batch under a token; `headrace.AsyncDispatcher.begin` wraps it.
    #[pyo3(signature = (token, version = Given(None)), text_signature = "($self, token, version=0)")]
    fn begin(&self, py: Python<'_>, token: &Bound<'_, PyAny>, version: Given<'_, '_>) -> PyResult<()> {
        contained(py, || {
            let (token, version) = (batch_name::token(token)?, batch_name::version(version)?);
            match self.lock()?.dispatcher.dispatcher() {
                Some(dispatcher) => dispatcher.begin(token, version).map_err(|e| to_py(&e)),
                None => Err(raise("StateError", "messages wait for their outcomes: flush before begin")),
            }
        })
    }

    /// Close the connection. Messages without an outcome are given up.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        contained(py, || {
            let dispatcher = &mut self.lock()?.dispatcher;
            py.detach(|| {
                dispatcher.interrupt();
                if let Some(dispatcher) = dispatcher.dispatcher() {
                    dispatcher.close();
                }
            });
            Ok(())
        })
    }

    /// The counters so far; `headrace.AsyncDispatcher.stats` reads them.
    #[getter]
    fn counters(&self) -> PyCounters {
        PyCounters(Arc::clone(&self.counters))
    }

    /// The Rust debug output, for the test that looks for secrets in it.
    fn _debug(&self) -> PyResult<String> {
        Ok(format!("{:#?}", self.lock()?.dispatcher))
    }

    /// The number of messages that were taken.
    #[getter]
    fn taken(&self) -> PyResult<u64> {
        Ok(self.lock()?.taken)
    }

    /// The number of messages that have no outcome yet.
    #[getter]
    fn unsettled(&self) -> PyResult<u64> {
        let driven = self.lock()?;
        Ok(driven.taken - driven.settled)
    }
}

/// Arrow data whose rows `LoopDispatcher.produce_rows` takes.
#[pyclass(frozen, name = "LoopBatch", module = "headrace._headrace")]
pub(crate) struct PyLoopBatch(Mutex<OpenBatch>);

struct OpenBatch {
    reader: Reader,
    layout: BatchLayout,
    /// None: the batch was opened while a connection was being opened.
    plan: Option<BatchPlan>,
    /// A record batch, and the first of its remaining rows.
    current: Option<(RecordBatch, usize)>,
}

impl OpenBatch {
    fn plan(&mut self, dispatcher: &mut Dispatcher) -> headrace_core::Result<()> {
        let plan = dispatcher.plan(self.reader.schema(), &self.layout)?;
        self.reader.read_only(&plan.columns());
        self.plan = Some(plan);
        Ok(())
    }

    fn produce(&mut self, dispatcher: &mut Dispatcher) -> headrace_core::Result<Option<usize>> {
        loop {
            let Some(plan) = &mut self.plan else {
                self.plan(dispatcher)?;
                continue;
            };
            if let Some((batch, row)) = &mut self.current
                && *row < batch.num_rows()
            {
                let taken = dispatcher.produce_rows(batch, *row, plan)?;
                *row += taken;
                return Ok(Some(taken));
            }
            match self.reader.next() {
                None => return Ok(None),
                Some(batch) => self.current = Some((batch?, 0)),
            }
        }
    }
}
