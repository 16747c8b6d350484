//! Calls for an event loop: each goes on when the loop polls it, and says what it waits for.

mod calls;

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::net::{ConnectStep, DeferredWait, Interest, ServerChange, TooFewReplicas, Watch};
use crate::retry::{RetryEnd, RetryWait};

pub(crate) use calls::{Call, Calls, Reply};

/// The numbers of connections that a call opens by itself start here.
const OPENING: u64 = 1 << 63;
/// How long a call goes on before the event loop gets its turn.
const TURN: Duration = Duration::from_millis(2);

/// What a call that is at work waits for: it continues as soon as one of the sockets is ready, or at the deadline.
#[derive(Debug, Clone, Default)]
pub struct LoopWait {
    /// The sockets.
    pub sockets: Vec<Interest>,
    /// When to continue even if no socket is ready by then; `None`: never. If the instant is over, there is more to do now, and
    /// the event loop has its turn before.
    pub deadline: Option<Instant>,
}

/// A `T`, one of whose calls may be at work: it then has the `T`. `R`: the result of a call.
pub(crate) struct Looped<T, R> {
    state: State<T, R>,
    deferral: Arc<Mutex<Deferral>>,
}

enum State<T, R> {
    Here(Box<T>, Deferring),
    Away(Pin<Box<dyn Future<Output = Returned<T, R>> + Send>>),
    /// During the change from one to the other.
    Between,
}

/// What a call returns: what it had, and its result.
pub(crate) type Returned<T, R> = (Box<T>, Deferring, R);

#[derive(Debug, Default)]
struct Deferral {
    wait: LoopWait,
    /// How many waits for a single socket there have been.
    waits: u64,
    is_interrupted: bool,
    /// When the call was last polled.
    polled: Option<Instant>,
}

impl<T: Send + 'static, R> Looped<T, R> {
    /// `watch` is notified as in other calls; it is not asked whether to continue, because nothing blocks.
    pub(crate) fn new(inner: T, watch: Box<dyn Watch>) -> Self {
        let deferral = Arc::default();
        let watch = Deferring { watch, deferral: Arc::clone(&deferral), reads_inline: false };
        Self { state: State::Here(Box::new(inner), watch), deferral }
    }

    /// `None`: a call is at work.
    pub(crate) fn here(&mut self) -> Option<&mut T> {
        self.parts().map(|(inner, _)| inner)
    }

    /// The same, with the watch of its calls.
    pub(crate) fn parts(&mut self) -> Option<(&mut T, &mut Deferring)> {
        match &mut self.state {
            State::Here(inner, watch) => Some((inner, watch)),
            State::Away(_) | State::Between => None,
        }
    }

    /// Begins a call, unless one is at work: it starts with the first [`poll`](Self::poll).
    pub(crate) fn begin<W>(&mut self, call: impl FnOnce(Box<T>, Deferring) -> W)
    where
        W: Future<Output = Returned<T, R>> + Send + 'static,
    {
        self.state = match std::mem::replace(&mut self.state, State::Between) {
            State::Here(inner, watch) => State::Away(Box::pin(call(inner, watch))),
            other => other,
        };
    }

    /// Continues the call that is at work.
    pub(crate) fn poll(&mut self) -> Poll<Result<R>> {
        {
            let mut deferral = self.deferral();
            deferral.polled = Some(Instant::now());
            deferral.wait = LoopWait::default();
        }
        let State::Away(call) = &mut self.state else {
            return Poll::Ready(Err(Error::Internal { message: "a call was lost".to_owned() }));
        };
        let Poll::Ready((inner, watch, done)) = call.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
            return Poll::Pending;
        };
        self.state = State::Here(inner, watch);
        Poll::Ready(Ok(done))
    }

    /// What the call waits for.
    pub(crate) fn wait(&self) -> LoopWait {
        self.deferral().wait.clone()
    }

    /// Ends the call that is at work, as an interrupt does, and returns its result.
    pub(crate) fn interrupt(&mut self) -> Option<R> {
        self.deferral().is_interrupted = true;
        let mut result = None;
        // The wait asks before it does anything else.
        while matches!(self.state, State::Away(_)) {
            if let Poll::Ready(done) = self.poll() {
                result = done.ok();
            }
        }
        self.deferral().is_interrupted = false;
        result
    }

    fn deferral(&self) -> MutexGuard<'_, Deferral> {
        lock(&self.deferral)
    }
}

impl<T: fmt::Debug, R> fmt::Debug for Looped<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.state {
            State::Here(inner, _) => f.debug_tuple("Looped").field(inner).finish(),
            State::Away(_) | State::Between => f.write_str("Looped(at work)"),
        }
    }
}

/// The watch of calls that do not block.
pub(crate) struct Deferring {
    watch: Box<dyn Watch>,
    deferral: Arc<Mutex<Deferral>>,
    reads_inline: bool,
}

impl Deferring {
    /// Lets passwords and files be read in the call that connects, even if that blocks.
    pub(crate) fn read_inline(&mut self) {
        self.reads_inline = true;
    }
}

impl Watch for Deferring {
    fn interrupted(&mut self) -> bool {
        lock(&self.deferral).is_interrupted
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
        let mut deferral = lock(&self.deferral);
        deferral.waits += 1;
        let number = OPENING + deferral.waits;
        deferral.wait = LoopWait { sockets: wait.interest(number).into_iter().collect(), deadline: Some(wait.until) };
    }

    fn defer_all(&mut self, sockets: Vec<Interest>, until: Option<Instant>) {
        lock(&self.deferral).wait = LoopWait { sockets, deadline: until };
    }

    fn yields(&self) -> bool {
        lock(&self.deferral).polled.is_some_and(|polled| polled.elapsed() >= TURN)
    }
}

fn lock(deferral: &Mutex<Deferral>) -> MutexGuard<'_, Deferral> {
    deferral.lock().unwrap_or_else(PoisonError::into_inner)
}
