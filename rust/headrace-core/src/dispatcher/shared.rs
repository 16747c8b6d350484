//! A dispatcher for threads: a call that waits does not keep the others from their work.

mod awaiting;
mod caller;
mod state;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;

use super::{Dispatcher, IdArgument, Message, fault_of_rest};
use crate::batch::{BatchLayout, BatchPlan};
use crate::command::EntryId;
use crate::contain::contain;
use crate::counters::Counters;
use crate::error::{Error, Failure, Fault, Result};
use crate::net::{Watch, unless};
use crate::report::DeliveryReport;

use caller::Goal;
use state::{Pause, State, WATCH_EVERY};

/// How long a child waits for a lock that a thread of its parent may have had as it was forked.
const STUCK: Duration = Duration::from_millis(200);

/// A [`Dispatcher`] that any number of threads may call at the same time.
///
/// Messages of one thread stay in order. Reports cover the messages of all threads, except those of
/// [`dispatch`](Self::dispatch), which shares round trips with other calls.
///
/// ```text
///                    a call that must wait
///                             │
///          no call drives     ▼      another call drives
///        ┌────────────── is it done? ───────────────┐
///        ▼                    ▲                     ▼
///   move all messages         │           ring, so that it looks at
///   without waiting ──────────┤           what is new, then sleep
///        │ nothing moves      │                     │
///        ▼                    │   woken: by its     │
///   wait for sockets ─────────┴── outcome, by room, ┘
///   and the alarm                 or to drive
/// ```
///
/// One of the calls that wait *drives*: it moves the messages of all calls, and waits for the sockets without the lock. As long
/// as no two calls have met, a call keeps the lock while it waits, and drives as a [`Dispatcher`] of one thread does, which needs
/// fewer steps.
pub struct SharedDispatcher {
    state: Mutex<State>,
    /// Whether two calls have met.
    have_met: AtomicBool,
    has_notes: Arc<AtomicBool>,
    /// The calls that have begun and not ended.
    calls: AtomicUsize,
    /// Those in the middle of a record batch, some of which have no lock.
    batches: AtomicUsize,
    /// The process that used it last: a fork may copy the lock while another thread has it.
    process: AtomicU32,
    counters: Arc<Counters>,
    is_exactly_once: bool,
}

impl SharedDispatcher {
    /// Sends nothing yet. `watch` is that of [`LoopDispatcher::new`](super::LoopDispatcher::new), for what is done for several
    /// calls.
    /// `has_notes`: whether a watch waits for [`released`](Watch::released), for which a call gives up the lock.
    pub fn new(mut dispatcher: Dispatcher, watch: Box<dyn Watch>, has_notes: Arc<AtomicBool>) -> Self {
        let (counters, is_exactly_once) = (dispatcher.counters(), dispatcher.exactly_once.is_some());
        Self {
            state: Mutex::new(State::new(dispatcher, watch)),
            have_met: AtomicBool::new(false),
            has_notes,
            calls: AtomicUsize::new(0),
            batches: AtomicUsize::new(0),
            process: AtomicU32::new(std::process::id()),
            counters,
            is_exactly_once,
        }
    }

    /// The dispatcher's counters, which outlive it.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Takes one message if that needs no wait at all, neither for room nor for another call: otherwise [`Error::Full`], and
    /// [`produce`](Self::produce) takes it.
    #[inline]
    pub fn try_produce(&self, payload: &[u8], id: IdArgument<'_>) -> Result<()> {
        match self.state.try_lock() {
            Ok(mut state) if !self.is_within() => match state.inner.dispatcher() {
                Some(dispatcher) => dispatcher.produce(payload, id),
                None => Err(Error::Full),
            },
            _ => Err(Error::Full),
        }
    }

    /// Like [`try_produce`](Self::try_produce), for a message of any kind.
    #[inline(never)]
    pub fn try_produce_message(&self, message: &Message<'_>, id: IdArgument<'_>) -> Result<()> {
        match self.state.try_lock() {
            Ok(mut state) if !self.is_within() => {
                state.inner.dispatcher().map_or(Err(Error::Full), |dispatcher| dispatcher.produce_message(message, id))
            }
            _ => Err(Error::Full),
        }
    }

