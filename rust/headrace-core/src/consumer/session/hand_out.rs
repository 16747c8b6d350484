//! Turns the entries of a session into batches.

use std::sync::Arc;
use std::time::Duration;

use super::super::batch::ConsumerBatch;
use super::super::stream::{Bad, Open, Pending, Stream};
use super::{Linger, Ready, Session};
use crate::entries::escaped;
use crate::error::Error;
use crate::reading::Standing;
use crate::resp::EntryId;

impl Session {
    /// Makes batches of the entries that were read, if they are full or no more entries are available.
    pub(super) fn hand_out(&mut self) {
        let lingers = !self.options.linger.is_zero() && self.linger != Linger::Over;
        let is_recovering = self.streams.iter().any(Stream::is_recovering);
        let mut waits = false;
        for at in 0..self.streams.len() {
            let stream = &self.streams[at];
            if stream.open.is_none() && stream.bad.is_empty() {
                continue;
            }
            let is_full = stream.rows() >= self.options.batch_rows || stream.bytes() >= self.options.batch_bytes;
            // Entries that came back are already grouped as their deliveries allow.
            let came_back = stream.open.as_ref().is_some_and(|open| !open.deliveries.is_empty());
            if is_full || came_back || is_recovering || !stream.bad.is_empty() || (!stream.is_behind && !lingers) {
                self.push_batch(at);
            } else if !stream.is_behind {
                waits = true;
            }
        }
        while self.streams.iter().map(Stream::bytes).sum::<usize>() >= self.options.batch_bytes {
            let Some(largest) = (0..self.streams.len()).max_by_key(|at| self.streams[*at].bytes()) else { break };
            self.push_batch(largest);
        }
        let is_behind = self.streams.iter().any(Stream::may_have_new);
        self.linger = if waits && !is_behind { Linger::Waits } else { Linger::No };
    }

    /// Whether the open batch of a stream was delivered longer ago than `age`.
    pub(super) fn is_older_than(&self, at: usize, age: Duration) -> bool {
        let since = self.streams[at].open.as_ref().map(|open| open.since);
        self.options.acks && since.is_some_and(|since| self.now.saturating_sub(since) > age)
    }

    /// Finishes the open batch of a stream, and then handles the entries that do not fit. If they were delivered too long ago,
    /// they may belong to another consumer: they are then looked up among the pending entries.
    pub(super) fn push_batch(&mut self, at: usize) {
        let is_old = !self.closes && self.is_older_than(at, self.options.min_idle / 2);
        let stream = &mut self.streams[at];
        let key = Arc::clone(&stream.key);
        let bad = std::mem::take(&mut stream.bad);
        if stream.standing == Standing::Dropped {
            stream.open = None;
            return;
        }
        if is_old {
            let read = stream.open.take().map(|open| open.ids.into_iter().zip(open.deliveries)).into_iter().flatten();
            let bad = bad.into_iter().map(|Bad { entry: Pending { id, deliveries }, .. }| (id, deliveries));
            let mut entries = read.chain(bad);
            let alone = entries.next().filter(|_| entries.next().is_none());
            self.give_up(at, alone);
            return;
        }
        if let Some(open) = stream.open.take() {
            self.push_open(at, open);
        }
        for Bad { entry: Pending { id, deliveries }, value, since } in bad {
            let message = format!("stream {}, entry {id}: {value}", escaped(&key));
            if self.options.buries_bad {
                self.ledger().bury(at, id, message, 1, self.now);
                continue;
            }
            let acks = self.options.acks;
            let held = if acks { self.ledger().hold(at, vec![id], vec![deliveries], since) } else { 0 };
            let (stream, entry_id, position) = (key.to_vec(), id.to_string(), String::new());
            let result = Err(Error::Field { stream, entry_id, lost: 0, exact: true, position, message });
            self.ready.push_back(Ready { stream: at, held, result });
        }
    }

    /// Schedules a look at all pending entries of a stream, because some were read too long ago to be returned. `only`: the only
    /// one of these, with its counter of deliveries: if it was read alone, that does not count as a failure.
    pub(super) fn give_up(&mut self, at: usize, only: Option<(EntryId, u64)>) {
        let before = only.map(|(id, deliveries)| Pending { id, deliveries: deliveries.saturating_sub(1) });
        let alone = before.filter(|before| self.is_isolated(&[*before]));
        let stream = &mut self.streams[at];
        stream.recover_all();
        if alone.is_some() {
            stream.interrupted = alone;
        }
    }

    /// Makes batches of the entries of an open one. In each the IDs ascend: where they do not, the stream was replaced between
    /// two replies.
    fn push_open(&mut self, at: usize, mut open: Open) {
        if open.ids.is_empty() {
            self.spare.keep(open.columns, 0);
            return;
        }
        let bytes = open.columns.bytes();
        let finished = open.columns.finish();
        let (mut misspelt, fields_at) = (open.columns.take_misspelt(), open.columns.fields_at());
        let Open { columns, ids, deliveries, is_reclaimed, since } = open;
        self.spare.keep(columns, bytes);
        let rows = match finished {
            Ok(rows) => rows,
            Err(error) => return self.ready.push_back(Ready { stream: at, held: 0, result: Err(error) }),
        };
        let key = Arc::clone(&self.streams[at].key);
        let mut first = 0;
        for ids in ids.chunk_by(|id, next| id < next) {
            let these = first..first + ids.len();
            first = these.end;
            let deliveries = deliveries.get(these.clone()).unwrap_or_default();
            let owner = self.ledger().number;
            let held =
                if self.options.acks { self.ledger().hold(at, ids.to_vec(), deliveries.to_vec(), since) } else { 0 };
            let (rows, extra) = (rows.slice(these.start, these.len()), &self.options.extra);
            let number = (owner, held);
            let mut result =
                ConsumerBatch::new(rows, number, Arc::clone(&key), ids.to_vec(), deliveries, is_reclaimed, extra);
            if let Ok(batch) = &mut result {
                batch.misspelt = misspelt.take();
                batch.fields_at = fields_at.clone();
            }
            self.ready.push_back(Ready { stream: at, held, result });
        }
    }
}
