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

/// What [`LoopDispatcher::advance`] did, and when it is to be called again: as soon as one of the sockets is ready, or at the deadline.
#[derive(Debug)]
pub struct Progress {
    /// The outcomes since the last report, in produce order. `None`: a connection is being opened, and nothing else is done meanwhile. In a
    /// cluster that is so while nodes are asked which of them have the streams; connections to these are opened side by side.
    pub report: Option<DeliveryReport>,
    /// The sockets to wait for: all that are open or being opened, or without a report the one that is needed first.
    pub sockets: Vec<Interest>,
    /// When to call again though no socket is ready: a server was silent for too long, a retry is due, the sentinels are to be asked,
    /// or (at an instant that is over) bytes wait that were received already. `None`: never.
    pub deadline: Option<Instant>,
}

/// A [`Dispatcher`] for a caller with an event loop, which waits for what [`advance`](Self::advance) returns and calls it again.
///
/// While a connection is opened, which may need several round trips, the dispatcher itself is [away](Self::dispatcher).
pub struct LoopDispatcher {
    state: State,
    deferral: Arc<Mutex<Deferral>>,
}

/// The first number of a connection that is being opened.
const OPENING: u64 = 1 << 63;

enum State {
    Here(Box<Dispatcher>, Deferring),
    Away(Pin<Box<dyn Future<Output = Returned> + Send>>),
    /// While it goes from one to the other.
    Between,
}

/// What comes back from an errand.
type Returned = (Box<Dispatcher>, Deferring, Result<()>);

/// What the call that opens a connection waits for.
#[derive(Debug, Default)]
struct Deferral {
    /// The socket, and until when.
    wait: Option<(Option<Interest>, Instant)>,
    /// How many waits there were.
    waits: u64,
    is_interrupted: bool,
}

impl LoopDispatcher {
    /// Sends nothing yet. `watch` is notified as in other calls; it is not asked whether to go on, for nothing blocks.
    pub fn new(dispatcher: Dispatcher, watch: Box<dyn Watch>) -> Self {
        let deferral = Arc::default();
        let watch = Deferring { watch, deferral: Arc::clone(&deferral) };
        Self { state: State::Here(Box::new(dispatcher), watch), deferral }
    }

    /// The dispatcher, to produce messages; what waits in it is sent by [`advance`](Self::advance). `None`: a connection is being opened,
    /// and there is no room before it is.
    pub fn dispatcher(&mut self) -> Option<&mut Dispatcher> {
        match &mut self.state {
            State::Here(dispatcher, _) => Some(dispatcher),
            State::Away(_) | State::Between => None,
        }
    }

    /// Does for every message what [`Dispatcher::flush`] does, as far as it goes without waiting; also after a message was produced, and
    /// where [`Dispatcher::has_room`] is false: a later call makes room.
    ///
    /// A message is sent, sent again after a pause, or fails (`TIMEOUT`) when its server is silent for longer than `command_timeout`,
    /// just as in `flush`. A connect that fails also fails the messages that come until the reports have an outcome for each message;
    /// the next one connects again. Ordinals start again at 0 with a flush alone, which then waits for nothing.
    ///
    /// Host names, passwords that are asked for, and the files of passwords and certificates are looked up on a thread; nothing else
    /// needs one.
    ///
    /// Errors: as [`Dispatcher::poll`]. The outcomes so far are in the next report then, and nothing is lost.
    pub fn advance(&mut self) -> Result<Progress> {
        loop {
            match self.step()? {
                Step::Errand => {}
                Step::Done(progress) => return Ok(progress),
            }
        }
    }

    /// Gives up on a connection that is being opened, as an interrupt does, so that the dispatcher is here again. What waits for the
    /// connection stays, and the next [`advance`](Self::advance) opens another one.
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
            Advance::Done(deadline) => Ok(Step::Done(dispatcher.progress(deadline))),
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

    fn defer(&mut self, wait: DeferredWait<'_>) {
        let mut deferral = self.deferral();
        deferral.waits += 1;
        deferral.wait = Some((wait.interest(OPENING + deferral.waits), wait.until));
    }
}
