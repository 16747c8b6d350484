//! The entries that a consumer holds, the caller's decisions on them, and the server's replies. No I/O and no clock: `now` comes
//! from the caller, as the time since the boot of the machine.
//!
//! Two connections take work from a ledger: the reading connection, before each read, and the keeper's, while the other one
//! waits. One connection at a time has a piece of work.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::Value;

use super::batches::Batches;
use super::chosen::Chosen;
use super::client_name::ClientName;
use super::held::{Held, State};
use super::report::ReadReport;
use super::rules;
use super::work::{Action, MAX_IDS, Missed, Work, missed};
use crate::entries::escaped;
use crate::error::{Error, Result};
use crate::resp::EntryId;

/// The maximum number of errors kept for the caller's next calls.
const MAX_ERRORS: usize = 8;

/// The rules of a ledger.
#[derive(Debug, Clone)]
pub(super) struct LedgerOptions {
    pub(super) min_idle: Duration,
    pub(super) max_processing: Duration,
    pub(super) max_failures: Option<u64>,
    pub(super) deletes: bool,
    /// The maximum number of entries that this consumer remembers as released.
    pub(super) max_released: usize,
}

/// The number of ledgers that this process has created.
static LEDGERS: AtomicU64 = AtomicU64::new(0);

#[derive(Debug)]
pub(super) struct Ledger {
    /// The ledger's number, unique in this process.
    pub(super) number: u64,
    options: LedgerOptions,
    keys: Vec<Arc<[u8]>>,
    batches: Batches,
    next_batch: u64,
    queue: VecDeque<Work>,
    /// The number of pieces of work that a connection has taken, and whose result is unknown.
    taken: usize,
    /// The number of entries whose decision the server has not replied to.
    unconfirmed: usize,
    /// Entries that this consumer has released, each until others have had time to claim it.
    released: BTreeMap<(usize, EntryId), Duration>,
    /// Entries that were counted as lost, each until the server has its acknowledgement: until then the server shows it again.
    lost: BTreeSet<(usize, EntryId)>,
    report: ReadReport,
    /// When to look again for another consumer of the same name, which was listed when this one connected.
    looks_again: Option<(Duration, Arc<ClientName>)>,
    has_namesake: bool,
    /// The streams whose last renewal was refused: further refusals are not reported.
    unrenewed: BTreeSet<usize>,
    /// The errors that the caller's next calls raise.
    errors: VecDeque<Error>,
    /// Whether the connection that reads waits for new entries, so that no work can be sent over it.
    pub(super) reader_waits: bool,
}

impl Ledger {
    pub(super) fn new(keys: Vec<Arc<[u8]>>, options: LedgerOptions) -> Self {
        Self {
            number: LEDGERS.fetch_add(1, Ordering::Relaxed),
            options,
            keys,
            batches: Batches::default(),
            next_batch: 1,
            queue: VecDeque::new(),
            taken: 0,
            unconfirmed: 0,
            released: BTreeMap::new(),
            lost: BTreeSet::new(),
            report: ReadReport::default(),
            looks_again: None,
            has_namesake: false,
            unrenewed: BTreeSet::new(),
            errors: VecDeque::new(),
            reader_waits: false,
        }
    }

    /// Records entries that were read; returns the number of their batch. `deliveries`: the counter of deliveries of each entry,
    /// or one number for all.
    pub(super) fn hold(&mut self, stream: usize, ids: Vec<EntryId>, deliveries: Vec<u64>, now: Duration) -> u64 {
        let batch = self.next_batch;
        self.next_batch += 1;
        self.report.redelivered += deliveries.iter().filter(|deliveries| **deliveries > 1).count() as u64;
        self.batches.insert(batch, Held::new(stream, ids, deliveries, now));
        batch
    }

    /// Whether a batch that waits for the caller must not be returned: it was not renewed for so long that it may soon belong to
    /// another consumer, or a renewal has found that entries of it do.
    pub(super) fn is_old(&self, batch: u64, now: Duration) -> bool {
        self.batches.get(batch).is_some_and(|held| {
            let is_late = now.saturating_sub(held.confirmed) > self.options.min_idle / 2;
            is_late || held.has_stale()
        })
    }

