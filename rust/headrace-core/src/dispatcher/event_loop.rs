//! A dispatcher that an event loop drives: no call blocks.

use std::fmt;
use std::task::Poll;
use std::time::Instant;

use super::Dispatcher;
use crate::error::Result;
use crate::looped::{LoopWait, Looped};
use crate::net::{Interest, Watch};
use crate::producer::Advance;
use crate::report::DeliveryReport;

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
    looped: Looped<Dispatcher, Result<()>>,
    /// Whether the next message connects again once every message has an outcome in a report.
    lifts: bool,
}

impl LoopDispatcher {
    /// Sends nothing yet. `watch` is notified as in other calls; it is not asked whether to continue, because nothing blocks.
    pub fn new(dispatcher: Dispatcher, watch: Box<dyn Watch>) -> Self {
        Self { looped: Looped::new(dispatcher, watch), lifts: true }
    }

    /// As the calls of a [`Dispatcher`] do: passwords and files are looked up in the call that connects, which may block, and
    /// raises what a callable raised; and a connect that fails also fails the messages that follow until the next flush.
    pub(super) fn of_calls(mut self) -> Self {
        self.lifts = false;
        if let Some((_, watch)) = self.looped.parts() {
            watch.read_inline();
        }
        self
    }

    /// The dispatcher, to produce messages, which [`advance`](Self::advance) sends. `None`: a connection is being opened, and
    /// there is no room until it is open.
    pub fn dispatcher(&mut self) -> Option<&mut Dispatcher> {
        self.looped.here()
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
        self.looped.interrupt();
    }

    fn step(&mut self) -> Result<Step> {
        let Some((dispatcher, watch)) = self.looped.parts() else { return self.poll_errand() };
        match dispatcher.advance(watch)? {
            Advance::Errand(at, errand) => {
                self.looped.begin(|mut dispatcher, mut watch| async move {
                    let done = dispatcher.run(at, errand, &mut watch).await;
                    (dispatcher, watch, done)
                });
                self.poll_errand()
            }
            Advance::Done(deadline) => Ok(Step::Done(dispatcher.progress(deadline, self.lifts))),
        }
    }

    fn poll_errand(&mut self) -> Result<Step> {
        if let Poll::Ready(done) = self.looped.poll() {
            return done?.map(|()| Step::Errand);
        }
        let LoopWait { sockets, deadline } = self.looped.wait();
        Ok(Step::Done(Progress { report: None, sockets, deadline }))
    }
}

enum Step {
    /// An errand is done.
    Errand,
    Done(Progress),
}

impl fmt::Debug for LoopDispatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LoopDispatcher").field(&self.looped).finish()
    }
}
