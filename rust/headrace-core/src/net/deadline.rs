//! How long a call may wait, and what may end the wait: one deadline, and a watch that is polled throughout.

use std::fmt;
use std::future::poll_fn;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use socket2::Socket;

use super::change::ServerChange;
use super::connect_step::ConnectStep;
use super::interest::Interest;
use super::progress::Progress;
use super::socket::{self, Readiness};
use crate::endpoint::NoPassword;
use crate::error::{Error, Fault, code};
use crate::retry::{RetryEnd, RetryWait};

/// The longest wait without polling the watch: Ctrl-C must be noticed within a tenth of a second.
const SLICE: Duration = Duration::from_millis(50);

/// Polled while a call waits: at least every 50 ms, and immediately after a signal interrupts the wait.
pub trait Watch: Send {
    /// Whether the caller wants the wait to end now.
    fn interrupted(&mut self) -> bool;

    /// Whether the call should end at a point where that costs nothing: no attempt to connect, and no reply.
    fn gives_way(&mut self) -> bool {
        false
    }

    /// A call that shares a lock with others has released it: this may run code that waits for another call. Returns whether it
    /// did.
    fn released(&mut self) -> bool {
        false
    }

    /// The call starts to wait for a server, or for messages that are sent again. Called once for all the attempts that this
    /// takes.
    fn retry_began(&mut self, _wait: &RetryWait<'_>) {}

    /// Such a wait has ended. It may have started in an earlier call.
    fn retry_ended(&mut self, _end: &RetryEnd<'_>) {}

    /// The server has more replicas than are waited for, so a replica that is promoted may lack confirmed messages. Called
    /// once per dispatcher.
    fn too_few_replicas(&mut self, _few: &TooFewReplicas<'_>) {}

    /// A server of an endpoint changed. `endpoint` describes where messages go or come from, without secrets.
    fn server_changed(&mut self, _endpoint: &dyn fmt::Display, _change: &ServerChange) {}

    /// A connect has reached this step. A dispatcher's connects to nodes of a cluster run side by side and are not reported.
    fn connect_step(&mut self, _step: ConnectStep<'_>) {}

    /// Whether the caller has an event loop and waits itself for what [`defer`](Self::defer) describes. Otherwise calls
    /// block.
    fn defers(&self) -> bool {
        false
    }

    /// Whether passwords and files are read in the call that connects, even if that blocks. Otherwise a thread reads them.
    fn reads_inline(&self) -> bool {
        !self.defers()
    }

    /// The call continues after this wait.
    fn defer(&mut self, _wait: DeferredWait<'_>) {}

    /// The call continues once one of these sockets is ready, or at `until`.
    fn defer_all(&mut self, _sockets: Vec<Interest>, _until: Option<Instant>) {}

    /// Whether the call has gone on for so long that an event loop has other things to do.
    fn yields(&self) -> bool {
        false
    }

    /// The time by which the call's deadlines end. It may be behind the system's clock: time that the call could not use.
    fn now(&self) -> Instant {
        Instant::now()
    }
}

/// What a caller with an event loop must wait for while a connection is opened.
#[derive(Debug, Clone, Copy)]
pub struct DeferredWait<'a> {
    /// The descriptor of a socket, and whether to wait until it is writable as well as readable. It stays open until the call
    /// continues.
    pub socket: Option<(BorrowedFd<'a>, bool)>,
    /// The time at which the wait ends even if the socket is not ready.
    pub until: Instant,
    /// Whether this wait differs from the last one, perhaps for another socket with the same descriptor.
    pub is_new: bool,
}

impl DeferredWait<'_> {
    /// The socket, for the connection with this number.
    pub fn interest(&self, connection: u64) -> Option<Interest> {
        self.socket.map(|(fd, writable)| Interest { connection, fd: fd.as_raw_fd(), writable })
    }
}

/// Lets the caller's event loop continue, until one of these sockets is ready, or until `until`. Fails if the watch then ends the
/// call.
pub(crate) async fn rest(sockets: Vec<Interest>, until: Option<Instant>, watch: &mut dyn Watch) -> Result<(), Error> {
    watch.defer_all(sockets, until);
    let mut has_rested = false;
    poll_fn(|_| if std::mem::replace(&mut has_rested, true) { Poll::Ready(()) } else { Poll::Pending }).await;
    if watch.interrupted() { Err(Error::Interrupted) } else { Ok(()) }
}

/// Lets the caller's event loop continue if the call has gone on for long.
pub(crate) async fn breathe(watch: &mut dyn Watch) -> Result<(), Error> {
    if watch.yields() { rest(Vec::new(), Some(Instant::now()), watch).await } else { Ok(()) }
}

/// What a call waits for.
pub(super) trait Waited {
    /// Waits for `timeout` at most, and returns what is ready.
    fn wait(&mut self, timeout: Duration) -> Readiness;

    /// See [`DeferredWait`].
    fn socket(&self) -> Option<(BorrowedFd<'_>, bool)>;
}

/// The server has more replicas than are waited for.
#[derive(Clone, Copy)]
pub struct TooFewReplicas<'a> {
    /// Where messages go, without secrets.
    pub endpoint: &'a dyn fmt::Display,
    /// The number of replicas that are waited for.
    pub wanted: u64,
    /// The number of replicas that the server has.
    pub count: u64,
}

/// The [`Watch`] that never ends a wait.
#[derive(Debug, Clone, Copy, Default)]
pub struct NeverInterrupted;

impl Watch for NeverInterrupted {
    fn interrupted(&mut self) -> bool {
        false
    }
}

/// The reason that no connection was made, or no reply arrived on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ConnectError {
    /// The connect or the request failed; the fault says why.
    Fault(Fault),
    /// The [`Watch`] ended the wait.
    Interrupted,
}

impl From<Fault> for ConnectError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<NoPassword> for ConnectError {
    fn from(reason: NoPassword) -> Self {
        match reason {
            NoPassword::Failed(message) => Fault::new(code::CONFIG, message).into(),
            NoPassword::Interrupted => Self::Interrupted,
        }
    }
}

/// What a connection is doing while a call waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Password,
    Resolve,
    Open,
    Tls,
    Auth,
    Select,
    Client,
    Group,
    Request,
}

impl Stage {
    /// The name in a log of the steps of a connect.
    fn name(self) -> &'static str {
        match self {
            Self::Password => "password",
            Self::Resolve => "dns",
            Self::Open => "tcp",
            Self::Tls => "tls",
            Self::Auth => "auth",
            Self::Select => "select",
            Self::Client => "client",
            Self::Group => "group",
            Self::Request => "request",
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Password => "while waiting for the password",
            Self::Resolve => "while resolving the host name",
            Self::Open => "while opening the connection",
            Self::Tls => "in the TLS handshake",
            Self::Auth => "while waiting for the reply to AUTH",
            Self::Select => "while waiting for the reply to SELECT",
            Self::Client => "while waiting for the reply to CLIENT SETINFO",
            Self::Group => "while waiting for the reply to XGROUP CREATE",
            Self::Request => "while waiting for a reply",
        })
    }
}

