//! A dispatcher that an event loop drives: no call blocks.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use super::Dispatcher;
use crate::error::{Error, Result};
use crate::net::{ConnectStep, DeferredWait, Interest, ServerChange, TooFewReplicas, Watch};
use crate::producer::{Advance, Errand};
use crate::report::DeliveryReport;
use crate::retry::{RetryEnd, RetryWait};

/// What [`LoopDispatcher::advance`] did, and when it must be called again: as soon as one of the sockets is ready, or at the
/// deadline.
#[derive(Debug)]
pub struct Progress {
    /// The outcomes since the last report, in produce order. `None`: a connection is being opened, and nothing else is done. In a
    /// cluster, this is so while nodes are asked which of them have the streams; connections to these nodes are opened in
    /// parallel.
    pub report: Option<DeliveryReport>,
    /// The sockets to wait for: all that are open or being opened or, without a report, the one that is needed first.
    pub sockets: Vec<Interest>,
    /// When to call again even if no socket is ready: a server has been silent for too long, a retry is due, the sentinels must
    /// be asked, or (if the instant is over) bytes are waiting that were already received. `None`: never.
    pub deadline: Option<Instant>,
}

/// A [`Dispatcher`] for a caller with an event loop, which waits for what [`advance`](Self::advance) returns and calls it again.
///
/// While a connection is opened, which may need several round trips, the dispatcher itself is [away](Self::dispatcher).
pub struct LoopDispatcher {
    state: State,
    deferral: Arc<Mutex<Deferral>>,
    /// Whether the next message connects again once every message has an outcome in a report.
    lifts: bool,
}

/// The numbers of connections that are being opened start here.
const OPENING: u64 = 1 << 63;

enum State {
    Here(Box<Dispatcher>, Deferring),
    Away(Pin<Box<dyn Future<Output = Returned> + Send>>),
    /// During the change from one to the other.
    Between,
}

/// The result of an errand.
type Returned = (Box<Dispatcher>, Deferring, Result<()>);

/// What the call that opens a connection waits for.
#[derive(Debug, Default)]
struct Deferral {
    /// The socket, and the end of the wait.
    wait: Option<(Option<Interest>, Instant)>,
    /// How many waits there have been.
    waits: u64,
    is_interrupted: bool,
}

impl LoopDispatcher {
    /// Sends nothing yet. `watch` is notified as in other calls; it is not asked whether to continue, because nothing blocks.
    pub fn new(dispatcher: Dispatcher, watch: Box<dyn Watch>) -> Self {
        let deferral = Arc::default();
        let watch = Deferring { watch, deferral: Arc::clone(&deferral), reads_inline: false };
        Self { state: State::Here(Box::new(dispatcher), watch), deferral, lifts: true }
    }

    /// As the calls of a [`Dispatcher`] do: passwords and files are looked up in the call that connects, which may block, and
    /// raises what a callable raised; and a connect that fails also fails the messages that follow until the next flush.
    pub(super) fn of_calls(mut self) -> Self {
        self.lifts = false;
        if let State::Here(_, watch) = &mut self.state {
            watch.reads_inline = true;
        }
        self
    }

    /// The dispatcher, to produce messages, which [`advance`](Self::advance) sends. `None`: a connection is being opened, and
    /// there is no room until it is open.
    pub fn dispatcher(&mut self) -> Option<&mut Dispatcher> {
        match &mut self.state {
            State::Here(dispatcher, _) => Some(dispatcher),
            State::Away(_) | State::Between => None,
        }
    }

    /// Does what [`Dispatcher::flush`] does for every message, as far as possible without waiting. Call it also after a message
    /// was produced, and if [`Dispatcher::has_room`] is false: a later call makes room.
    ///
    /// A message is sent, sent again after a pause, or fails (`TIMEOUT`) when its server has been silent for longer than
    /// `command_timeout`, just as in `flush`. A connect that fails also fails the messages that follow until the reports have an
    /// outcome for each message; the next message connects again. Ordinals start again at 0 only with a flush, which then waits
    /// for nothing.
    ///
    /// Host names, requested passwords, and the files of passwords and certificates are looked up on a thread; nothing else needs
    /// one.
    ///
    /// Errors: as [`Dispatcher::poll`]. The outcomes are then in the next report, and nothing is lost.
    pub fn advance(&mut self) -> Result<Progress> {
        loop {
            match self.step()? {
                Step::Errand => {}
                Step::Done(progress) => return Ok(progress),
            }
        }
    }

