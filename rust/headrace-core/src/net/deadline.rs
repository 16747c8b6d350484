//! How long a call may wait, and who may end the wait: one deadline, and a watch that is asked all along.

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
use super::socket::{self, Readiness};
use crate::endpoint::NoPassword;
use crate::error::{Fault, code};
use crate::retry::{RetryEnd, RetryWait};

/// The longest wait without asking the watch: Ctrl-C is to be noticed within a tenth of a second.
const SLICE: Duration = Duration::from_millis(50);

/// Asked while a call waits: at least every 50 ms, and at once after a signal interrupted the wait.
pub trait Watch: Send {
    /// Whether the caller wants the wait to end now.
    fn interrupted(&mut self) -> bool;

    /// The call begins to wait for messages that are sent again, or for a server: once for all the tries that this takes.
    fn retry_began(&mut self, _wait: &RetryWait<'_>) {}

    /// Such a wait is over. It may have begun in an earlier call.
    fn retry_ended(&mut self, _end: &RetryEnd<'_>) {}

    /// The server has more replicas than are waited for, so that the one which is promoted may lack what was confirmed. Once for a
    /// dispatcher.
    fn too_few_replicas(&mut self, _few: &TooFewReplicas<'_>) {}

    /// The servers of an endpoint changed. `endpoint`: where messages go, or come from; without a secret.
    fn server_changed(&mut self, _endpoint: &dyn fmt::Display, _change: &ServerChange) {}

    /// A connect came to this step. Connects of a dispatcher to nodes of a cluster go on side by side, and are not reported.
    fn connect_step(&mut self, _step: ConnectStep<'_>) {}

    /// Whether the caller has an event loop, and waits by itself for what [`defer`](Self::defer) says. Otherwise calls block.
    fn defers(&self) -> bool {
        false
    }

    /// Whether passwords and files are read in the call that connects, though it may wait for them. Otherwise a thread reads them.
    fn reads_inline(&self) -> bool {
        !self.defers()
    }

    /// The call goes on after this wait.
    fn defer(&mut self, _wait: DeferredWait<'_>) {}
}

/// What a caller with an event loop waits for while a connection is opened.
#[derive(Debug, Clone, Copy)]
pub struct DeferredWait<'a> {
    /// The descriptor of a socket: until it is readable, or also until it is writable. It is open until the call goes on.
    pub socket: Option<(BorrowedFd<'a>, bool)>,
    /// Until then, though the socket is not ready.
    pub until: Instant,
    /// Whether it is another wait than the last one, perhaps for another socket with the same descriptor.
    pub is_new: bool,
}

impl DeferredWait<'_> {
    /// The socket, for a connection of this number.
    pub fn interest(&self, connection: u64) -> Option<Interest> {
        self.socket.map(|(fd, writable)| Interest { connection, fd: fd.as_raw_fd(), writable })
    }
}

/// What a call waits for.
pub(super) trait Waited {
    /// Waits for `timeout` at most, and returns what it found.
    fn wait(&mut self, timeout: Duration) -> Readiness;

    /// See [`DeferredWait`].
    fn socket(&self) -> Option<(BorrowedFd<'_>, bool)>;
}

/// Fewer replicas are waited for than there are.
#[derive(Clone, Copy)]
pub struct TooFewReplicas<'a> {
    /// Where messages go; without a secret.
    pub endpoint: &'a dyn fmt::Display,
    /// How many replicas are waited for.
    pub wanted: u64,
    /// How many the server has.
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

/// Why there is no connection, or no reply on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ConnectError {
    /// Something went wrong; the fault says what.
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

/// What a connection is doing while somebody waits for it.
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
    /// For a log of the steps of a connect.
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
            Self::Password => "while the password was asked for",
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

/// A deadline, and the [`Watch`] that may end the wait before it.
pub(crate) struct Deadline<'w> {
    end: Instant,
    watch: &'w mut dyn Watch,
    stage: Stage,
    /// How long the peer may be silent, if the deadline is one for silence.
    silence: Option<Duration>,
}

impl<'w> Deadline<'w> {
    /// Waits end at `deadline`, or when `watch` says so.
    pub(crate) fn new(deadline: Instant, watch: &'w mut dyn Watch) -> Self {
        Self { end: deadline, watch, stage: Stage::Request, silence: None }
    }

    /// Waits end when the peer was silent for so long, or when `watch` says so.
    pub(crate) fn of_silence(silence: Duration, watch: &'w mut dyn Watch) -> Self {
        Self { silence: Some(silence), ..Self::new(after(silence), watch) }
    }

    /// The peer sent something.
    pub(super) fn heard(&mut self) {
        if let Some(silence) = self.silence {
            self.end = after(silence);
        }
    }

    /// The same watch with a nearer deadline, for one try among several.
    pub(super) fn until(&mut self, deadline: Instant) -> Deadline<'_> {
        Deadline { end: deadline.min(self.end), watch: &mut *self.watch, stage: self.stage, silence: None }
    }

    /// The same watch with an equal part of the time that is left, for the next of `tries`.
    pub(super) fn part(&mut self, tries: usize) -> Deadline<'_> {
        let part = self.left() / u32::try_from(tries).unwrap_or(u32::MAX);
        self.until(Instant::now() + part)
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
        self.end.saturating_duration_since(Instant::now())
    }

    /// See [`Watch::reads_inline`].
    pub(super) fn reads_inline(&self) -> bool {
        self.watch.reads_inline()
    }

    /// Fails when the deadline is over, or the watch ends the wait.
    pub(super) fn check(&mut self) -> Result<(), ConnectError> {
        self.slice().map(drop)
    }

    /// Waits until bytes can be received or, if `writable`, sent. It may return before: then it is called again.
    pub(super) async fn wait_for(&mut self, socket: &Socket, writable: bool) -> Result<Readiness, ConnectError> {
        self.wait_while(&mut OfSocket { socket, writable }, None).await
    }

    /// Lets time pass.
    pub(crate) async fn pause(&mut self, pause: Duration) -> Result<(), ConnectError> {
        let until = Instant::now() + pause;
        self.wait_while(&mut Pause { until }, Some(until)).await.map(drop)
    }

    /// Waits for one slice; where the caller waits by itself, until something is found without waiting. `until`: see [`DeferredWait`].
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
            let until = until.map_or(self.end, |until| until.min(self.end));
            self.watch.defer(DeferredWait { socket: waited.socket(), until, is_new });
            is_new = false;
            Poll::Pending
        })
        .await
    }

    /// How long the next wait may be; called before each.
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