/// A deadline, and the [`Watch`] that may end the wait earlier.
pub(crate) struct Deadline<'w> {
    end: Instant,
    watch: &'w mut dyn Watch,
    stage: Stage,
    /// How long the peer may make no progress, if the deadline limits that.
    silence: Option<(Duration, Progress)>,
}

impl<'w> Deadline<'w> {
    /// Waits end at `deadline`, or earlier if `watch` ends them.
    pub(crate) fn new(deadline: Instant, watch: &'w mut dyn Watch) -> Self {
        Self { end: deadline, watch, stage: Stage::Request, silence: None }
    }

    /// Waits end when the peer has made no [`Progress`] for this time, or earlier if `watch` ends them.
    pub(crate) fn of_silence(silence: Duration, watch: &'w mut dyn Watch) -> Self {
        let now = watch.now();
        Self { silence: Some((silence, Progress::new(now))), ..Self::new(after(now, silence), watch) }
    }

    /// Records that the peer sent bytes.
    pub(super) fn heard(&mut self, count: usize) {
        let now = self.watch.now();
        if let Some((silence, progress)) = &mut self.silence
            && progress.moved(count, now)
        {
            self.end = after(now, *silence);
        }
    }

    /// Records that the peer sent the rest of a reply.
    pub(super) fn answered(&mut self) {
        let now = self.watch.now();
        if let Some((silence, progress)) = &mut self.silence {
            progress.made(now);
            self.end = after(now, *silence);
        }
    }