    /// Gives up on a connection that is being opened, as an interrupt does, so that the dispatcher is available again. Messages
    /// that wait for the connection stay, and the next [`advance`](Self::advance) opens another one.
    pub fn interrupt(&mut self) {
        self.deferral().is_interrupted = true;
        // The wait asks before it does anything else.
        while matches!(self.state, State::Away(_)) {
            let _ = self.poll_errand();
        }
        self.deferral().is_interrupted = false;
    }

    fn step(&mut self) -> Result<Step> {
        let State::Here(dispatcher, watch) = &mut self.state else { return self.poll_errand() };
        match dispatcher.advance(watch)? {
            Advance::Errand(at, errand) => {
                self.send(at, errand);
                self.poll_errand()
            }
            Advance::Done(deadline) => Ok(Step::Done(dispatcher.progress(deadline, self.lifts))),
        }
    }

    fn send(&mut self, at: usize, errand: Errand) {
        if let State::Here(mut dispatcher, mut watch) = std::mem::replace(&mut self.state, State::Between) {
            self.state = State::Away(Box::pin(async move {
                let done = dispatcher.run(at, errand, &mut watch).await;
                (dispatcher, watch, done)
            }));
        }
    }

    fn poll_errand(&mut self) -> Result<Step> {
        let State::Away(errand) = &mut self.state else {
            return Err(Error::Internal { message: "an errand was lost".to_owned() });
        };
        match errand.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready((dispatcher, watch, done)) => {
                self.state = State::Here(dispatcher, watch);
                done.map(|()| Step::Errand)
            }
            Poll::Pending => {
                let (socket, until) = self.deferral().wait.unzip();
                let sockets = socket.flatten().into_iter().collect();
                Ok(Step::Done(Progress { report: None, sockets, deadline: until }))
            }
        }
    }

    fn deferral(&self) -> MutexGuard<'_, Deferral> {
        self.deferral.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Step {
    /// An errand is done.
    Errand,
    Done(Progress),
}

impl fmt::Debug for LoopDispatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.state {
            State::Here(dispatcher, _) => f.debug_tuple("LoopDispatcher").field(dispatcher).finish(),
            State::Away(_) | State::Between => f.write_str("LoopDispatcher(connecting)"),
        }
    }
}

/// The watch of calls that do not block.
struct Deferring {
    watch: Box<dyn Watch>,
    deferral: Arc<Mutex<Deferral>>,
    reads_inline: bool,
}

impl Deferring {
    fn deferral(&self) -> MutexGuard<'_, Deferral> {
        self.deferral.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch for Deferring {
    fn interrupted(&mut self) -> bool {
        self.deferral().is_interrupted
    }

    fn retry_began(&mut self, wait: &RetryWait<'_>) {
        self.watch.retry_began(wait);
    }

    fn retry_ended(&mut self, end: &RetryEnd<'_>) {
        self.watch.retry_ended(end);
    }

    fn too_few_replicas(&mut self, few: &TooFewReplicas<'_>) {
        self.watch.too_few_replicas(few);
    }

    fn server_changed(&mut self, endpoint: &dyn fmt::Display, change: &ServerChange) {
        self.watch.server_changed(endpoint, change);
    }

    fn connect_step(&mut self, step: ConnectStep<'_>) {
        self.watch.connect_step(step);
    }

    fn defers(&self) -> bool {
        true
    }

    fn reads_inline(&self) -> bool {
        self.reads_inline
    }

    fn defer(&mut self, wait: DeferredWait<'_>) {
        let mut deferral = self.deferral();
        deferral.waits += 1;
        deferral.wait = Some((wait.interest(OPENING + deferral.waits), wait.until));
    }
}