    /// Takes one message. Waits for room.
    pub fn produce(&self, message: &Message<'_>, id: IdArgument<'_>, watch: &mut dyn Watch) -> Result<()> {
        let _inside = self.enter()?;
        self.take(
            watch,
            |dispatcher| dispatcher.take(message, id).map(|taken| taken.then_some(())),
            |dispatcher, watch| dispatcher.make_room_for(message, watch),
        )
    }

    /// As [`Dispatcher::plan`].
    pub fn plan(&self, schema: &SchemaRef, layout: &BatchLayout, watch: &mut dyn Watch) -> Result<BatchPlan> {
        let _inside = self.enter()?;
        self.take(watch, |dispatcher| dispatcher.plan(schema, layout).map(Some), |_, _| Ok(()))
    }

    /// As [`Dispatcher::produce_batch`]. Messages of other calls may come between its rows.
    pub fn produce_batch(&self, batch: &RecordBatch, plan: &mut BatchPlan, watch: &mut dyn Watch) -> Result<()> {
        let _inside = self.enter()?;
        // Refuses IDs that are too long before any row is taken. Rows whose columns panic get an outcome below.
        contain(|| plan.ids(batch)).unwrap_or(Ok(None))?;
        let _entered = Entered::new(&self.batches);
        let mut row = 0;
        let mut state = self.lock()?;
        let alone = self.alone(&mut state, watch, |state, watch| {
            state.inner.dispatcher().map(|dispatcher| dispatcher.take_batch(batch, &mut row, plan, watch)).transpose()
        });
        drop(state);
        let taken = match alone {
            Ok(None) => self.take_slices(batch, &mut row, plan, watch),
            ended => ended.map(|_| ()),
        };
        if let Some(fault) = taken.as_ref().err().and_then(fault_of_rest) {
            self.refuse_rows(batch, row, plan, &fault)?;
        }
        taken
    }

    /// As [`Dispatcher::take_batch`], beside other calls.
    fn take_slices(
        &self,
        batch: &RecordBatch,
        row: &mut usize,
        plan: &mut BatchPlan,
        watch: &mut dyn Watch,
    ) -> Result<()> {
        let (has_stream_keys, slice_rows) = (plan.has_stream_keys(), plan.slice_rows());
        while *row < batch.num_rows() {
            // Bad rows take no room in the window, and so never wait.
            check(Rested::Moved, watch)?;
            let mut has_panicked = false;
            let taken = self.take(
                watch,
                |dispatcher| {
                    let taken = dispatcher.produce_rows(batch, *row, plan);
                    has_panicked = matches!(taken, Err(Error::Internal { .. }));
                    Ok(Some(taken?).filter(|taken| *taken > 0))
                },
                |dispatcher, watch| dispatcher.make_room_in(has_stream_keys, watch),
            );
            if has_panicked {
                // The rows of the slice have an outcome.
                *row = batch.num_rows().min(*row + slice_rows);
            }
            *row += taken?;
        }
        Ok(())
    }

    /// Fails the rows of a record batch from `from` on.
    #[cold]
    fn refuse_rows(&self, batch: &RecordBatch, from: usize, plan: &mut BatchPlan, fault: &Fault) -> Result<()> {
        let mut state = self.lock()?;
        if let Some(dispatcher) = state.inner.recall() {
            dispatcher.refuse_rows(batch, from, plan, fault);
        }
        // The call that drives may wait for a socket that is closed now.
        state.ring();
        Ok(())
    }

    /// Sends one message and waits for its outcome, which is in no report. An interrupt drops it.
    pub fn dispatch(
        &self,
        message: &Message<'_>,
        watch: &mut dyn Watch,
    ) -> Result<std::result::Result<EntryId, Failure>> {
        let _inside = self.enter()?;
        if self.is_exactly_once {
            let message = "dispatch is not for exactly_once: produce the message and flush";
            return Err(Error::config("exactly_once", message));
        }
        let mut take = |state: &mut State| state.dispatch(message).transpose();
        let (mut state, awaiting) = self.wait(self.lock()?, Goal::Room { is_full: false }, None, watch, &mut take)?;
        let awaiting = awaiting.unwrap_or(Err(Error::Interrupted))?;
        state.ring();
        loop {
            if let Some(outcome) = awaiting.outcome() {
                state.hand_over();
                return Ok(outcome);
            }
            if awaiting.is_left() {
                return Err(forked());
            }
            let rested = self.rest(state, Instant::now() + WATCH_EVERY);
            // A call that did not drive needs no lock to see its outcome.
            if let (Ok(Rested::Parked), Some(outcome)) = (&rested, awaiting.outcome()) {
                return Ok(outcome);
            }
            let is_asked = rested.and_then(|rested| check(rested, watch));
            state = self.lock()?;
            if let Err(error) = is_asked {
                awaiting.leave();
                state.hand_over();
                return Err(error);
            }
        }
    }