    /// Forgets a batch that the caller will not get. Entries of it that a renewal found deleted are no longer pending, so they
    /// are counted as lost here. Returns the entry of a batch of one, and its counter of deliveries.
    pub(super) fn forget(&mut self, batch: u64) -> Option<(EntryId, u64)> {
        let forgotten = self.batches.remove(batch)?;
        self.report.lost += forgotten.in_state(State::Deleted).count() as u64;
        if let [id] = forgotten.ids[..] { Some((id, forgotten.deliveries(0))) } else { None }
    }

    /// The counts, for a session to add to. [`report`](Self::report) completes them.
    pub(super) fn counts(&mut self) -> &mut ReadReport {
        &mut self.report
    }

    /// Whether this consumer holds the entry, or the server has not confirmed a decision on it.
    pub(super) fn has(&self, stream: usize, id: EntryId) -> bool {
        self.batches.places(stream, id).any(|(batch, at)| self.batches.state(batch, at).is_some_and(State::is_open))
    }

    /// Whether this consumer released the entry so recently that it should be left to others.
    pub(super) fn has_released(&mut self, stream: usize, id: EntryId, now: Duration) -> bool {
        match self.released.get(&(stream, id)) {
            Some(until) if *until > now => true,
            Some(_) => {
                self.released.remove(&(stream, id));
                false
            }
            None => false,
        }
    }

    /// Acknowledges the entries in these rows of a batch.
    pub(super) fn ack(&mut self, batch: u64, rows: Chosen<'_>, now: Duration) {
        let action = if self.options.deletes { Action::AckDelete } else { Action::Ack };
        self.say(batch, rows, &action, now);
    }

    /// Acknowledges entries of a stream by their IDs. Those that this consumer does not hold are acknowledged only if they are
    /// pending for it.
    pub(super) fn ack_ids(&mut self, stream: usize, ids: &[EntryId], now: Duration) {
        let action = if self.options.deletes { Action::AckDelete } else { Action::Ack };
        let mut unknown = Vec::new();
        for id in ids {
            match self.undecided(stream, *id) {
                Some((batch, at)) => self.settle_one(batch, at, &action, now),
                None => unknown.push(*id),
            }
        }
        for id in unknown {
            self.push(stream, &action, id, now);
        }
    }

    /// Marks the entries in these rows of a batch as failed. Each is delivered again after `delay`, by default after 1 s and
    /// twice as long each time, or becomes a dead letter.
    pub(super) fn fail(&mut self, batch: u64, rows: Chosen<'_>, reason: &str, delay: Option<Duration>, now: Duration) {
        for at in self.said(batch, rows) {
            self.fail_one(batch, at, reason, delay, now);
        }
    }

    /// Marks entries of a stream as failed by their IDs; returns the IDs that this consumer does not hold.
    pub(super) fn fail_ids(
        &mut self,
        stream: usize,
        ids: &[EntryId],
        reason: &str,
        delay: Option<Duration>,
        now: Duration,
    ) -> Vec<EntryId> {
        let mut unknown = Vec::new();
        for id in ids {
            let place = self.undecided(stream, *id);
            if place.is_none_or(|(batch, at)| self.batches.state(batch, at) != Some(State::Held)) {
                unknown.push(*id);
            }
            if let Some((batch, at)) = place {
                self.fail_one(batch, at, reason, delay, now);
            }
        }
        unknown
    }

    /// Gives the entries in these rows of a batch back to the group as if they had not been delivered. Others may claim them
    /// after `delay`.
    pub(super) fn release(&mut self, batch: u64, rows: Chosen<'_>, delay: Duration, now: Duration) {
        for at in self.said(batch, rows) {
            self.release_one(batch, at, delay, now);
        }
    }

    /// Gives entries of a stream back to the group by their IDs; returns the IDs that this consumer does not hold.
    pub(super) fn release_ids(
        &mut self,
        stream: usize,
        ids: &[EntryId],
        delay: Duration,
        now: Duration,
    ) -> Vec<EntryId> {
        let mut unknown = Vec::new();
        for id in ids {
            let place = self.undecided(stream, *id);
            if place.is_none_or(|(batch, at)| self.batches.state(batch, at) != Some(State::Held)) {
                unknown.push(*id);
            }
            if let Some((batch, at)) = place {
                self.release_one(batch, at, delay, now);
            }
        }
        unknown
    }

    /// Gives back an entry that this consumer has not read, or got again after it had released it: others may claim it
    /// immediately.
    pub(super) fn release_again(&mut self, stream: usize, id: EntryId, now: Duration) {
        self.push(stream, &Action::Return { idle: self.options.min_idle }, id, now);
    }

