//! How a session turns entries into batches.

use std::sync::Arc;
use std::time::Duration;

use super::super::batch::ConsumerBatch;
use super::super::stream::{Open, Pending, Stream};
use super::{Linger, Session};
use crate::entries::escaped;
use crate::error::Error;
use crate::reading::Standing;

impl Session {
    /// Makes batches of what was read, if they are full or nothing more is available.
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
    /// they may belong to another consumer by now: they are then looked up among the pending entries.
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
            stream.open = None;
            stream.recover_all();
            return;
        }
        if let Some(mut open) = stream.open.take() {
            if open.ids.is_empty() {
                self.spare.keep(open.columns, 0);
            } else {
                let bytes = open.columns.bytes();
                let finished = open.columns.finish();
                let misspelt = open.columns.take_misspelt();
                let Open { columns, ids, deliveries, is_reclaimed, since } = open;
                self.spare.keep(columns, bytes);
                let number = match (&finished, self.options.acks) {
                    (Ok(_), true) => self.ledger().hold(at, ids.clone(), deliveries.clone(), since),
                    _ => 0,
                };
                let extra = &self.options.extra;
                let number = (self.ledger().number, number);
                let mut batch = finished.and_then(|batch| {
                    ConsumerBatch::new(batch, number, Arc::clone(&key), ids, &deliveries, is_reclaimed, extra)
                });
                if let Ok(batch) = &mut batch {
                    batch.misspelt = misspelt;
                }
                self.ready.push_back((at, batch));
            }
        }
        for (Pending { id, deliveries }, value) in bad {
            let message = format!("stream {}, entry {id}: {value}", escaped(&key));
            if self.options.buries_bad {
                self.ledger().bury(at, id, message, 1, self.now);
                continue;
            }
            if self.options.acks {
                self.ledger().hold(at, vec![id], vec![deliveries], self.now);
            }
            let (stream, entry_id, position) = (key.to_vec(), id.to_string(), String::new());
            self.ready.push_back((at, Err(Error::Field { stream, entry_id, lost: 0, exact: true, position, message })));
        }
    }
}