    /// As [`Dispatcher::poll`].
    pub fn poll(&self, watch: &mut dyn Watch) -> Result<DeliveryReport> {
        let _inside = self.enter()?;
        let mut state = self.lock()?;
        let polled = state.collect(|dispatcher| dispatcher.poll(watch));
        // The call that drives may wait for a socket that is closed now, and one that was to drive may have its outcome.
        state.ring();
        state.hand_over();
        let polled = polled.unwrap_or_else(|| Ok(state.inner.report()))?;
        drop(state);
        self.told(polled, watch)
    }

    /// As [`Dispatcher::flush`], for the messages that any thread produced before this call. After the timeout, those of other
    /// threads fail too. The ordinals start again if no message is without an outcome at the end.
    pub fn flush(&self, timeout: Option<Duration>, watch: &mut dyn Watch) -> Result<DeliveryReport> {
        let _inside = self.enter()?;
        let started = Instant::now();
        let mut state = self.lock()?;
        let flushed = self.alone(&mut state, watch, |state, watch| {
            state.collect(|dispatcher| dispatcher.flush(timeout, watch)).transpose()
        })?;
        if let Some(report) = flushed {
            drop(state);
            return self.told(report, watch);
        }
        let until = timeout.and_then(|timeout| started.checked_add(timeout));
        let taken = state.inner.taken();
        let done = |state: &mut State| (state.inner.settled() >= taken).then_some(());
        let (mut state, reached) = self.wait(state, Goal::Outcomes { taken }, until, watch, done)?;
        if reached.is_some() && state.inner.taken() > state.inner.settled() {
            self.counters.flushed(started.elapsed());
            state.lift();
        } else {
            state.end_batch(started, watch)?;
        }
        let report = state.inner.report();
        drop(state);
        self.told(report, watch)
    }

    /// Lets the watch say what has to be said before a report is returned. If that ends the call, the next report has the outcomes.
    fn told(&self, report: DeliveryReport, watch: &mut dyn Watch) -> Result<DeliveryReport> {
        if watch.released() && watch.interrupted() {
            self.lock()?.inner.put_back_report(&report);
            return Err(Error::Interrupted);
        }
        Ok(report)
    }

    /// As [`Dispatcher::begin`]. Refuses to run beside another call.
    pub fn begin(&self, token: &str, version: u64) -> Result<()> {
        self.exclusive()?.idle("begin")?.begin(token, version)
    }

    /// As [`Dispatcher::skip_failed`]. Refuses to run beside another call.
    pub fn skip_failed(&self) -> Result<()> {
        self.exclusive()?.idle("skip_failed")?.skip_failed()
    }

    /// As [`Dispatcher::close`]. Refuses to run beside another call.
    pub fn close(&self) -> Result<()> {
        self.exclusive()?.inner.close();
        Ok(())
    }

    /// How many messages have no outcome in a report, and none that a call returns.
    pub fn unreported(&self) -> Result<u64> {
        match self.look() {
            Err(Error::InUse { .. }) if self.is_forked() => Ok(0),
            state => Ok(state?.unreported()),
        }
    }

    /// Whether [`close`](Self::close) was called.
    pub fn is_closed(&self) -> Result<bool> {
        match self.look() {
            Err(Error::InUse { .. }) if self.is_forked() => Ok(true),
            state => Ok(state?.inner.dispatcher().is_some_and(|dispatcher| dispatcher.is_closed())),
        }
    }

