//! Writes the next requests of a session.

use std::sync::Arc;
use std::time::Duration;

use super::super::request;
use super::super::rules;
use super::super::stream::{Pending, Stream};
use super::super::work::{Action, Work};
use super::{Alone, Ask, Linger, PAGE, Session};
use crate::reading::{Buffers, Exchange, Standing, TRIES_EVERY};

/// The maximum number of pieces of work sent before a read.
const MAX_WORK: usize = 16;

impl Session {
    /// Sends the caller's decisions, and requests no entries.
    pub(in crate::consumer) fn request_work(&mut self, buffers: &mut Buffers) {
        self.look_ahead(false);
        if self.in_flight.is_empty() {
            self.send_work(buffers);
            if self.looks_back() {
                self.look_at_pending(buffers);
            }
        }
    }

    /// Writes the next commands, unless replies are due or batches are ready. `waits`: how long the server may wait for new
    /// entries; `None`: the caller has not asked for the next batch yet, so only new entries that are available are read ahead.
    pub(in crate::consumer) fn request(&mut self, waits: Option<Duration>, buffers: &mut Buffers) {
        self.look_ahead(waits.is_some());
        if self.awaits_reply() || self.is_ready() || self.linger == Linger::Waits {
            return;
        }
        let now = self.now;
        for stream in &mut self.streams {
            if stream.rechecks_at.take_if(|at| *at <= now).is_some() && !stream.is_recovering() {
                stream.recover_all();
            }
        }
        // Entries that were read are renewed only as part of a batch.
        for at in 0..self.streams.len() {
            if self.is_older_than(at, self.options.min_idle / 4) {
                self.push_batch(at);
            }
        }
        if self.is_ready() {
            return;
        }
        self.send_work(buffers);
        let is_recovering = self.streams.iter().any(Stream::is_recovering);
        if is_recovering {
            // New entries that were read before form a batch of their own.
            for at in 0..self.streams.len() {
                self.push_batch(at);
            }
            if self.is_ready() {
                return;
            }
        }
        let Some(waits) = waits else {
            if self.may_read_ahead() {
                self.ask_new(None, 0, buffers);
            }
            return;
        };
        if is_recovering {
            self.ask_pending(buffers);
            return;
        }
        if self.linger == Linger::No {
            self.ask_claims(buffers);
        }
        let has_rows = self.streams.iter().any(|stream| stream.open.is_some());
        let is_claiming = self.in_flight.iter().any(|ask| matches!(ask, Ask::Claim { .. }));
        let until_next = self.next_look().map_or(Duration::MAX, |at| at.saturating_sub(now));
        // Entries count as delivered when they were requested.
        let longest = if self.options.acks { self.options.min_idle / 4 } else { Duration::MAX };
        let block = waits.min(self.options.block).min(longest).min(until_next.max(Duration::from_millis(1)));
        let is_over = has_rows || is_claiming || self.linger != Linger::No || waits.is_zero();
        self.ask_new(if is_over { None } else { Some(block) }, 0, buffers);
    }

    /// Whether new entries come next and are available, and the caller is fast enough.
    pub(in crate::consumer) fn may_read_ahead(&self) -> bool {
        self.may_ask_ahead() && self.streams.iter().any(Stream::may_have_new)
    }

    /// Whether new entries come next, and the caller is fast enough.
    pub(super) fn may_ask_ahead(&self) -> bool {
        let is_recovering = self.streams.iter().any(Stream::is_recovering);
        let is_due = self.next_look().is_some_and(|at| at <= self.now);
        !is_recovering && !is_due && !self.is_slow && !self.closes
    }

    /// When to look for pending entries next: those of other consumers, and those that a request of a lost connection may have
    /// delivered late.
    fn next_look(&self) -> Option<Duration> {
        let of_stream = |stream: &Stream| {
            let claims_at = self.options.claim_interval.map(|_| stream.claims_at);
            [claims_at, stream.rechecks_at].into_iter().flatten().min().filter(|_| !stream.standing.is_left_out())
        };
        self.streams.iter().filter_map(of_stream).min().filter(|_| self.options.acks)
    }

    pub(super) fn send_work(&mut self, buffers: &mut Buffers) {
        self.ledger().look_again(self.now);
        for _ in 0..MAX_WORK {
            let Some(work) = self.ledger().take() else { return };
            self.send(work, buffers);
        }
    }

    pub(super) fn send(&mut self, work: Work, buffers: &mut Buffers) {
        let key = self.streams.get(work.stream).map(|stream| Arc::clone(&stream.key)).unwrap_or_default();
        work.write(&mut buffers.out, &key, &self.options.names, &mut self.known);
        self.in_flight.push_back(Ask::Work(work));
    }

