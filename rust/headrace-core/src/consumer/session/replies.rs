//! Reads the replies to a session.

use std::sync::Arc;
use std::time::Duration;

use redis::{Value, parse_redis_value};

use super::super::rules;
use super::super::sink::Sink;
use super::super::stream::Pending;
use super::{Ask, PAGE, Session};
use crate::error::Fault;
use crate::reading::{Buffers, Read, Standing, protocol};
use crate::resp::stream_reply::{Limits, Shape, StreamReply};
use crate::resp::value::{bytes, integer, list};
use crate::resp::{EntryId, entry_id};

impl Session {
    /// Reads the received part of the next reply; returns whether the reply is complete. A refusal is a fault, which
    /// [`refused`](Self::refused) handles.
    pub(super) fn read_reply(&mut self, buffers: &mut Buffers) -> Result<bool, Fault> {
        let misread = || protocol("a reply that does not fit the command");
        match self.in_flight.front() {
            None => return Ok(false),
            Some(Ask::New { stream, count, .. }) => {
                let (stream, count) = (*stream, *count);
                if !self.read_entries(count, None, buffers)? {
                    return Ok(false);
                }
                self.end_new(stream, count, buffers.was_slow());
            }
            Some(Ask::Read { stream, part }) => {
                let (stream, part) = (*stream, part.clone());
                let is_read = self.read_entries(part.len() as u64, Some(&part), buffers)?;
                if is_read {
                    self.streams[stream].interrupted.take_if(|before| part.iter().any(|entry| entry.id == before.id));
                }
                return Ok(is_read);
            }
            Some(Ask::Work(work)) => {
                let work = work.clone();
                let Some(reply) = read_value(buffers)? else { return Ok(false) };
                self.ledger().replied(&work, &reply).ok_or_else(misread)?;
            }
            Some(Ask::Pending { stream, last }) => {
                let (stream, last) = (*stream, *last);
                let Some(reply) = read_value(buffers)? else { return Ok(false) };
                self.plan_pending(stream, last, &reply).ok_or_else(misread)?;
            }
            Some(Ask::Claim { stream }) => {
                let stream = *stream;
                let Some(reply) = read_value(buffers)? else { return Ok(false) };
                self.take_claims(stream, &reply).ok_or_else(misread)?;
            }
        }
        Ok(true)
    }

    /// Reads the received part of a reply with entries; returns whether the reply is complete.
    fn read_entries(&mut self, count: u64, wanted: Option<&[Pending]>, buffers: &mut Buffers) -> Result<bool, Fault> {
        loop {
            let streams = if wanted.is_some() { 1 } else { self.streams.len() as u64 };
            self.begin_reply(count, streams, buffers);
            let (mut violation, mut has_strays, mut deleted) = (None, false, Vec::new());
            let mut sink = Sink {
                streams: &mut self.streams,
                spare: &mut self.spare,
                wanted,
                pages: &mut self.pages,
                deleted: &mut deleted,
                has_strays: &mut has_strays,
                violation: &mut violation,
                since: self.since,
                is_left_out: false,
                size: 0,
            };
            let read = buffers.read(&mut sink);
            for (stream, id) in deleted {
                self.ledger().lost(stream, id, self.now);
            }
            if has_strays && let Some(page) = self.pages.last() {
                self.streams[page.stream].recover_all();
            }
            if let Some(violation) = violation {
                return Err(protocol(violation));
            }
            match read? {
                Read::Whole => return Ok(true),
                Read::Part => return Ok(false),
                Read::Refused(fault) => return Err(fault),
                Read::Full => {
                    let full = self.pages.last().map(|page| page.stream);
                    if let Some(at) = full {
                        self.push_batch(at);
                    }
                }
            }
        }
    }

    /// Starts a reply of `streams` streams with at most `count` entries each, unless one is being read already.
    pub(super) fn begin_reply(&mut self, count: u64, streams: u64, buffers: &mut Buffers) {
        let limits = Limits { reply_entries: count.saturating_mul(streams), streams, ..Limits::default() };
        if buffers.begin_reply(|| StreamReply::new(Shape::Streams, limits)) {
            self.pages.clear();
            // Entries count as delivered when they were requested, however late the reply arrives.
            self.since = self.asked_at;
        }
    }

    /// Ends a reply with new entries of one stream, or of all that are not read apart. `is_slow`: whether the server was slower
    /// than the caller.
    fn end_new(&mut self, of: Option<usize>, count: u64, is_slow: bool) {
        self.ledger().reader_waits = false;
        for (at, stream) in self.streams.iter_mut().enumerate() {
            if of.map_or(stream.standing == Standing::Read, |of| of == at) {
                stream.is_behind = false;
            }
        }
        if let Some(of) = of {
            self.streams[of].standing.accept();
        }
        for page in self.pages.drain(..) {
            let Some(stream) = self.streams.get_mut(page.stream) else { continue };
            stream.is_behind = page.entries >= count;
            stream.paging.page(page.largest, stream.is_behind, is_slow);
        }
    }