    /// Lets `take` take messages, and makes room for them first where there is none.
    fn take<T>(
        &self,
        watch: &mut dyn Watch,
        mut take: impl FnMut(&mut Dispatcher) -> Result<Option<T>>,
        mut make_room: impl FnMut(&mut Dispatcher, &mut dyn Watch) -> Result<()>,
    ) -> Result<T> {
        let mut state = self.lock()?;
        while let Some(dispatcher) = state.inner.dispatcher() {
            if let Some(taken) = take(dispatcher)? {
                return Ok(taken);
            }
            let made = self.alone(&mut state, watch, |state, watch| {
                state.inner.dispatcher().map(|dispatcher| make_room(dispatcher, watch)).transpose()
            })?;
            if made.is_none() {
                break;
            }
        }
        let is_full = state.is_full();
        let (_state, taken) = self.wait(state, Goal::Room { is_full }, None, watch, |state| {
            if state.has_room(is_full) { take(state.inner.dispatcher()?).transpose() } else { None }
        })?;
        taken.unwrap_or(Err(Error::Interrupted))
    }

    /// Runs a call that keeps the lock while it waits, until other calls come. `None`: they have come.
    fn alone<T>(
        &self,
        state: &mut State,
        watch: &mut dyn Watch,
        call: impl FnOnce(&mut State, &mut dyn Watch) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        if state.is_awaited() {
            self.have_met.store(true, Ordering::Release);
        }
        if self.have_met.load(Ordering::Acquire) {
            return Ok(None);
        }
        let mut have_met = || self.have_met.load(Ordering::Acquire);
        // A log record can wait until an attempt to connect is over.
        let mut has_notes = || self.has_notes.load(Ordering::Acquire);
        Ok(unless(&mut have_met, &mut has_notes, watch, |watch| call(state, watch))?.flatten())
    }

    /// Waits without the lock until `done` returns something, and drives if no other call does. `None`: the deadline came first.
    fn wait<'a, T>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        goal: Goal,
        deadline: Option<Instant>,
        watch: &mut dyn Watch,
        mut done: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<(MutexGuard<'a, State>, Option<T>)> {
        if let Some(done) = done(&mut state) {
            return Ok((state, Some(done)));
        }
        let caller = state.enter(goal);
        let waited = loop {
            let now = Instant::now();
            if deadline.is_some_and(|deadline| deadline <= now) {
                break Ok(None);
            }
            let until = deadline.map_or(now + WATCH_EVERY, |deadline| deadline.min(now + WATCH_EVERY));
            let is_asked = self.rest(state, until).and_then(|rested| check(rested, watch));
            state = self.lock()?;
            if let Err(error) = is_asked {
                break Err(error);
            }
            if let Some(done) = done(&mut state) {
                break Ok(Some(done));
            }
            if !state.has(caller) {
                break Err(forked());
            }
        };
        state.leave(caller);
        Ok((state, waited?))
    }

    /// Sleeps without the lock until another call that drives wakes this one. If there is none, drives: moves the messages of all
    /// calls and, if none has an outcome then, waits for the sockets.
    fn rest(&self, mut state: MutexGuard<'_, State>, until: Instant) -> Result<Rested> {
        if state.is_driven() {
            drop(state);
            thread::park_timeout(until.saturating_duration_since(Instant::now()));
            return Ok(Rested::Parked);
        }
        let pause = state.advance()?;
        let Some(Pause { sockets, deadline }) = pause else { return Ok(Rested::Moved) };
        let alarm = state.sleep();
        drop(state);
        let until = deadline.map_or(until, |deadline| deadline.min(until));
        let is_signalled = alarm.wait(&sockets, until.saturating_duration_since(Instant::now()));
        self.lock()?.wake_up();
        Ok(if is_signalled { Rested::Signalled } else { Rested::Moved })
    }

    /// Whether this thread is in a call.
    #[inline]
    fn is_within(&self) -> bool {
        self.calls.load(Ordering::Relaxed) > 0 && Inside::has(self)
    }