/// A socket that can be received from or, if `writable`, sent to.
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

/// Time that passes.
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

fn after(duration: Duration) -> Instant {
    let now = Instant::now();
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
    fn the_watch_is_asked_before_each_wait_and_wins_over_the_deadline() {
        let mut watch = Counting(0);
        let mut patience = Deadline::new(Instant::now() + Duration::from_secs(60), &mut watch);
        assert_eq!(patience.slice().unwrap(), SLICE);
        assert!(
            patience.until(Instant::now() + Duration::from_millis(20)).slice().unwrap() <= Duration::from_millis(20)
        );
        assert_eq!(patience.until(Instant::now()).slice(), Err(ConnectError::Interrupted));
    }

    #[test]
    fn a_deadline_of_silence_moves_with_each_sign_of_the_peer() {
        let mut watch = NeverInterrupted;
        let mut silence = Deadline::of_silence(Duration::from_secs(60), &mut watch);
        let first = silence.end;
        silence.heard();
        assert!(silence.end > first);
        let mut watch = NeverInterrupted;
        let mut fixed = Deadline::new(first, &mut watch);
        fixed.heard();
        assert_eq!(fixed.end, first);
    }

    #[test]
    fn a_passed_deadline_names_the_stage() {
        let mut watch = Counting(0);
        let mut patience = Deadline::new(Instant::now(), &mut watch);
        patience.enter(Stage::Auth);
        let later = Instant::now() + Duration::from_secs(1);
        let ConnectError::Fault(fault) = patience.until(later).slice().unwrap_err() else { panic!("interrupted") };
        assert_eq!(fault.code, code::TIMEOUT);
        assert_eq!(fault.message, "timed out while waiting for the reply to AUTH");
    }
}
