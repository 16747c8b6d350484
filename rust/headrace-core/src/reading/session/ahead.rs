//! Requests the next page before the current one is read, so that the server prepares it in the meantime.

use super::super::buffers::{Buffers, Read};
use super::super::pages::Pages;
use super::{Ask, LookAhead, Session};
use crate::error::Fault;
use crate::resp::EntryId;
use crate::resp::stream_reply::{Nowhere, Shape};

impl Session {
    /// Allows the current page to be scanned ahead, unless the size of the next request depends on its contents. Pages of several
    /// streams are requested together, which keeps the server busy without this.
    pub(super) fn may_look_ahead(&mut self) {
        let is_settled = matches!(&*self.streams, [stream] if stream.paging.is_settled());
        self.stop_looking_ahead();
        if self.look_ahead == LookAhead::No && is_settled && !self.spare.plan().is_packed() {
            self.look_ahead = LookAhead::May;
        }
    }

    pub(super) fn stop_looking_ahead(&mut self) {
        if self.look_ahead == LookAhead::May {
            self.look_ahead = LookAhead::No;
        }
    }

    /// Requests the page after the current one, if the whole current one has arrived and another one is wanted. Returns whether
    /// the page was requested.
    pub(super) fn ask_ahead(&mut self, buffers: &mut Buffers) -> bool {
        let (Some(Ask::Page { stream: at, count }), 1) = (self.in_flight.front().copied(), self.in_flight.len()) else {
            return false;
        };
        self.begin_reply(Shape::Entries, at, count, buffers);
        let Some(rest) = buffers.look_ahead(&mut Nowhere) else { return false };
        self.stop_looking_ahead();
        let stream = &self.streams[at];
        let read = self.pages.last().map_or(0, |(_, page)| page.entries);
        let is_last = read + rest.entries < count || stream.until.unwrap_or(EntryId::MAX) <= rest.last;
        if is_last || self.left <= rest.entries || stream.is_unproven() || self.is_ready() {
            return false;
        }
        let rows = stream.rows() + rest.entries as usize - usize::from(read == 0 && stream.has_anchor);
        let count = self.page_count(at, rows % self.options.batch_rows, rest.entries) + 1;
        self.push_page(at, rest.last, count, buffers);
        self.ahead = Some(rest.last);
        true
    }

    /// Ends the current page. Returns whether the next one was requested ahead; that page is skipped unless it begins where the
    /// current one ended.
    pub(super) fn check_ahead(&mut self) -> bool {
        let Some(first) = self.ahead.take() else { return false };
        if let Some(Ask::Page { stream, count }) = self.in_flight.front().copied() {
            let stream = &self.streams[stream];
            let is_left_out = stream.standing.is_left_out();
            if stream.after() != first || stream.is_unproven() || stream.bad.is_some() || is_left_out {
                self.in_flight = [Ask::Passed { count }].into();
            }
        }
        self.may_look_ahead();
        true
    }

    /// Skips the received part of a reply whose entries are not wanted; returns whether the reply is complete.
    pub(super) fn pass_reply(&mut self, shape: Shape, count: u64, buffers: &mut Buffers) -> Result<bool, Fault> {
        self.begin_reply(shape, 0, count, buffers);
        // The next request shows whether an error persists.
        Ok(matches!(buffers.read(&mut Nowhere)?, Read::Whole | Read::Refused(_)))
    }
}