    /// The same watch with an earlier deadline, for one of several attempts.
    pub(super) fn until(&mut self, deadline: Instant) -> Deadline<'_> {
        Deadline { end: deadline.min(self.end), watch: &mut *self.watch, stage: self.stage, silence: None }
    }

    /// The same watch with an equal part of the remaining time, for the next of `tries` attempts.
    pub(super) fn part(&mut self, tries: usize) -> Deadline<'_> {
        let part = self.left() / u32::try_from(tries).unwrap_or(u32::MAX);
        self.until(self.watch.now() + part)
    }

    pub(crate) fn enter(&mut self, stage: Stage) {
        self.stage = stage;
        self.note(ConnectStep::Stage(stage.name()));
    }

    /// Reports a step to the watch.
    pub(super) fn note(&mut self, step: ConnectStep<'_>) {
        self.watch.connect_step(step);
    }

    pub(super) fn stage(&self) -> Stage {
        self.stage
    }

    pub(crate) fn left(&self) -> Duration {
        self.end.saturating_duration_since(self.watch.now())
    }

    /// See [`Watch::reads_inline`].
    pub(super) fn reads_inline(&self) -> bool {
        self.watch.reads_inline()
    }

    /// Fails if the deadline has passed, or if the watch ends the wait.
    pub(super) fn check(&mut self) -> Result<(), ConnectError> {
        self.slice().map(drop)
    }

    /// Waits until bytes can be received or, if `writable`, sent. It may return early; the caller then calls it again.
    pub(super) async fn wait_for(&mut self, socket: &Socket, writable: bool) -> Result<Readiness, ConnectError> {
        self.wait_while(&mut OfSocket { socket, writable }, None).await
    }

    /// Waits for this time to pass.
    pub(crate) async fn pause(&mut self, pause: Duration) -> Result<(), ConnectError> {
        let until = Instant::now() + pause;
        self.wait_while(&mut Pause { until }, Some(until)).await.map(drop)
    }

    /// Waits for one slice. If the caller waits itself, polls without waiting until something is ready. For `until`, see
    /// [`DeferredWait`].
    pub(super) async fn wait_while(
        &mut self,
        waited: &mut impl Waited,
        until: Option<Instant>,
    ) -> Result<Readiness, ConnectError> {
        let mut is_new = true;
        poll_fn(|_| {
            let slice = match self.slice() {
                Ok(slice) => slice,
                Err(error) => return Poll::Ready(Err(error)),
            };
            if !self.watch.defers() {
                return Poll::Ready(Ok(waited.wait(slice)));
            }
            let ready = waited.wait(Duration::ZERO);
            if ready != Readiness::default() {
                return Poll::Ready(Ok(ready));
            }
            let left = self.left();
            let until = until.into_iter().chain(Instant::now().checked_add(left)).min().unwrap_or(self.end);
            self.watch.defer(DeferredWait { socket: waited.socket(), until, is_new });
            is_new = false;
            Poll::Pending
        })
        .await
    }

    /// The maximum duration of the next wait; called before each wait.
    fn slice(&mut self) -> Result<Duration, ConnectError> {
        if self.watch.interrupted() {
            return Err(ConnectError::Interrupted);
        }
        let left = self.left();
        if left.is_zero() {
            return Err(Fault::new(code::TIMEOUT, format!("timed out {}", self.stage)).into());
        }
        Ok(left.min(SLICE))
    }
}

/// A wait until a socket can be received from or, if `writable`, sent to.
struct OfSocket<'a> {
    socket: &'a Socket,
    writable: bool,
}

impl Waited for OfSocket<'_> {
    fn wait(&mut self, timeout: Duration) -> Readiness {
        socket::poll(self.socket, self.writable, timeout)
    }

    fn socket(&self) -> Option<(BorrowedFd<'_>, bool)> {
        Some((self.socket.as_fd(), self.writable))
    }
}

/// A wait until a time.
struct Pause {
    until: Instant,
}

impl Waited for Pause {
    fn wait(&mut self, timeout: Duration) -> Readiness {
        thread::sleep(timeout.min(self.until.saturating_duration_since(Instant::now())));
        Readiness { interrupted: Instant::now() >= self.until, ..Readiness::default() }
    }

    fn socket(&self) -> Option<(BorrowedFd<'_>, bool)> {
        None
    }
}

fn after(now: Instant, duration: Duration) -> Instant {
    now.checked_add(duration).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;
    use crate::net::NeverInterrupted;

    struct Counting(u32);

    impl Watch for Counting {
        fn interrupted(&mut self) -> bool {
            self.0 += 1;
            self.0 > 2
        }
    }

    #[test]
    fn the_watch_is_polled_before_each_wait_and_takes_precedence_over_the_deadline() {
        let mut watch = Counting(0);
        let mut patience = Deadline::new(Instant::now() + Duration::from_secs(60), &mut watch);
        assert_eq!(patience.slice().unwrap(), SLICE);
        assert!(
            patience.until(Instant::now() + Duration::from_millis(20)).slice().unwrap() <= Duration::from_millis(20)
        );
        assert_eq!(patience.until(Instant::now()).slice(), Err(ConnectError::Interrupted));
    }

    #[test]
    fn a_silence_deadline_moves_with_each_reply_and_each_piece_of_one_but_not_with_a_byte() {
        let mut watch = NeverInterrupted;
        let mut silence = Deadline::of_silence(Duration::from_secs(60), &mut watch);
        let first = silence.end;
        silence.heard(1);
        assert_eq!(silence.end, first);
        silence.heard(1 << 20);
        let second = silence.end;
        assert!(second > first);
        silence.answered();
        assert!(silence.end > second);
        let mut watch = NeverInterrupted;
        let mut fixed = Deadline::new(first, &mut watch);
        fixed.heard(1 << 20);
        fixed.answered();
        assert_eq!(fixed.end, first);
    }

    #[test]
    fn a_timeout_names_the_stage() {
        let mut watch = Counting(0);
        let mut patience = Deadline::new(Instant::now(), &mut watch);
        patience.enter(Stage::Auth);
        let later = Instant::now() + Duration::from_secs(1);
        let ConnectError::Fault(fault) = patience.until(later).slice().unwrap_err() else { panic!("interrupted") };
        assert_eq!(fault.code, code::TIMEOUT);
        assert_eq!(fault.message, "timed out while waiting for the reply to AUTH");
    }
}