    /// Gives back every entry of these streams that the caller has not decided on.
    pub(super) fn release_all(&mut self, of: impl Fn(usize) -> bool, now: Duration) {
        for batch in self.batches.numbers(of) {
            self.release(batch, Chosen::All, Duration::ZERO, now);
        }
    }

    /// Queues an entry as a dead letter: it failed too often, or does not fit its columns.
    pub(super) fn bury(&mut self, stream: usize, id: EntryId, reason: String, failures: u64, now: Duration) {
        self.hold_alone(stream, id, failures, now);
        self.queue_dead(stream, id, reason, failures, now);
    }

    /// Counts an entry as lost, and acknowledges it: it was deleted while it was pending, so there is nothing to return.
    pub(super) fn lost(&mut self, stream: usize, id: EntryId, now: Duration) {
        self.report.lost += u64::from(self.lost.insert((stream, id)));
        self.push(stream, &Action::AckLost, id, now);
    }

    /// Records that an entry was deleted while it was pending: the server has removed it from the pending ones. It counts as
    /// lost, unless it is in a batch: then it counts with the caller's decision, or once the batch is forgotten.
    pub(super) fn removed(&mut self, stream: usize, id: EntryId) {
        let was_counted = self.lost.remove(&(stream, id));
        let is_in_batch = self.has(stream, id);
        self.found_deleted(stream, id);
        self.report.lost += u64::from(!was_counted && !is_in_batch);
    }

    /// Marks an entry in a batch as deleted from its stream.
    fn found_deleted(&mut self, stream: usize, id: EntryId) {
        for (state, deleted) in [(State::Held, State::Deleted), (State::Settling, State::SettlingDeleted)] {
            if let Some((batch, at)) = self.batches.place(stream, id, state) {
                self.batches.set(batch, at, deleted);
            }
        }
    }

    /// Counts entries taken over from other consumers.
    pub(super) fn claimed(&mut self, entries: u64) {
        self.report.reclaimed += entries;
    }

    /// Queues a renewal of the leases of all entries that this consumer holds, unless it has held them for `max_processing`.
    pub(super) fn renew(&mut self, now: Duration) {
        // This renewal replaces one that was not sent.
        self.queue.retain(|work| work.action != Action::Renew);
        let mut due = Vec::new();
        for held in self.batches.iter_mut() {
            if now.saturating_sub(held.since) < self.options.max_processing {
                let stream = held.stream;
                due.extend(held.renews(now).into_iter().map(|id| (stream, id)));
            }
        }
        due.sort_unstable();
        for (stream, id) in due {
            self.push(stream, &Action::Renew, id, now);
        }
    }

    /// Schedules another look for a consumer of the same name.
    pub(super) fn look_again_at(&mut self, at: Duration, name: Arc<ClientName>) {
        self.looks_again = Some((at, name));
    }

    /// Queues the look if it is due.
    pub(super) fn look_again(&mut self, now: Duration) {
        if let Some((_, name)) = self.looks_again.take_if(|(at, _)| *at <= now) {
            self.look(now, name);
        }
    }

    /// Queues a look for a consumer of the same name.
    pub(super) fn look(&mut self, now: Duration, name: Arc<ClientName>) {
        self.has_namesake = false;
        let action = Action::Look(name);
        self.queue.push_back(Work { stream: 0, action, ids: Vec::new(), is_repeated: false, since: now });
    }

    /// Whether another consumer of the same name was listed at the last look.
    pub(super) fn has_namesake(&self) -> bool {
        self.has_namesake
    }

    /// Fails if entries of a batch may belong to another consumer.
    pub(super) fn check(&self, batch: u64, now: Duration) -> Result<()> {
        let Some(held) = self.batches.get(batch) else { return Ok(()) };
        let mut ids: Vec<EntryId> = held.in_state(State::Stale).collect();
        // A server counts in milliseconds, from the beginning of the event loop turn in which it read the request.
        let lease = self.options.min_idle.saturating_sub(self.options.min_idle / 10);
        if now.saturating_sub(held.confirmed) > lease {
            ids.extend(held.in_state(State::Held));
            ids.sort_unstable();
        }
        if ids.is_empty() {
            return Ok(());
        }
        let stream = self.keys.get(held.stream).cloned().unwrap_or_default();
        let (count, first) = (ids.len(), ids.first().copied().unwrap_or_default());
        let message = format!(
            "stream {}: {count} {} of this batch may belong to another consumer, beginning with {first}: roll their rows back",
            escaped(&stream),
            if count == 1 { "entry" } else { "entries" },
        );
        Err(Error::LeaseLost {
            stream: stream.to_vec(),
            entry_ids: ids.iter().map(EntryId::to_string).collect(),
            message,
        })
    }

