//! Outcomes that wait for their cover: entries that have their IDs, but count as delivered only once WAIT or WAITAOF says that
//! enough others have them too.
//!
//! Such a command goes out behind every so many entries and behind the last one. What is answered in between waits here in
//! order, whatever it is; what a round of retries holds back waits there, and a round goes on only once all of it is
//! covered. A reply covers everything that was answered before it on its connection, or shows that it is not covered. When
//! the connection ends, nothing ever will cover what it wrote: that is failed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::drive::Goal;
use super::link::Link;
use super::link::{Break, Connection};
use super::outbox::Outbox;
use super::round::Outcome;
use super::{Ledger, Pipeline};
use crate::durability::Durability;
use crate::error::{Failure, Fault, Written, code};
use crate::reply::Reply;
use crate::transport::{ConnectError, Patience, Watch};
use crate::window::{Owner, Window};

#[derive(Debug)]
pub(super) struct Cover {
    durability: Durability,
    /// In the order of the messages; the first one is of an entry.
    held: VecDeque<(Outcome, Owner)>,
    /// How many entries had been added to the window when cover was asked for last.
    asked: u64,
    /// How many replies to WAIT are owed.
    owed: usize,
}

impl Cover {
    pub(super) fn new(durability: Durability) -> Self {
        Self { durability, held: VecDeque::new(), asked: 0, owed: 0 }
    }

    /// Whether outcomes wait.
    pub(super) fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether an outcome has to wait, for its cover or for its turn.
    pub(super) fn takes(&self, outcome: &Outcome) -> bool {
        self.is_holding() || outcome.is_written()
    }

    /// An outcome that [has to wait](Self::takes).
    pub(super) fn hold(&mut self, outcome: Outcome, owner: Owner) {
        if let Some((last, its_owner)) = self.held.back_mut()
            && *its_owner == owner
            && last.absorb(&outcome)
        {
            return;
        }
        self.held.push_back((outcome, owner));
    }

    /// How many more entries may be added before cover is asked for.
    fn left(&self, window: &Window) -> u64 {
        // Failures among the entries make runs of their own, which are bounded like them.
        let is_crowded = self.owed == 0 && self.held.len() as u64 >= self.durability.every;
        if is_crowded { 0 } else { self.durability.every.saturating_sub(window.added() - self.asked) }
    }

    /// Whether there is an entry for whose cover nobody asked.
    fn is_open(&self, window: &Window) -> bool {
        window.added() > self.asked
    }

    /// The interrupted call no longer waits for its message.
    pub(super) fn abandon_call(&mut self) {
        for (_, owner) in &mut self.held {
            if *owner == Owner::Call {
                *owner = Owner::Nobody;
            }
        }
    }

    /// In a forked child: everything here is the parent's, and so is the window.
    pub(super) fn forget(&mut self) {
        self.held.clear();
        (self.asked, self.owed) = (0, 0);
    }
}

impl Ledger {
    /// Whether outcomes wait for cover, behind all replies.
    pub(super) fn is_uncovered(&self) -> bool {
        self.cover.as_ref().is_some_and(Cover::is_holding)
    }

    /// Whether there is an entry for whose cover nobody asked.
    pub(super) fn is_open(&self) -> bool {
        self.cover.as_ref().is_some_and(|cover| cover.is_open(&self.window))
    }

    /// How many more entries may be added before cover is asked for.
    pub(super) fn until_cover(&self) -> u64 {
        self.cover.as_ref().map_or(u64::MAX, |cover| cover.left(&self.window))
    }

    /// Asks for the cover of all entries before.
    fn ask_cover(&mut self, outbox: &mut Outbox) {
        let Some(cover) = &mut self.cover else { return };
        let before = outbox.len();
        cover.durability.write(outbox.bytes());
        self.window.push(outbox.len() - before, 0, Owner::Cover);
        cover.asked = self.window.added();
        cover.owed += 1;
    }

    /// What asks for cover got this reply.
    pub(super) fn answered_cover(&mut self, reply: &Reply<'_>, whole: bool) -> Result<(), Break> {
        let Some(cover) = &mut self.cover else { return Ok(()) };
        let missing = match *reply {
            Reply::Acknowledged { local, replicas } if whole => cover.durability.shortfall(local, replicas),
            Reply::Error(line) if whole => Some(cover.durability.refused(line)),
            Reply::Acknowledged { .. } | Reply::Error(_) | Reply::Ids { .. } | Reply::Nil | Reply::Run(_) => {
                let message =
                    format!("the server sent no reply to {}; the connection was replaced", cover.durability.name());
                return Err(Fault::new(code::PROTOCOL, message).into());
            }
        };
        cover.owed -= 1;
        self.settle_cover(missing.as_ref());
        Ok(())
    }

