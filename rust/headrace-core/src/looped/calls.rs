//! The calls of a consumer on an event loop: one at a time is at work, and what it returned waits until it is taken.

use std::task::Poll;

use super::{Deferring, LoopWait, Looped, Returned};
use crate::error::{Error, Result};
use crate::net::{Interest, Watch};

/// What a call returned. `B`: a batch; `R`: a report.
#[derive(Debug)]
pub(crate) enum Reply<B, R> {
    Open,
    Batch(Option<B>),
    Report(R),
}

/// The call that is at work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Open,
    Poll,
    /// Flush or close.
    Report,
}

/// A consumer `T`, its calls, and what they returned.
#[derive(Debug)]
pub(crate) struct Calls<T, B, R> {
    looped: Looped<T, Result<Reply<B, R>>>,
    call: Option<Call>,
    /// Whether it has just returned.
    is_just_over: bool,
    /// What the last open returned, until it is taken.
    opened: Result<()>,
    /// The same of a poll: also after its caller has given up.
    polled: Option<Result<Option<B>>>,
    reported: Option<Result<R>>,
    is_open: bool,
}

impl<T: Send + 'static, B, R> Calls<T, B, R> {
    /// `watch` is notified as in other calls; it is not asked whether to continue, because nothing blocks.
    pub(crate) fn new(consumer: T, watch: Box<dyn Watch>) -> Self {
        Self {
            looped: Looped::new(consumer, watch),
            call: None,
            is_just_over: false,
            opened: Ok(()),
            polled: None,
            reported: None,
            is_open: false,
        }
    }

    /// The consumer. `None`: a call is at work.
    pub(crate) fn here(&mut self) -> Option<&mut T> {
        self.looped.here()
    }

    /// Whether a call is at work.
    pub(crate) fn is_at_work(&self) -> bool {
        self.call.is_some()
    }

    /// Whether the consumer is open.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Whether a batch, or an error in its place, waits to be taken.
    pub(crate) fn has_polled(&self) -> bool {
        self.polled.is_some()
    }

    /// Forgets a batch that waits to be taken, if it is of no use any more.
    pub(crate) fn forget_polled(&mut self, is_of_no_use: impl FnOnce(&B) -> bool) {
        self.polled.take_if(|polled| polled.as_ref().is_ok_and(|batch| batch.as_ref().is_some_and(is_of_no_use)));
    }

    /// Begins a call.
    pub(crate) fn begin<W>(&mut self, call: Call, work: impl FnOnce(Box<T>, Deferring) -> W)
    where
        W: Future<Output = Returned<T, Result<Reply<B, R>>>> + Send + 'static,
    {
        self.call = Some(call);
        self.looped.begin(work);
    }

    /// Does what can be done without waiting. Returns the call that is over.
    pub(crate) fn advance(&mut self) -> Option<Call> {
        self.is_just_over = false;
        let call = self.call?;
        let Poll::Ready(reply) = self.looped.poll() else { return None };
        self.over(call, reply.and_then(|reply| reply));
        self.is_just_over = true;
        Some(call)
    }

    /// Ends the call that is at work: the next one continues from where it was. Returns that call, if it was over just then.
    pub(crate) fn interrupt(&mut self) -> Option<Call> {
        let ended = self.call.zip(self.looped.interrupt()).map(|(call, reply)| {
            self.over(call, reply);
            call
        });
        // A batch that is returned all the same, or an error that is raised once, waits for the next poll.
        self.polled.take_if(|polled| matches!(polled, Ok(None) | Err(Error::Interrupted)));
        (self.opened, self.reported) = (Ok(()), None);
        ended
    }

    /// What an open returned.
    pub(crate) fn take_opened(&mut self) -> Result<()> {
        std::mem::replace(&mut self.opened, Ok(()))
    }

    /// What a poll returned. `None`: none is over.
    pub(crate) fn take_batch(&mut self) -> Option<Result<Option<B>>> {
        self.polled.take()
    }

    /// What a flush or a close returned. `None`: none is over.
    pub(crate) fn take_report(&mut self) -> Option<Result<R>> {
        self.reported.take()
    }

    /// What to wait for. After a call it is the sockets that are still open: one that follows soon waits for the same.
    pub(crate) fn wait(&mut self, open_sockets: impl FnOnce(&mut T) -> Vec<Interest>) -> LoopWait {
        match (self.call, self.looped.here()) {
            (Some(_), _) => self.looped.wait(),
            (None, Some(consumer)) if self.is_just_over => LoopWait { sockets: open_sockets(consumer), deadline: None },
            _ => LoopWait::default(),
        }
    }

    /// Notes what a call returned.
    fn over(&mut self, call: Call, reply: Result<Reply<B, R>>) {
        self.call = None;
        match (call, reply) {
            (_, Ok(Reply::Open)) => self.is_open = true,
            (Call::Open, Ok(_)) => {}
            (Call::Open, Err(error)) => self.opened = Err(error),
            (_, Ok(Reply::Batch(batch))) => self.polled = Some(Ok(batch)),
            (_, Ok(Reply::Report(report))) => self.reported = Some(Ok(report)),
            (Call::Poll, Err(error)) => self.polled = Some(Err(error)),
            (Call::Report, Err(error)) => self.reported = Some(Err(error)),
        }
    }
}
