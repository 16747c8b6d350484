//! A connection that is opened while its owner does other things: connecting is a future of its own, which the owner polls.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::deadline::{DeferredWait, Watch};
use super::interest::Interest;

/// The numbers of connections that are being opened start here.
const OPENING: u64 = 3 << 62;

/// How much time passes for an opening between two polls at most. Beyond that its clock stands still: the caller did something
/// else, which says nothing about the server.
const MISSED: Duration = Duration::from_millis(100);

type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Becomes a `T`, which says whether there is a connection.
pub(crate) struct Opening<T> {
    /// The lock only makes the opening `Sync`, as its owner is: only one caller at a time uses the opening.
    work: Mutex<Work<T>>,
    side: Arc<Mutex<Side>>,
    wait: Option<Wait>,
    /// When the work must end.
    ends: Instant,
    /// When the opening was last polled.
    went_on: Instant,
}

/// What an opening waits for.
struct Wait {
    number: u64,
    socket: Option<(RawFd, bool)>,
    until: Instant,
    /// A duplicate of the socket's descriptor, for waits of the owner. An event loop gets the descriptor of the socket itself:
    /// epoll(7) forgets a descriptor only when the last one of its socket is closed.
    held: Option<OwnedFd>,
}

impl<T> Opening<T> {
    /// Creates an opening, which starts with the first [`poll`](Self::poll). `longest`: how long the work may take. The work gets
    /// its watch, and when it must end.
    pub(crate) fn new<W>(longest: Duration, work: impl FnOnce(OnTheSide, Instant) -> W) -> Self
    where
        W: Future<Output = T> + Send + 'static,
    {
        let (side, now) = (Arc::default(), Instant::now());
        let ends = now.checked_add(longest).unwrap_or(now);
        let work: Work<T> = Box::pin(work(OnTheSide(Arc::clone(&side)), ends));
        Self { work: Mutex::new(work), side, wait: None, ends, went_on: now }
    }

    /// Continues without waiting. `waits`: how many waits of openings there have been.
    pub(crate) fn poll(&mut self, waits: &mut u64, watch: &dyn Watch) -> Poll<T> {
        let (now, missed) = (Instant::now(), self.went_on.elapsed());
        {
            let mut side = lock(&self.side);
            side.stood += missed.saturating_sub(MISSED);
            side.reads_inline = watch.reads_inline();
            side.is_held = self.wait.as_ref().is_some_and(|wait| wait.held.is_some());
            side.holds = !watch.defers();
        }
        self.went_on = now;
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

    /// Whether the opening's time ended while no call polled it, which says nothing about the node.
    pub(crate) fn is_missed(&self, now: Instant) -> bool {
        self.ends <= now && now.saturating_duration_since(self.went_on) > MISSED
    }

    /// When to continue if the socket is not ready before.
    pub(crate) fn wakes(&self) -> Instant {
        self.wait.as_ref().map_or(self.ends, |wait| wait.until)
    }

    /// The socket that the opening waits for, and whether it waits to send.
    pub(crate) fn socket(&self) -> Option<(BorrowedFd<'_>, bool)> {
        let wait = self.wait.as_ref()?;
        let (_, writable) = wait.socket?;
        Some((wait.held.as_ref()?.as_fd(), writable))
    }

    /// The socket that the opening waits for, for an event loop.
    pub(crate) fn interest(&self) -> Option<Interest> {
        let wait = self.wait.as_ref()?;
        let (fd, writable) = wait.socket?;
        Some(Interest { connection: wait.number, fd, writable })
    }
}

impl<T> fmt::Debug for Opening<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opening").field("ends", &self.ends).finish_non_exhaustive()
    }
}

/// State shared by an opening and its future.
#[derive(Default)]
struct Side {
    /// How long its clock stood still, in all.
    stood: Duration,
    /// See [`Watch::reads_inline`].
    reads_inline: bool,
    /// Whether the owner does the waiting, not an event loop.
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

/// The watch of the future. The owner asks the caller's watch, and drops the opening if the call must end.
pub(crate) struct OnTheSide(Arc<Mutex<Side>>);

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

    fn now(&self) -> Instant {
        let now = Instant::now();
        now.checked_sub(lock(&self.0).stood).unwrap_or(now)
    }

    fn defer(&mut self, wait: DeferredWait<'_>) {
        let mut side = lock(&self.0);
        let is_wanted = side.holds && (wait.is_new || !side.is_held);
        // Without a descriptor, the owner checks the socket after each of its short waits.
        let held = wait.socket.filter(|_| is_wanted).and_then(|(fd, _)| fd.try_clone_to_owned().ok());
        let socket = wait.socket.map(|(fd, writable)| (fd.as_raw_fd(), writable));
        side.deferred = Some(Deferred { socket, until: wait.until, is_new: wait.is_new, held });
    }
}

fn lock(side: &Mutex<Side>) -> MutexGuard<'_, Side> {
    side.lock().unwrap_or_else(PoisonError::into_inner)
}