    /// The connection is gone: what it wrote and is not covered will never be.
    pub(super) fn lose_cover(&mut self, fault: &Fault) {
        let Some(cover) = &self.cover else { return };
        let lost = cover.durability.lost(fault);
        self.settle_cover(Some(&lost));
    }

    /// No reply is owed any more.
    pub(super) fn forget_asked(&mut self) {
        if let Some(cover) = &mut self.cover {
            (cover.asked, cover.owed) = (self.window.added(), 0);
        }
    }

    /// Everything that was answered is covered, or fails.
    fn settle_cover(&mut self, missing: Option<&Fault>) {
        let failure = missing.map(|fault| Arc::new(self.failure(fault, Written::Unknown)));
        let mut any_failed = self.round.cover(failure.as_ref());
        while let Some((outcome, owner)) = self.cover.as_mut().and_then(|cover| cover.held.pop_front()) {
            match &failure {
                Some(failure) if outcome.is_written() => {
                    any_failed = true;
                    self.record(&outcome.failed_with(failure), owner);
                }
                Some(_) | None => self.record(&outcome, owner),
            }
        }
        if any_failed {
            // A server that takes over may not have them, nor how far the batch has come.
            self.block();
        }
    }
}

impl Pipeline {
    /// Asks for cover if there were so many entries that no more may be added before.
    pub(super) fn cover_if_due(&mut self) {
        if self.ledger.until_cover() == 0 && self.ledger.is_open() {
            self.ledger.ask_cover(&mut self.outbox);
        }
    }

    /// The same, and asks for the cover of what nothing will come behind: of the last entries, of those that are sent again.
    pub(super) fn cover_for(&mut self, goal: Goal) {
        let is_last = matches!(goal, Goal::Empty | Goal::Call) || self.ledger.round.is_active();
        if (is_last || self.ledger.until_cover() == 0) && self.ledger.is_open() {
            self.ledger.ask_cover(&mut self.outbox);
        }
    }

    /// Asks for the cover of what was answered, unless it was asked for already. Waits for nothing.
    pub(crate) fn cover_answered(&mut self) {
        let waits = self.ledger.is_uncovered() || self.ledger.round.is_active();
        let is_owed = self.ledger.cover.as_ref().is_some_and(|cover| cover.owed > 0);
        if waits && !is_owed && self.ledger.is_open() && matches!(self.link, Link::Open(_)) {
            self.ledger.ask_cover(&mut self.outbox);
            self.poll();
        }
    }

    /// How long the server may be silent because it waits for others, and how many of the replies that are owed are short.
    pub(super) fn patience_for_cover(&self) -> (Duration, usize) {
        match &self.ledger.cover {
            Some(cover) if cover.owed > 0 => (cover.durability.timeout, cover.owed),
            Some(_) | None => (Duration::ZERO, 0),
        }
    }

    /// Makes a new connection fit for cover, if cover is asked for: finds out whether it will be refused, before the first
    /// message.
    pub(super) fn prepare_cover(
        &self,
        connection: &mut Connection,
        deadline: Instant,
        watch: &mut dyn Watch,
    ) -> Result<(), ConnectError> {
        let Some(Cover { durability, .. }) = &self.ledger.cover else { return Ok(()) };
        connection.replies.take_acknowledgements();
        let mut probe = Vec::new();
        durability.write_probe(&mut probe);
        let mut patience = Patience::new(deadline, watch);
        let mut unsent = probe.as_slice();
        loop {
            if unsent.is_empty() {
                connection.transport.push()?;
            } else {
                let sent = connection.transport.send(unsent)?;
                unsent = unsent.get(sent..).unwrap_or_default();
            }
            let received = connection.transport.receive(connection.replies.space())?;
            connection.replies.filled(received);
            match connection.replies.next() {
                Ok(None) => {}
                Ok(Some(Reply::Acknowledged { .. })) => return Ok(()),
                Ok(Some(Reply::Error(line))) => {
                    return durability.unavailable(line).map_or(Ok(()), |fault| Err(fault.into()));
                }
                Ok(Some(Reply::Ids { .. } | Reply::Nil | Reply::Run(_))) | Err(_) => {
                    let message = format!("the server sent no reply to {}", durability.name());
                    return Err(Fault::new(code::PROTOCOL, message).into());
                }
            }
            if received == 0 {
                let writable = !unsent.is_empty() || connection.transport.wants_write();
                connection.transport.wait(writable, patience.slice()?);
            }
        }
    }
}

impl Outcome {
    /// Whether it says that the messages are in their stream.
    pub(super) fn is_written(&self) -> bool {
        match self {
            Self::Delivered { .. } | Self::Deduplicated { .. } => true,
            Self::Failed { .. } => false,
        }
    }

