//! A consumer that an event loop drives, with its keeper: no call blocks.

use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use super::batch::ConsumerBatch;
use super::keeper_session::KeeperSession;
use super::report::ReadReport;
use super::shared::Shared;
use super::{Consumer, ConsumerHandle};
use crate::error::{Error, Result};
use crate::keeper::Keeping;
use crate::looped::{LoopWait, Looped};
use crate::net::{NeverInterrupted, Watch};

/// The numbers of the keeper's connections start here.
const KEEPER: u64 = 1 << 61;

/// What a call returned.
#[derive(Debug)]
enum Reply {
    Open,
    Batch(Option<ConsumerBatch>),
    Report(ReadReport),
}

/// A [`Consumer`] for a caller with an event loop, which waits for what [`wait`](Self::wait) returns and calls
/// [`advance`](Self::advance) again, also while no call is at work: its keeper is a task of the loop.
#[derive(Debug)]
pub struct LoopConsumer {
    looped: Looped<Consumer, Result<Reply>>,
    call: Option<Call>,
    /// Whether it has just returned.
    is_just_over: bool,
    /// What the last open returned, until it is taken.
    opened: Result<()>,
    /// The same of a poll: also after its caller has given up.
    polled: Option<Result<Option<ConsumerBatch>>>,
    reported: Option<Result<ReadReport>>,
    is_open: bool,
    keeper: Option<Looped<(), ()>>,
    shared: Arc<Shared>,
    /// By how much the keeper may be late, and by how much it was.
    allowed: Duration,
    late: Option<Duration>,
}

/// The call that is at work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Open,
    Poll,
    /// Flush or close.
    Report,
}

impl LoopConsumer {
    /// Opens no connection. `watch` is notified as in other calls; it is not asked whether to continue, because nothing blocks.
    pub fn new(consumer: Consumer, watch: Box<dyn Watch>) -> Self {
        let shared = Arc::clone(&consumer.shared);
        // A renewal is due after a third of this time, and a lease may be lost after nine tenths.
        let allowed = consumer.options.min_idle / 2;
        Self {
            looped: Looped::new(consumer, watch),
            call: None,
            is_just_over: false,
            opened: Ok(()),
            polled: None,
            reported: None,
            is_open: false,
            keeper: None,
            shared,
            allowed,
            late: None,
        }
    }

    /// The consumer. `None`: a call is at work.
    pub fn consumer(&mut self) -> Option<&mut Consumer> {
        self.looped.here()
    }

    /// The handle through which any thread settles entries. `None`: a call is at work, or the consumer is not open.
    pub fn handle(&mut self) -> Option<ConsumerHandle> {
        self.looped.here().filter(|_| self.is_open).map(|consumer| consumer.handle())
    }

    /// Whether a call is at work.
    pub fn is_at_work(&self) -> bool {
        self.call.is_some()
    }

    /// Begins [`Consumer::open`], unless the consumer is open: the caller of that call may have given up.
    pub fn begin_open(&mut self) {
        if self.is_open {
            return;
        }
        self.call = Some(Call::Open);
        self.looped.begin(|mut consumer, mut watch| async move {
            let done = consumer.opened(&mut watch).await.map(|()| Reply::Open);
            (consumer, watch, done)
        });
    }

    /// Begins [`Consumer::next_batch`], unless the result of the last one was not [taken](Self::take_batch).
    pub fn begin_poll(&mut self, timeout: Option<Duration>) {
        if self.polled.is_some() {
            return;
        }
        self.call = Some(Call::Poll);
        self.looped.begin(move |mut consumer, mut watch| async move {
            let done = consumer.polled(timeout, &mut watch).await.map(Reply::Batch);
            (consumer, watch, done)
        });
    }

    /// Begins [`Consumer::flush`].
    pub fn begin_flush(&mut self, timeout: Option<Duration>) {
        self.call = Some(Call::Report);
        self.looped.begin(move |mut consumer, mut watch| async move {
            let done = consumer.flushed(timeout, &mut watch).await.map(Reply::Report);
            (consumer, watch, done)
        });
    }

    /// Begins [`Consumer::close`].
    pub fn begin_close(&mut self, releases: bool, timeout: Duration) {
        self.call = Some(Call::Report);
        self.looped.begin(move |mut consumer, mut watch| async move {
            let done = consumer.closed(releases, timeout, &mut watch).await.map(Reply::Report);
            (consumer, watch, done)
        });
    }

