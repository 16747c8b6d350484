//! The socket of a lane that is being opened while the producer sends to other nodes: connecting as a future of its own, which the
//! passes of the loop go on with.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::preparation::{Opened, Preparation};
use crate::endpoint::Node;
use crate::net::{ConnectError, DeferredWait, Interest, Watch};

/// The first number of a connection that is being opened so.
const OPENING: u64 = 3 << 62;

/// How long an opening may have gone without a poll when its time ends: a caller does as much between two calls.
const MISSED: Duration = Duration::from_millis(100);

/// What an opening came to.
pub(super) struct Ended {
    /// With what was learnt on the way.
    pub(super) preparation: Preparation,
    pub(super) opened: Result<Opened, ConnectError>,
    /// Whether there was a connection.
    pub(super) is_reached: bool,
}

type Work = Pin<Box<dyn Future<Output = Ended> + Send>>;

pub(super) struct Opening {
    /// The lock only makes it `Sync`, as a producer is: one caller at a time has the opening.
    work: Mutex<Work>,
    side: Arc<Mutex<Side>>,
    wait: Option<Wait>,
    /// When this try ends.
    ends: Instant,
    /// When it was polled last.
    went_on: Instant,
    /// When the last try for the lane ends.
    until: Instant,
    on_failure: OnFailure,
}

/// What follows if there is no socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnFailure {
    /// Other nodes are asked who has the slots: the node may be gone.
    AskOthers,
    /// They are asked if the node says that another one has the slot.
    AskAfterRedirect,
    /// What waits for the lane fails.
    Fail,
}

/// What it waits for.
struct Wait {
    number: u64,
    socket: Option<(RawFd, bool)>,
    until: Instant,
    /// A descriptor of the same socket, for a wait of the producer. An event loop gets that of the socket itself: epoll(7) forgets
    /// a descriptor only when the last one of its socket is closed.
    held: Option<OwnedFd>,
}

impl Opening {
    /// Begins with the first [`poll`](Self::poll). `until`: when the last try for the lane ends.
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

    /// Goes on without waiting. `waits`: how many waits of openings there were.
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

    /// Until when other tries may follow, and when one does.
    pub(super) fn next_try(&self) -> (Instant, OnFailure) {
        (self.until, self.on_failure)
    }

    /// Whether its time ended while no call went on with it, which says nothing of the node.
    pub(super) fn is_missed(&self, now: Instant) -> bool {
        self.ends <= now && now.saturating_duration_since(self.went_on) > MISSED
    }

    /// When to go on, if its socket is not ready before.
    pub(super) fn wakes(&self) -> Instant {
        self.wait.as_ref().map_or(self.ends, |wait| wait.until)
    }

    /// The socket that it waits for, and whether to be able to send.
    pub(super) fn socket(&self) -> Option<(BorrowedFd<'_>, bool)> {
        let wait = self.wait.as_ref()?;
        let (_, writable) = wait.socket?;
        Some((wait.held.as_ref()?.as_fd(), writable))
    }

    /// The same for an event loop.
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

/// What passes between an opening and its future.
#[derive(Default)]
struct Side {
    /// See [`Watch::reads_inline`].
    reads_inline: bool,
    /// Whether the producer waits, not an event loop.
    holds: bool,
    /// Whether the opening has [`Wait::held`].
    is_held: bool,
    deferred: Option<Deferred>,
}

/// As [`DeferredWait`].
struct Deferred {
    socket: Option<(RawFd, bool)>,
    until: Instant,
    is_new: bool,
    held: Option<OwnedFd>,
}

/// The watch of the future. The loop asks that of the caller, and ends the opening if the call is to end.
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
        // Without a descriptor the producer looks at the socket after each of its short waits.
        let held = wait.socket.filter(|_| is_wanted).and_then(|(fd, _)| fd.try_clone_to_owned().ok());
        let socket = wait.socket.map(|(fd, writable)| (fd.as_raw_fd(), writable));
        side.deferred = Some(Deferred { socket, until: wait.until, is_new: wait.is_new, held });
    }
}

fn lock(side: &Mutex<Side>) -> MutexGuard<'_, Side> {
    side.lock().unwrap_or_else(PoisonError::into_inner)
}