    /// Handles the reply to XPENDING: plans to read the entries that this consumer does not hold.
    fn plan_pending(&mut self, at: usize, last: EntryId, reply: &Value) -> Option<()> {
        let read = |entry: &Value| {
            let [id, _, _, deliveries] = list(entry)? else { return None };
            let deliveries = u64::try_from(integer(deliveries)?).ok()?;
            Some(Pending { id: entry_id(bytes(id)?)?, deliveries })
        };
        let pending: Vec<Pending> = list(reply)?.iter().map(read).collect::<Option<_>>()?;
        let shared = Arc::clone(&self.shared);
        let mut ledger = shared.ledger(self.place);
        let stream = self.streams.get_mut(at)?;
        let is_last = (pending.len() as u64) < PAGE;
        stream.recovery =
            pending.last().filter(|_| !is_last).and_then(|entry| entry.id.next()).map(|first| (first, last));
        if self.gives_back {
            for entry in pending {
                if !ledger.has(at, entry.id) {
                    ledger.release_again(at, entry.id, self.now);
                }
            }
            return Some(());
        }
        stream.claimed.retain(|id| stream.recovery.is_some_and(|(first, _)| *id >= first));
        let mut wanted = Vec::with_capacity(pending.len());
        let mut breaks = false;
        for mut entry in pending {
            if ledger.has(at, entry.id) || ledger.has_released(at, entry.id, self.now) {
                breaks = true;
                continue;
            }
            let before = stream.interrupted.filter(|before| before.id == entry.id).map(|before| before.deliveries);
            // The interrupted read has added at most one: more is from other consumers.
            if let Some(before) = before.filter(|before| entry.deliveries <= rules::isolated(*before) + 1) {
                entry.deliveries = before;
            }
            let failures = rules::failures(entry.deliveries);
            if self.options.max_failures.is_some_and(|most| failures >= most) {
                let reason = format!("delivered alone {failures} times and not acknowledged");
                ledger.bury(at, entry.id, reason, failures, self.now);
                breaks = true;
                continue;
            }
            wanted.push((entry, std::mem::take(&mut breaks)));
        }
        stream.plan(wanted, self.options.batch_rows);
        if !stream.is_recovering() {
            (stream.is_reclaimed, stream.is_behind) = (false, true);
        }
        Some(())
    }

    /// Handles the reply to XAUTOCLAIM: claimed entries are read as pending entries of this consumer.
    fn take_claims(&mut self, at: usize, reply: &Value) -> Option<()> {
        let (cursor, claimed, deleted) = match list(reply)? {
            [cursor, claimed, deleted] => (cursor, claimed, list(deleted)?),
            // Redis 6.2 does not list deleted entries.
            [cursor, claimed] => (cursor, claimed, &[][..]),
            _ => return None,
        };
        let cursor = entry_id(bytes(cursor)?)?;
        let ids =
            |list: &[Value]| -> Option<Vec<EntryId>> { list.iter().map(|id| bytes(id).and_then(entry_id)).collect() };
        let (claimed, deleted) = (ids(list(claimed)?)?, ids(deleted)?);
        let shared = Arc::clone(&self.shared);
        let mut ledger = shared.ledger(self.place);
        let is_through = cursor == EntryId::default();
        let stream = self.streams.get_mut(at)?;
        let was_first = stream.claim_cursor == EntryId::default();
        let interval = match self.options.claim_interval {
            Some(short) if was_first && is_through => short,
            Some(_) if is_through => self.options.long_claim_interval,
            _ => Duration::ZERO,
        };
        (stream.claim_cursor, stream.claims_at) = (cursor, self.now + interval);
        for id in deleted {
            ledger.removed(at, id);
        }
        let mut foreign = Vec::new();
        for id in claimed {
            if ledger.has_released(at, id, self.now) {
                ledger.release_again(at, id, self.now);
            } else if !ledger.has(at, id) {
                foreign.push(id);
            }
        }
        if let (Some(first), Some(last)) = (foreign.iter().min(), foreign.iter().max()) {
            ledger.claimed(foreign.len() as u64);
            stream.recovery = Some((*first, *last));
            stream.is_reclaimed = true;
            stream.claimed = foreign;
        }
        Some(())
    }
}

/// Takes a whole reply without entries; `None`: it has not arrived yet. `Err`: the server's refusal, or a reply that cannot be
/// read.
fn read_value(buffers: &mut Buffers) -> Result<Option<Value>, Fault> {
    let Some(reply) = buffers.take_reply()? else { return Ok(None) };
    match reply.strip_prefix(b"-") {
        Some(line) => Err(Fault::from_reply(line.strip_suffix(b"\r\n").unwrap_or(line))),
        None => parse_redis_value(reply).map(Some).map_err(|_| protocol("something that is not a reply")),
    }
}