    /// Does what can be done without waiting, for the call that is at work and for the keeper.
    pub fn advance(&mut self) {
        self.is_just_over = false;
        self.keep();
        if let Some(call) = self.call
            && let Poll::Ready(reply) = self.looped.poll()
        {
            self.over(call, reply.and_then(|reply| reply));
            self.is_just_over = true;
            // One that is new begins, one of a closed consumer ends.
            self.keep();
        }
    }

    /// What an open returned.
    pub fn take_opened(&mut self) -> Result<()> {
        std::mem::replace(&mut self.opened, Ok(()))
    }

    /// What a poll returned. `None`: none is over.
    pub fn take_batch(&mut self) -> Option<Result<Option<ConsumerBatch>>> {
        self.polled.take()
    }

    /// What a flush or a close returned. `None`: none is over.
    pub fn take_report(&mut self) -> Option<Result<ReadReport>> {
        self.reported.take()
    }

    /// By how much the keeper was late, if leases may have been lost. Returned once.
    pub fn take_late(&mut self) -> Option<Duration> {
        self.late.take()
    }

    /// The sockets to wait for, and when to call [`advance`](Self::advance) again even if none of them is ready. After
    /// a call they are those that are still open: one that follows soon waits for the same.
    pub fn wait(&mut self) -> LoopWait {
        let mut wait = match (self.call, self.looped.here()) {
            (Some(_), _) => self.looped.wait(),
            (None, Some(consumer)) if self.is_just_over => {
                LoopWait { sockets: consumer.drive.open_sockets(), deadline: None }
            }
            _ => LoopWait::default(),
        };
        if let Some(keeper) = &self.keeper {
            let mut keepers = keeper.wait();
            keepers.sockets.iter_mut().for_each(|socket| socket.connection ^= KEEPER);
            wait.sockets.append(&mut keepers.sockets);
            wait.deadline = wait.deadline.into_iter().chain(keepers.deadline).min();
        }
        wait
    }

    /// Whether the keeper has something to do, so that [`advance`](Self::advance) must be called soon.
    pub fn is_woken(&self) -> bool {
        self.keeper.is_some() && self.shared.doze.is_woken()
    }

    /// Ends the call that is at work: the next one continues from where it was.
    pub fn interrupt(&mut self) {
        if let (Some(call), Some(reply)) = (self.call, self.looped.interrupt()) {
            self.over(call, reply);
        }
        // A batch that is returned all the same, or an error that is raised once, waits for the next poll.
        self.polled.take_if(|polled| matches!(polled, Ok(None) | Err(Error::Interrupted)));
        (self.opened, self.reported) = (Ok(()), None);
        // The keeper of a consumer that is closed ends.
        self.keep();
    }

    /// Notes what a call returned.
    fn over(&mut self, call: Call, reply: Result<Reply>) {
        self.call = None;
        match (call, reply) {
            (Call::Open, Ok(_)) => {
                self.is_open = true;
                if let Some(consumer) = self.looped.here() {
                    // It may have become one of a cluster.
                    self.shared = Arc::clone(&consumer.shared);
                    self.keeper = consumer.keeping().map(keeper);
                }
            }
            (_, Ok(Reply::Open)) => {}
            (Call::Open, Err(error)) => self.opened = Err(error),
            (_, Ok(Reply::Batch(batch))) => self.polled = Some(Ok(batch)),
            (_, Ok(Reply::Report(report))) => self.reported = Some(Ok(report)),
            (Call::Poll, Err(error)) => self.polled = Some(Err(error)),
            (Call::Report, Err(error)) => self.reported = Some(Err(error)),
        }
    }

    /// Continues the keeper, if it waits for a server, was woken, or it is time.
    fn keep(&mut self) {
        let Some(keeper) = &mut self.keeper else { return };
        if self.shared.doze.ends() {
            // Nothing continues it after this.
            keeper.interrupt();
            self.keeper = None;
            return;
        }
        let LoopWait { sockets, deadline } = keeper.wait();
        let now = Instant::now();
        let is_over = deadline.is_none_or(|deadline| deadline <= now);
        let late = deadline.map(|deadline| now.saturating_duration_since(deadline));
        self.late = self.late.max(late.filter(|late| *late > self.allowed));
        let is_due = is_over || !sockets.is_empty() || self.shared.doze.is_woken();
        if is_due && keeper.poll().is_ready() {
            self.keeper = None;
        }
    }
}

/// The keeper as a task.
fn keeper(keeping: Keeping<KeeperSession>) -> Looped<(), ()> {
    let mut keeper = Looped::new((), Box::new(NeverInterrupted));
    keeper.begin(|nothing, mut watch| async move {
        keeping.run(&mut watch).await;
        (nothing, watch, ())
    });
    keeper
}