    /// The next piece of work. The connection that takes it must report the result.
    pub(super) fn take(&mut self) -> Option<Work> {
        let work = self.queue.pop_front()?;
        self.taken += 1;
        Some(work)
    }

    /// Counts a piece of work that a connection creates itself.
    pub(super) fn begin(&mut self) {
        self.taken += 1;
    }

    /// How long the oldest piece of work has waited, by `now`.
    pub(super) fn waiting(&self, now: Duration) -> Option<Duration> {
        self.queue.front().map(|work| now.saturating_sub(work.since))
    }

    /// Whether no work is queued or taken: the server has every decision of the caller.
    pub(super) fn is_settled(&self) -> bool {
        self.queue.is_empty() && self.taken == 0
    }

    /// The number of entries that were acknowledged, failed or released, and that the server has not replied to.
    pub(super) fn unconfirmed(&self) -> usize {
        self.unconfirmed
    }

    /// Records the reply to the work. `None`: the reply does not fit the command.
    pub(super) fn replied(&mut self, work: &Work, reply: &Value) -> Option<()> {
        if let Action::Look(name) = &work.action {
            self.has_namesake = name.has_namesake(reply);
            self.done(work, &[]);
        } else {
            self.done(work, &missed(reply)?);
        }
        Some(())
    }

    /// Records that the server did the work, except for the entries in `missed`.
    fn done(&mut self, work: &Work, missed: &[(EntryId, Missed)]) {
        self.taken = self.taken.saturating_sub(1);
        self.replied_to(work);
        if work.action == Action::Renew {
            self.report.renewals += (work.ids.len() - missed.len().min(work.ids.len())) as u64;
            self.unrenewed.remove(&work.stream);
        }
        let is_of_lost = work.action == Action::AckLost;
        for id in &work.ids {
            let missed = missed.iter().find(|(of, _)| of == id).map(|(_, missed)| *missed);
            // If another consumer has claimed the entry, this one may claim it back.
            if is_of_lost && missed != Some(Missed::Other) {
                self.lost.remove(&(work.stream, *id));
            }
            self.done_one(work, *id, missed);
        }
    }

    /// Queues the work again after its connection was lost before the reply: the reply to the repetition shows whether it took
    /// effect.
    pub(super) fn returned(&mut self, work: Work) {
        self.taken = self.taken.saturating_sub(1);
        // The next renewal covers the leases; isolation is planned with the next read.
        if !matches!(work.action, Action::Renew | Action::Isolate { .. } | Action::Return { .. }) {
            self.queue.push_front(Work { is_repeated: true, ..work });
        }
    }

    /// Queues work again that was not sent, or whose script the server did not know.
    pub(super) fn unsent(&mut self, work: Work) {
        self.taken = self.taken.saturating_sub(1);
        self.queue.push_front(work);
    }

    /// Records that the server refused the work. The entries stay pending, and the caller gets `error`: for renewals, which are
    /// repeated, once for each stream.
    pub(super) fn refused(&mut self, work: &Work, error: Error, now: Duration) {
        self.taken = self.taken.saturating_sub(1);
        self.replied_to(work);
        if matches!(work.action, Action::Look(_)) {
            return;
        }
        let is_known = work.action == Action::Renew && !self.unrenewed.insert(work.stream);
        if !is_known && self.errors.len() < MAX_ERRORS {
            self.errors.push_back(error);
        }
        if let Action::Dead { failures, .. } = work.action {
            // The dead letter is tried again once the entry has been idle for long enough.
            let action = Action::Release { idle: Duration::ZERO, deliveries: rules::MOST_DELIVERIES + failures };
            work.ids.iter().for_each(|id| self.push(work.stream, &action, *id, now));
            return;
        }
        for id in &work.ids {
            if let Some((batch, at)) = self.batches.place(work.stream, *id, State::Settling) {
                self.batches.set(batch, at, State::Held);
            } else if let Some((batch, at)) = self.batches.place(work.stream, *id, State::SettlingDeleted) {
                self.batches.set(batch, at, State::Deleted);
            }
        }
    }