    /// Reads the next part of this consumer's pending entries, or looks for more of them.
    pub(super) fn ask_pending(&mut self, buffers: &mut Buffers) {
        let total = self.streams.len();
        let mut is_put_off = false;
        for at in (self.turn..self.turn + total).map(|at| at % total) {
            if self.streams[at].standing.is_left_out() {
                continue;
            }
            let is_isolated = self.streams[at].planned.front().is_some_and(|part| self.is_isolated(part));
            if is_isolated && self.alone == Alone::MayNot {
                is_put_off = true;
                continue;
            }
            let Some(part) = self.streams[at].planned.pop_front() else { continue };
            self.turn = (at + 1) % total;
            let Some(after) = part.first().map(|first| first.id.previous().unwrap_or_default()) else { return };
            if let [alone] = &part[..]
                && is_isolated
            {
                let action = Action::Isolate { deliveries: rules::isolated(alone.deliveries) };
                let work = Work { stream: at, action, ids: vec![alone.id], is_repeated: false, since: self.now };
                self.ledger().begin();
                self.send(work, buffers);
                self.alone = Alone::Asked;
            }
            request::read_pending(
                &mut buffers.out,
                &self.options.names,
                &self.streams[at].key,
                after,
                part.len() as u64,
            );
            self.in_flight.push_back(Ask::Read { stream: at, part });
            self.asked_at = self.now;
            return;
        }
        if !is_put_off {
            self.look_at_pending(buffers);
        }
    }

    /// Whether this part is an entry that came back so often that it must be alone.
    pub(super) fn is_isolated(&self, part: &[Pending]) -> bool {
        matches!(part, [alone] if alone.deliveries > 0 && rules::company(self.options.batch_rows, alone.deliveries) == 1)
    }

    /// Asks for the pending entries of this consumer, one page per stream.
    fn look_at_pending(&mut self, buffers: &mut Buffers) {
        for (at, stream) in self.streams.iter().enumerate() {
            if let Some((first, last)) = stream.recovery.filter(|_| !stream.standing.is_left_out()) {
                request::pending(&mut buffers.out, &self.options.names, &stream.key, first, last, PAGE);
                self.in_flight.push_back(Ask::Pending { stream: at, last });
            }
        }
    }

    /// Takes over entries that other consumers held for too long, one page per stream.
    pub(super) fn ask_claims(&mut self, buffers: &mut Buffers) {
        if self.options.claim_interval.is_none() || !self.options.acks {
            return;
        }
        for at in 0..self.streams.len() {
            let stream = &self.streams[at];
            if stream.claims_at <= self.now && !stream.standing.is_left_out() {
                let (names, idle) = (&self.options.names, self.options.min_idle);
                request::claim(&mut buffers.out, names, &stream.key, idle, stream.claim_cursor, PAGE);
                self.in_flight.push_back(Ask::Claim { stream: at });
            }
        }
    }

    /// Asks for new entries. `unread`: the number of entries of the previous reply that are not in a batch yet.
    pub(super) fn ask_new(&mut self, block: Option<Duration>, unread: usize, buffers: &mut Buffers) {
        let which = |is_one: fn(Standing) -> bool| -> Vec<usize> {
            (0..self.streams.len()).filter(|at| is_one(self.streams[*at].standing)).collect()
        };
        let (together, apart) = (which(|standing| standing == Standing::Read), which(Standing::is_suspect));
        let asked = together.iter().chain(&apart);
        let streams = asked.clone().count() as u64;
        let Some(fewest) = asked.map(|at| self.streams[*at].paging.count()).min() else { return };
        let most = self.streams.iter().map(Stream::rows).max().unwrap_or(0);
        let room = self.options.batch_rows.saturating_sub((most + unread) % self.options.batch_rows) as u64;
        let count = (fewest / streams).min(room).max(1);
        let mut block = block.filter(|_| apart.is_empty());
        if self.streams.iter().any(|stream| stream.standing == Standing::Refused) {
            block = block.map(|block| block.min(TRIES_EVERY));
        }
        if !together.is_empty() {
            self.ask_new_of(&together, count, block, buffers);
        }
        for at in apart {
            self.ask_new_of(&[at], count, None, buffers);
        }
        self.asked_at = self.now;
        self.ledger().reader_waits = block.is_some();
    }

    fn ask_new_of(&mut self, streams: &[usize], count: u64, block: Option<Duration>, buffers: &mut Buffers) {
        let keys: Vec<&[u8]> = streams.iter().map(|at| &*self.streams[*at].key).collect();
        request::read_new(&mut buffers.out, &self.options.names, &keys, count, block, self.options.acks);
        let stream = if let [only] = streams { Some(*only) } else { None };
        self.in_flight.push_back(Ask::New { stream, count, block });
    }
}
