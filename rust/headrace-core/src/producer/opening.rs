//! A socket that is opened for a lane while the producer sends to other nodes: connecting is a future of its own, which the
//! passes of the loop poll.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::preparation::{Opened, Preparation};
use crate::cluster::Node;
use crate::net::{ConnectError, DeferredWait, Interest, Watch};

/// The numbers of connections that are being opened start here.
const OPENING: u64 = 3 << 62;

/// How long an opening may have gone without a poll when its time ends: a caller may spend that long between two calls.
const MISSED: Duration = Duration::from_millis(100);

/// The result of an opening.
pub(super) struct Ended {
    /// Also carries what the preparation found out.
    pub(super) preparation: Preparation,
    pub(super) opened: Result<Opened, ConnectError>,
    /// Whether a connection was established.
    pub(super) is_reached: bool,
}

type Work = Pin<Box<dyn Future<Output = Ended> + Send>>;

pub(super) struct Opening {
    /// The lock only makes the opening `Sync`, as a producer is: only one caller at a time uses the opening.
    work: Mutex<Work>,
    side: Arc<Mutex<Side>>,
    wait: Option<Wait>,
    /// When this try must end.
    ends: Instant,
    /// When the opening was last polled.
    went_on: Instant,
    /// When the last try for the lane must end.
    until: Instant,
    on_failure: OnFailure,
}

/// The next step when there is no socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnFailure {
    /// Ask other nodes which node has the slots: this node may be gone.
    AskOthers,
    /// Ask other nodes if this node says that another one has the slot.
    AskAfterRedirect,
    /// Fail the commands that wait for the lane.
    Fail,
}

/// What an opening waits for.
struct Wait {
    number: u64,
    socket: Option<(RawFd, bool)>,
    until: Instant,
    /// A duplicate of the socket's descriptor, for waits of the producer. An event loop gets the descriptor of the socket itself:
    /// epoll(7) forgets a descriptor only when the last one of its socket is closed.
    held: Option<OwnedFd>,
}

impl Opening {
    /// Creates an opening, which starts with the first [`poll`](Self::poll). `until`: when the last try for the lane must end.
    pub(super) fn new(mut preparation: Preparation, node: Node, until: Instant, on_failure: OnFailure) -> Self {
        let now = Instant::now();
        let ends = now.checked_add(preparation.settings.connect_timeout).unwrap_or(now);
        let side = Arc::default();
        let mut watch = OnTheSide(Arc::clone(&side));
        let work = async move {
            let (opened, is_reached) = match preparation.connect(&node, &mut watch).await {
                Ok(transport) => (preparation.run(transport, None, ends, &mut watch).await, true),
                Err(error) => (Err(error), false),
            };
            Ended { preparation, opened, is_reached }
        };
        let work: Work = Box::pin(work);
        Self { work: Mutex::new(work), side, wait: None, ends, went_on: now, until, on_failure }
    }

    /// Continues without waiting. `waits`: how many waits of openings there have been.
    pub(super) fn poll(&mut self, waits: &mut u64, watch: &dyn Watch) -> Poll<Ended> {
        {
            let mut side = lock(&self.side);
            side.reads_inline = watch.reads_inline();
            side.is_held = self.wait.as_ref().is_some_and(|wait| wait.held.is_some());
            side.holds = !watch.defers();
        }
        self.went_on = Instant::now();
        let work = self.work.get_mut().unwrap_or_else(PoisonError::into_inner);
        let polled = work.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if polled.is_ready() {
            self.wait = None;
        } else if let Some(Deferred { socket, until, is_new, held }) = lock(&self.side).deferred.take() {
            match &mut self.wait {
                Some(wait) if !is_new => {
                    wait.until = until;
                    wait.held = held.or_else(|| wait.held.take());
                }
                wait => {
                    *waits += 1;
                    *wait = Some(Wait { number: OPENING + *waits, socket, until, held });
                }
            }
        }
        polled
    }

    /// The time up to which further tries are allowed, and the next step when there is no socket.
    pub(super) fn next_try(&self) -> (Instant, OnFailure) {
        (self.until, self.on_failure)
    }

    /// Whether the opening's time ended while no call polled it, which says nothing about the node.
    pub(super) fn is_missed(&self, now: Instant) -> bool {
        self.ends <= now && now.saturating_duration_since(self.went_on) > MISSED
    }

    /// When to continue if the socket is not ready before.
    pub(super) fn wakes(&self) -> Instant {
        self.wait.as_ref().map_or(self.ends, |wait| wait.until)
    }

    /// The socket that the opening waits for, and whether it waits to send.
    pub(super) fn socket(&self) -> Option<(BorrowedFd<'_>, bool)> {
        let wait = self.wait.as_ref()?;
        let (_, writable) = wait.socket?;
        Some((wait.held.as_ref()?.as_fd(), writable))
    }

    /// The socket that the opening waits for, for an event loop.
    pub(super) fn interest(&self) -> Option<Interest> {
        let wait = self.wait.as_ref()?;
        let (fd, writable) = wait.socket?;
        Some(Interest { connection: wait.number, fd, writable })
    }
}

impl fmt::Debug for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opening").field("ends", &self.ends).finish_non_exhaustive()
    }
}

/// State shared by an opening and its future.
#[derive(Default)]
struct Side {
    /// See [`Watch::reads_inline`].
    reads_inline: bool,
    /// Whether the producer does the waiting, not an event loop.
    holds: bool,
    /// Whether the opening has [`Wait::held`].
    is_held: bool,
    deferred: Option<Deferred>,
}

/// Like [`DeferredWait`], with raw descriptors.
struct Deferred {
    socket: Option<(RawFd, bool)>,
    until: Instant,
    is_new: bool,
    held: Option<OwnedFd>,
}

/// The watch of the future. The loop asks the caller's watch, and ends the opening if the call must end.
struct OnTheSide(Arc<Mutex<Side>>);

impl Watch for OnTheSide {
    fn interrupted(&mut self) -> bool {
        false
    }

    fn defers(&self) -> bool {
        true
    }

    fn reads_inline(&self) -> bool {
        lock(&self.0).reads_inline
    }

    fn defer(&mut self, wait: DeferredWait<'_>) {
        let mut side = lock(&self.0);
        let is_wanted = side.holds && (wait.is_new || !side.is_held);
        // Without a descriptor, the producer checks the socket after each of its short waits.
        let held = wait.socket.filter(|_| is_wanted).and_then(|(fd, _)| fd.try_clone_to_owned().ok());
        let socket = wait.socket.map(|(fd, writable)| (fd.as_raw_fd(), writable));
        side.deferred = Some(Deferred { socket, until: wait.until, is_new: wait.is_new, held });
    }
}

fn lock(side: &Mutex<Side>) -> MutexGuard<'_, Side> {
    side.lock().unwrap_or_else(PoisonError::into_inner)
}
