//! A keeper as a task of an event loop.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::doze::Doze;
use super::keeping::Keeping;
use super::kept::Kept;
use crate::looped::{LoopWait, Looped};
use crate::net::NeverInterrupted;

/// The numbers of the keeper's connections start here.
const KEEPER: u64 = 1 << 61;

/// The keeper of a consumer on an event loop, which continues it also while no call is at work.
#[derive(Debug)]
pub(crate) struct LoopKeeper {
    task: Option<Looped<(), ()>>,
    doze: Arc<Doze>,
    /// By how much it may be late, and by how much it was.
    allowed: Duration,
    late: Option<Duration>,
}

impl LoopKeeper {
    /// A keeper that has yet to [begin](Self::begin). `allowed`: by how much it may be late.
    pub(crate) fn new(doze: &Arc<Doze>, allowed: Duration) -> Self {
        Self { task: None, doze: Arc::clone(doze), allowed, late: None }
    }

    /// Begins its work. `doze`: that of the work.
    pub(crate) fn begin<K: Kept + 'static>(&mut self, keeping: Keeping<K>, doze: &Arc<Doze>) {
        let mut task = Looped::new((), Box::new(NeverInterrupted));
        task.begin(|nothing, mut watch| async move {
            keeping.run(&mut watch).await;
            (nothing, watch, ())
        });
        self.doze = Arc::clone(doze);
        self.task = Some(task);
    }

    /// Continues, if it waits for a server, was woken, or it is time.
    pub(crate) fn keep(&mut self) {
        let Some(task) = &mut self.task else { return };
        if self.doze.ends() {
            // Nothing continues it after this.
            task.interrupt();
            self.task = None;
            return;
        }
        let LoopWait { sockets, deadline } = task.wait();
        let now = Instant::now();
        let is_over = deadline.is_none_or(|deadline| deadline <= now);
        let late = deadline.map(|deadline| now.saturating_duration_since(deadline));
        self.late = self.late.max(late.filter(|late| *late > self.allowed));
        let is_due = is_over || !sockets.is_empty() || self.doze.is_woken();
        if is_due && task.poll().is_ready() {
            self.task = None;
        }
    }

    /// Adds what it waits for to what a call waits for.
    pub(crate) fn add_to(&self, wait: &mut LoopWait) {
        let Some(task) = &self.task else { return };
        let mut own = task.wait();
        own.sockets.iter_mut().for_each(|socket| socket.connection ^= KEEPER);
        wait.sockets.append(&mut own.sockets);
        wait.deadline = wait.deadline.into_iter().chain(own.deadline).min();
    }

    /// Whether it has something to do, so that it must [continue](Self::keep) soon.
    pub(crate) fn is_woken(&self) -> bool {
        self.task.is_some() && self.doze.is_woken()
    }

    /// By how much it was late, if leases may have been lost. Returned once.
    pub(crate) fn take_late(&mut self) -> Option<Duration> {
        self.late.take()
    }
}