    /// The failure of the same messages.
    pub(super) fn failed_with(&self, failure: &Arc<Failure>) -> Self {
        let count = match *self {
            Self::Delivered { entries, rows, .. } => entries * rows,
            Self::Deduplicated { count } | Self::Failed { count, .. } => count,
        };
        Self::Failed { failure: Arc::clone(failure), count }
    }

    /// Whether `next` was joined to it.
    fn absorb(&mut self, next: &Self) -> bool {
        match (self, next) {
            (
                Self::Delivered { first, entries, rows },
                Self::Delivered { first: id, entries: more, rows: its_rows },
            ) if first.ms == id.ms && id.seq.checked_sub(first.seq) == Some(*entries) && rows == its_rows => {
                *entries += more;
                true
            }
            (Self::Deduplicated { count }, Self::Deduplicated { count: more }) => {
                *count += more;
                true
            }
            (Self::Failed { failure, count }, Self::Failed { failure: other, count: more }) if failure == other => {
                *count += more;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::error::Kind;
    use crate::reply::EntryId;

    fn delivered(ms: u64, seq: u64, entries: u64) -> Outcome {
        Outcome::Delivered { first: EntryId { ms, seq }, entries, rows: 1 }
    }

    fn failed(code: &'static str, count: u64) -> Outcome {
        let failure =
            Failure { kind: Kind::Permanent, code: code.into(), message: String::new(), written: Written::No };
        Outcome::Failed { failure: Arc::new(failure), count }
    }

    fn cover(every: u64) -> Cover {
        Cover::new(Durability { replicas: 1, aof: false, timeout: Duration::from_secs(1), every })
    }

    #[test]
    fn what_waits_is_kept_as_runs_in_its_order() {
        let mut cover = cover(10);
        assert!(!cover.takes(&failed("OOM", 1)), "nothing is before it");
        for outcome in [
            delivered(7, 0, 5),
            delivered(7, 5, 1),
            delivered(7, 7, 1),
            delivered(8, 8, 1),
            failed("OOM", 1),
            failed("OOM", 2),
            failed("EMPTY", 1),
            Outcome::Deduplicated { count: 1 },
            Outcome::Deduplicated { count: 2 },
        ] {
            assert!(cover.takes(&outcome));
            cover.hold(outcome, Owner::Report);
        }
        cover.hold(delivered(8, 9, 1), Owner::Call);
        cover.hold(delivered(8, 10, 1), Owner::Report);
        let expected = [
            (delivered(7, 0, 6), Owner::Report),
            (delivered(7, 7, 1), Owner::Report),
            (delivered(8, 8, 1), Owner::Report),
            (failed("OOM", 3), Owner::Report),
            (failed("EMPTY", 1), Owner::Report),
            (Outcome::Deduplicated { count: 3 }, Owner::Report),
            (delivered(8, 9, 1), Owner::Call),
            (delivered(8, 10, 1), Owner::Report),
        ];
        assert_eq!(Vec::from(cover.held), expected);
    }

    #[test]
    fn entries_of_several_rows_are_runs_of_their_own() {
        let of = |rows, seq, entries| Outcome::Delivered { first: EntryId { ms: 7, seq }, entries, rows };
        let mut run = of(10, 0, 1);
        assert!(run.absorb(&of(10, 1, 1)) && !run.absorb(&of(3, 2, 1)) && !run.absorb(&of(10, 1, 1)));
        assert_eq!(run, of(10, 0, 2));
        let Outcome::Failed { failure, .. } = failed("OOM", 1) else { return };
        assert_eq!(run.failed_with(&failure), failed("OOM", 20));
    }

    #[test]
    fn cover_is_due_after_so_many_entries_or_so_many_runs() {
        let (mut window, mut cover) = (Window::default(), cover(3));
        for left in [3, 2, 1, 0, 0] {
            assert_eq!(cover.left(&window), left);
            window.push(10, 1, Owner::Report);
        }
        cover.asked = window.added();
        assert!(cover.left(&window) == 3 && !cover.is_open(&window));
        window.push(10, 1, Owner::Report);
        assert!(cover.is_open(&window));
        cover.hold(delivered(7, 0, 1), Owner::Report);
        cover.hold(failed("OOM", 1), Owner::Report);
        assert_eq!(cover.left(&window), 2);
        cover.hold(failed("EMPTY", 1), Owner::Report);
        assert_eq!(cover.left(&window), 0, "failures without end wait for one entry");
        cover.owed = 1;
        assert_eq!(cover.left(&window), 2, "their end is on its way");
    }
}
