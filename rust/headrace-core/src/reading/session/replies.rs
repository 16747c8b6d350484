//! Reads the replies to a session, and determines the loss before their entries.

use std::sync::Arc;

use super::super::buffers::{Buffers, Read};
use super::super::errors::{data_loss, protocol};
use super::super::lag::Lag;
use super::super::sink::{Page, Sink};
use super::Session;
use crate::error::Fault;
use crate::resp::EntryId;
use crate::resp::stream_reply::{Limits, Shape, StreamReply};
use crate::stream_facts::{Loss, StreamInfo};

impl Session {
    /// Starts a reply with entries whose first bytes have arrived, unless it was started before.
    pub(super) fn begin_reply(&mut self, shape: Shape, stream: usize, count: u64, buffers: &mut Buffers) {
        let streams = if shape == Shape::Entries { 1 } else { self.streams.len() as u64 };
        let limits = Limits { reply_entries: count.saturating_mul(streams), streams, ..Limits::default() };
        if buffers.begin_reply(|| StreamReply::new(shape, limits)) {
            self.pages.clear();
            if shape == Shape::Entries {
                self.pages.push((stream, Page::default()));
            }
        }
    }

    /// Reads the received part of a reply with entries; returns whether the reply is complete.
    pub(super) fn read_entries(
        &mut self,
        shape: Shape,
        stream: usize,
        count: u64,
        buffers: &mut Buffers,
    ) -> Result<bool, Fault> {
        self.begin_reply(shape, stream, count, buffers);
        let anchor = match (shape, self.streams.get(stream)) {
            (Shape::Entries, Some(stream)) if stream.has_anchor => Some(stream.after()),
            _ => None,
        };
        let mut violation = None;
        let mut sink = Sink {
            streams: &mut self.streams,
            spare: &mut self.spare,
            left: &mut self.left,
            anchor,
            pages: &mut self.pages,
            violation: &mut violation,
            is_left_out: false,
            before: EntryId::default(),
            size: 0,
        };
        let read = buffers.read(&mut sink);
        if let Some(violation) = violation {
            return Err(protocol(violation));
        }
        match read? {
            Read::Part => return Ok(false),
            Read::Full => {
                self.hand_out_full();
                if self.spare.plan().is_packed() {
                    // The next entries may unpack to many times their size: the batches before them are taken first.
                    buffers.suspend();
                    return Ok(false);
                }
                return self.read_entries(shape, stream, count, buffers);
            }
            Read::Whole => {
                self.is_refused &= shape != Shape::Streams;
                self.end_pages(shape, count, buffers.was_slow());
            }
            Read::Refused(fault) if shape == Shape::Entries => self.refuse(stream, fault.of_command("XRANGE"))?,
            Read::Refused(fault) => self.refuse_all(fault.of_command("XREAD"))?,
        }
        Ok(true)
    }

    /// Ends the pages of a reply of at most `count` entries for each stream. `is_slow`: whether the server was slower than the
    /// caller.
    fn end_pages(&mut self, shape: Shape, count: u64, is_slow: bool) {
        for (at, page) in self.pages.drain(..) {
            let Some(stream) = self.streams.get_mut(at).filter(|stream| !stream.standing.is_left_out()) else {
                continue;
            };
            let is_full = page.entries >= count;
            stream.is_doubtful |= page.entries == 0 && stream.has_anchor && shape == Shape::Entries;
            // The oldest entry is gone: the next page is requested together with a description.
            let has_none =
                page.entries == 0 && shape == Shape::Entries && stream.oldest.take().is_some() && !stream.has_anchor;
            stream.is_behind = is_full
                || has_none
                || page.is_cut
                || stream.bad.is_some()
                || (shape == Shape::Streams && stream.is_behind);
            stream.paging.page(page.largest, is_full, is_slow);
            self.touched.push(at);
        }
    }

    /// Reads the reply to XINFO STREAM; returns whether it is complete.
    pub(super) fn read_info(&mut self, at: usize, buffers: &mut Buffers) -> Result<bool, Fault> {
        match buffers.take_info() {
            Ok(Some(info)) => self.check(at, &info),
            Ok(None) => return Ok(false),
            Err(fault) => self.refuse(at, fault)?,
        }
        Ok(true)
    }

    /// Handles the server's description of a stream, which the server sent after all entries that were read.
    pub(super) fn check(&mut self, at: usize, info: &StreamInfo) {
        let stream = &mut self.streams[at];
        if stream.standing.is_left_out() {
            return;
        }
        stream.standing.accept();
        if !stream.lacks(info) {
            stream.lag = Lag::default();
        } else if stream.lag.suspect(stream.awaited(info)) {
            stream.is_doubtful = false;
            return;
        }
        if let Some((start, end)) = self.streams[at].asked.take() {
            self.streams[at].begin(start, end, info);
            self.begun.push(at);
            if info.is_missing {
                self.missing.push(Arc::clone(&self.streams[at].key));
            }
        }
        if let Some(reason) = self.streams[at].replaced(info) {
            self.replace(at, reason);
            return;
        }
        if self.streams[at].is_contradicted(info) {
            // The stream was replaced since the page was read.
            self.forget_unproven(at);
        }
        let mut loss = self.streams[at].since.loss(info);
        let fails = self.options.fails_on_loss && loss.is_some_and(|loss| loss.entries > 0);
        if fails {
            // Entries that were read behind the gap are requested again, so those that were removed since are lost too.
            self.forget_unproven(at);
            loss = self.streams[at].since.loss(info);
        }
        // Nothing is missing before the first entry of a stream as long as trimming has not reached it since reading began.
        let stream = &self.streams[at];
        let is_trimmed = stream.oldest_at_start.is_some() && stream.oldest_at_start != info.first_id;
        if loss.is_some() || stream.has_anchor || stream.was_at_tail || is_trimmed {
            self.doubt = self.doubt.or(stream.since.doubt(loss));
        }
        if let Some(loss) = loss {
            self.lost = Loss { entries: self.lost.entries + loss.entries, exact: self.lost.exact && loss.exact };
        }
        match loss {
            Some(loss) if fails => self.fail(at, loss, info),
            _ => self.streams[at].prove(info, loss),
        }
        let stream = &mut self.streams[at];
        stream.oldest = info.first_id.filter(|oldest| *oldest > stream.after());
    }

    /// Forgets the entries that are not proven, and makes a batch of those before them.
    pub(super) fn forget_unproven(&mut self, at: usize) {
        let stream = &mut self.streams[at];
        self.left += stream.since.ids.len() as u64;
        let place = stream.proven();
        self.due.retain(|due| *due != at);
        let is_proven = self.streams[at].since.ids.is_empty();
        let open = self.streams[at].forget_unproven();
        if is_proven && self.streams[at].bad.is_some() {
            // An entry that is proven but does not fit is reported after the batch of those before it.
            self.streams[at].open = open;
            self.hand_out_stream(at);
        } else if let Some(open) = open {
            let rows = open.columns.rows_of(open.proven);
            self.push_batch(at, open, Some(rows), place);
        }
    }

    /// Adds the error that reports a loss.
    fn fail(&mut self, at: usize, loss: Loss, info: &StreamInfo) {
        let stream = &mut self.streams[at];
        stream.since.added = stream.since.added_with(loss, info);
        stream.since.note(loss, info);
        // If the entries up to here were not counted, later counts of removed entries are compared with this one.
        stream.since.removed = info.removed();
        let (place, error) = (stream.proven(), data_loss(&stream.key, loss, info.first_id));
        self.push_error(at, Some(place), error);
    }
}