    fn replied_to(&mut self, work: &Work) {
        if work.action.is_decision() {
            self.unconfirmed = self.unconfirmed.saturating_sub(work.ids.len());
        }
    }

    /// The error that the next call raises.
    pub(super) fn take_error(&mut self) -> Option<Error> {
        self.errors.pop_front()
    }

    /// The keys of the streams, by their numbers.
    pub(super) fn keys(&self) -> &[Arc<[u8]>] {
        &self.keys
    }

    /// The counts of the entries that were read, and of what became of them.
    pub(super) fn report(&self) -> ReadReport {
        ReadReport { pending: self.batches.open() as u64, ..self.report }
    }

    /// Drops the queued work. Entries whose decision was sent before, and whose reply was lost, count as unknown.
    pub(super) fn give_up(&mut self) {
        let queued = self.queue.drain(..).filter(|work| work.is_repeated).map(|work| work.ids.len() as u64);
        self.report.unknown += queued.sum::<u64>();
    }

    /// The batch in which an entry awaits the caller's decision, and its index there: where it is held, or else where it went to
    /// another consumer or was deleted.
    fn undecided(&self, stream: usize, id: EntryId) -> Option<(u64, usize)> {
        [State::Held, State::Stale, State::Deleted].into_iter().find_map(|state| self.batches.place(stream, id, state))
    }

    fn done_one(&mut self, work: &Work, id: EntryId, missed: Option<Missed>) {
        let is_ack = matches!(work.action, Action::Ack | Action::AckDelete);
        let is_renewal = work.action == Action::Renew;
        let (mut place, mut missed) = (None, missed);
        if is_renewal {
            place = self.batches.place(work.stream, id, State::Held);
            if missed == Some(Missed::Deleted)
                && place.is_none()
                && let Some((batch, at)) = self.batches.place(work.stream, id, State::Settling)
            {
                self.batches.set(batch, at, State::SettlingDeleted);
                return;
            }
        } else if let Some(settling) = self.batches.place(work.stream, id, State::Settling) {
            place = Some(settling);
        } else if let Some(deleted) = self.batches.place(work.stream, id, State::SettlingDeleted) {
            place = Some(deleted);
            missed = missed.map(|_| Missed::Deleted);
        }
        // Repeated work may have taken effect the first time: an acknowledged entry is gone, a released one may be another
        // consumer's.
        let is_unknown = work.is_repeated
            && match missed {
                Some(Missed::Gone) => !is_ack,
                Some(Missed::Other) => matches!(work.action, Action::Release { .. }),
                _ => false,
            };
        let is_stale = match missed {
            None | Some(Missed::Deleted) => false,
            Some(Missed::Gone) => !work.is_repeated,
            Some(Missed::Other) => !is_unknown,
        };
        let report = &mut self.report;
        match &work.action {
            Action::Return { .. } | Action::Isolate { .. } if missed == Some(Missed::Deleted) => report.lost += 1,
            Action::Renew | Action::Isolate { .. } | Action::AckLost | Action::Return { .. } | Action::Look(_) => {}
            _ if is_unknown => report.unknown += 1,
            _ if is_stale => report.stale += 1,
            Action::Ack | Action::AckDelete => report.acked += 1,
            _ if missed == Some(Missed::Deleted) => report.lost += 1,
            Action::Release { .. } => report.released += 1,
            Action::Dead { .. } => report.dead += 1,
        }
        let Some((batch, at)) = place else {
            // The entry's batch was forgotten during the renewal.
            if is_renewal && missed == Some(Missed::Deleted) && !self.has(work.stream, id) {
                self.report.lost += 1;
            }
            return;
        };
        if !is_renewal {
            self.batches.set(batch, at, State::Settled);
            return;
        }
        if let Some(held) = self.batches.get_mut(batch) {
            held.renewed(work.since);
        }
        match missed {
            _ if is_stale => self.batches.set(batch, at, State::Stale),
            Some(Missed::Deleted) => self.batches.set(batch, at, State::Deleted),
            _ => {}
        }
    }

    fn hold_alone(&mut self, stream: usize, id: EntryId, failures: u64, now: Duration) {
        let batch = self.next_batch;
        self.next_batch += 1;
        let mut held = Held::new(stream, vec![id], vec![rules::MOST_DELIVERIES + failures], now);
        held.set(0, State::Settling);
        self.batches.insert(batch, held);
    }

