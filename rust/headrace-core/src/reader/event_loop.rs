//! A reader that an event loop drives: no call blocks.

use std::task::Poll;
use std::time::{Duration, Instant};

use super::Reader;
use crate::error::{Error, Result};
use crate::looped::{LoopWait, Looped};
use crate::net::Watch;

/// A [`Reader`] for a caller with an event loop, which waits for what [`wait`](Self::wait) returns and calls
/// [`advance`](Self::advance) again.
#[derive(Debug)]
pub struct LoopReader {
    looped: Looped<Reader, Result<()>>,
    /// The call that is at work.
    call: Option<Call>,
    /// What the last one returned, until it is taken.
    done: Result<()>,
    /// Whether it has just returned.
    is_just_over: bool,
}

#[derive(Debug, Clone, Copy)]
enum Call {
    Open,
    /// Until this deadline.
    Wait(Option<Instant>),
}

impl LoopReader {
    /// Opens no connection. `watch` is notified as in other calls; it is not asked whether to continue, because nothing blocks.
    pub fn new(reader: Reader, watch: Box<dyn Watch>) -> Self {
        Self { looped: Looped::new(reader, watch), call: None, done: Ok(()), is_just_over: false }
    }

    /// The reader, with which nothing may be read. A call that is at work continues with the next [`advance`](Self::advance).
    pub fn reader(&mut self) -> Result<&mut Reader> {
        self.looped.interrupt();
        self.looped.here().ok_or_else(|| Error::Internal { message: "the reader was lost".to_owned() })
    }

    /// Begins [`Reader::open`].
    pub fn begin_open(&mut self) {
        self.call = Some(Call::Open);
    }

    /// Begins [`Reader::wait`].
    pub fn begin_wait(&mut self, timeout: Option<Duration>) {
        self.call = Some(Call::Wait(timeout.and_then(|timeout| Instant::now().checked_add(timeout))));
    }

    /// Whether a call is at work.
    pub fn is_at_work(&self) -> bool {
        self.call.is_some()
    }

    /// Does what can be done of the call without waiting.
    pub fn advance(&mut self) {
        self.is_just_over = false;
        let Some(call) = self.call else { return };
        if self.looped.here().is_some() {
            self.looped.begin(move |mut reader, mut watch| async move {
                let done = match call {
                    Call::Open => reader.opened(&mut watch).await,
                    Call::Wait(deadline) => {
                        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
                        reader.waited(left, &mut watch).await
                    }
                };
                (reader, watch, done)
            });
        }
        if let Poll::Ready(done) = self.looped.poll() {
            self.call = None;
            self.is_just_over = true;
            self.done = done.and_then(|done| done);
        }
    }

    /// What the call returned that is over. Nothing is lost if it failed.
    pub fn take_done(&mut self) -> Result<()> {
        std::mem::replace(&mut self.done, Ok(()))
    }

    /// The sockets to wait for, and when to call [`advance`](Self::advance) again even if none of them is ready. After a call
    /// they are those that are still open: one that follows soon waits for the same.
    pub fn wait(&mut self) -> LoopWait {
        match (self.call, self.looped.here()) {
            (Some(_), _) => self.looped.wait(),
            (None, Some(reader)) if self.is_just_over => {
                LoopWait { sockets: reader.drive.open_sockets(), deadline: None }
            }
            _ => LoopWait::default(),
        }
    }

    /// Ends the call that is at work: the next one continues from where it was.
    pub fn interrupt(&mut self) {
        self.call = None;
        self.looped.interrupt();
    }
}