    /// Begins a call. Refuses to run within another one of this thread, whose handler calls the dispatcher.
    fn enter(&self) -> Result<Inside<'_>> {
        if Inside::has(self) { Err(in_use()) } else { Ok(Inside::new(self)) }
    }

    /// Locks the state. Waits for calls that are at work, not for those that wait.
    fn lock(&self) -> Result<MutexGuard<'_, State>> {
        let state = if let Some(state) = self.try_lock()? {
            state
        } else {
            self.have_met.store(true, Ordering::Release);
            self.state.lock().unwrap_or_else(|poisoned| self.after_panic(poisoned.into_inner()))
        };
        Ok(self.entered(state))
    }

    /// Locks the state for a look at it, which a handler may take: it may run in a call that waits alone, with the lock.
    fn look(&self) -> Result<MutexGuard<'_, State>> {
        if Inside::has(self) { Ok(self.entered(self.try_lock()?.ok_or_else(in_use)?)) } else { self.lock() }
    }

    /// Locks the state for a call that goes with no other.
    fn exclusive(&self) -> Result<MutexGuard<'_, State>> {
        if Inside::has(self) {
            return Err(in_use());
        }
        let state = self.lock()?;
        let is_in_use = state.is_awaited() || self.batches.load(Ordering::Acquire) > 0;
        if is_in_use { Err(in_use()) } else { Ok(state) }
    }

    /// Locks the state if no other call has the lock now. Refuses to wait for a lock that is never released.
    fn try_lock(&self) -> Result<Option<MutexGuard<'_, State>>> {
        let began = Instant::now();
        loop {
            match self.state.try_lock() {
                Ok(state) => return Ok(Some(state)),
                Err(TryLockError::Poisoned(poisoned)) => return Ok(Some(self.after_panic(poisoned.into_inner()))),
                Err(TryLockError::WouldBlock) => {}
            }
            if !self.is_forked() {
                return Ok(None);
            }
            // Another thread of the child may have it for a moment; one of the parent has it for good.
            if began.elapsed() >= STUCK {
                let message =
                    "the process was forked while a thread used the dispatcher: create a new one in the child";
                return Err(Error::InUse { message: message.to_owned() });
            }
            thread::yield_now();
        }
    }

    /// Notes that this process uses the dispatcher now.
    fn entered<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        if state.forget_after_fork() {
            self.process.store(std::process::id(), Ordering::Release);
            self.calls.store(0, Ordering::Release);
            self.batches.store(0, Ordering::Release);
        }
        state
    }

    /// A call panicked with the lock. The core contains its own panics, so its state is consistent.
    fn after_panic<'a>(&self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.state.clear_poison();
        state.wake_up();
        state
    }

    /// Whether this is a child that has not had the lock since the fork.
    fn is_forked(&self) -> bool {
        self.process.load(Ordering::Acquire) != std::process::id()
    }
}

impl fmt::Debug for SharedDispatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.look() {
            Ok(state) => f.debug_tuple("SharedDispatcher").field(&state.inner).finish(),
            Err(_) => f.write_str("SharedDispatcher(in use)"),
        }
    }
}

thread_local! {
    /// The dispatchers, by their addresses, in whose calls this thread is: handlers may call another one.
    static INSIDE: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Notes that this thread is in a call of a dispatcher.
struct Inside<'a>(#[expect(dead_code, reason = "it counts")] Entered<'a>);

impl<'a> Inside<'a> {
    fn new(dispatcher: &'a SharedDispatcher) -> Self {
        INSIDE.with_borrow_mut(|inside| inside.push(std::ptr::from_ref(dispatcher).addr()));
        Self(Entered::new(&dispatcher.calls))
    }
}

impl Inside<'_> {
    fn has(dispatcher: &SharedDispatcher) -> bool {
        INSIDE.with_borrow(|inside| inside.contains(&std::ptr::from_ref(dispatcher).addr()))
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        INSIDE.with_borrow_mut(Vec::pop);
    }
}

/// Counts a call as long as it is there.
struct Entered<'a>(&'a AtomicUsize);

impl<'a> Entered<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        // A fork in the middle may have set it to 0.
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| count.checked_sub(1));
    }
}

/// How a call rested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rested {
    /// Another call drove.
    Parked,
    /// It drove.
    Moved,
    /// It drove until a signal came.
    Signalled,
}

thread_local! {
    /// When this thread last asked a watch.
    static ASKED: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Asks the watch, unless this thread did a short time ago. Not with the lock: a handler may call the dispatcher.
fn check(rested: Rested, watch: &mut dyn Watch) -> Result<()> {
    let now = Instant::now();
    let is_recent = ASKED.get().is_some_and(|asked| now.saturating_duration_since(asked) < WATCH_EVERY);
    if rested != Rested::Signalled && is_recent {
        return Ok(());
    }
    ASKED.set(Some(now));
    watch.released();
    if watch.interrupted() { Err(Error::Interrupted) } else { Ok(()) }
}

fn forked() -> Error {
    Error::state("the process was forked during the call: its messages belong to the parent")
}

fn in_use() -> Error {
    Error::InUse { message: "the dispatcher is in use by another call".to_owned() }
}