    /// The indexes of these rows of a batch; none if all its entries are settled.
    fn said(&self, batch: u64, rows: Chosen<'_>) -> Vec<usize> {
        self.batches.get(batch).map_or_else(Vec::new, |held| rows.of(held.ids.len()))
    }

    fn say(&mut self, batch: u64, rows: Chosen<'_>, action: &Action, now: Duration) {
        for at in self.said(batch, rows) {
            self.settle_one(batch, at, action, now);
        }
    }

    /// Queues the action for an entry that is held. An entry that went to another consumer counts as stale immediately.
    fn settle_one(&mut self, batch: u64, at: usize, action: &Action, now: Duration) {
        let Some(held) = self.batches.get(batch) else { return };
        let (stream, Some(id)) = (held.stream, held.ids.get(at).copied()) else { return };
        match held.state(at) {
            Some(State::Held) => {
                self.batches.set(batch, at, State::Settling);
                self.push(stream, action, id, now);
            }
            Some(State::Stale) => {
                self.batches.set(batch, at, State::Settled);
                self.report.stale += 1;
            }
            Some(State::Deleted) => {
                self.batches.set(batch, at, State::Settled);
                let is_ack = matches!(action, Action::Ack | Action::AckDelete);
                *(if is_ack { &mut self.report.acked } else { &mut self.report.lost }) += 1;
            }
            _ => {}
        }
    }

    fn fail_one(&mut self, batch: u64, at: usize, reason: &str, delay: Option<Duration>, now: Duration) {
        let Some(held) = self.batches.get(batch) else { return };
        if held.state(at) != Some(State::Held) {
            let nothing = Action::Return { idle: Duration::ZERO };
            self.settle_one(batch, at, &nothing, now);
            return;
        }
        let (stream, Some(id)) = (held.stream, held.ids.get(at).copied()) else { return };
        let deliveries = rules::failed(held.deliveries(at));
        let failures = rules::failures(deliveries);
        if self.options.max_failures.is_some_and(|most| failures >= most) {
            self.batches.set(batch, at, State::Settling);
            self.queue_dead(stream, id, reason.to_owned(), failures, now);
            return;
        }
        let doublings = (failures - 1).min(20) as u32;
        let delay = delay.unwrap_or(Duration::from_secs(1).saturating_mul(1 << doublings)).min(self.options.min_idle);
        let idle = self.options.min_idle.saturating_sub(delay);
        self.settle_one(batch, at, &Action::Release { idle, deliveries }, now);
    }

    fn release_one(&mut self, batch: u64, at: usize, delay: Duration, now: Duration) {
        let Some(held) = self.batches.get(batch) else { return };
        if held.state(at) != Some(State::Held) {
            let nothing = Action::Return { idle: Duration::ZERO };
            self.settle_one(batch, at, &nothing, now);
            return;
        }
        let (stream, Some(id)) = (held.stream, held.ids.get(at).copied()) else { return };
        let deliveries = held.deliveries(at).saturating_sub(1);
        let idle = self.options.min_idle.saturating_sub(delay);
        if self.released.len() < self.options.max_released {
            self.released.insert((stream, id), now + delay + self.options.min_idle);
        }
        self.settle_one(batch, at, &Action::Release { idle, deliveries }, now);
    }

    fn queue_dead(&mut self, stream: usize, id: EntryId, reason: String, failures: u64, now: Duration) {
        let action = Action::Dead { reason, failures, deletes: self.options.deletes };
        self.unconfirmed += 1;
        self.queue.push_back(Work { stream, action, ids: vec![id], is_repeated: false, since: now });
    }

    /// Adds an entry to the last piece of work if its action is the same; otherwise starts a new one.
    fn push(&mut self, stream: usize, action: &Action, id: EntryId, now: Duration) {
        self.unconfirmed += usize::from(action.is_decision());
        if let Some(last) = self.queue.back_mut()
            && last.stream == stream
            && last.action.is_same(action)
            && !last.is_repeated
            && last.ids.len() < MAX_IDS
            && last.ids.last().is_some_and(|last| *last < id)
        {
            last.ids.push(id);
            return;
        }
        let work = Work { stream, action: action.clone(), ids: vec![id], is_repeated: false, since: now };
        self.queue.push_back(work);
    }
}
