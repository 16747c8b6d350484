//! Requests the next entries before the received ones are read, so that the server prepares them in the meantime.

use super::super::sink::Page;
use super::super::stream::Stream;
use super::{Ahead, Ask, Session};
use crate::error::Fault;
use crate::reading::{Buffers, protocol};
use crate::resp::EntryId;
use crate::resp::stream_reply::EntrySink;

impl Session {
    /// Decides whether the next reply is scanned ahead: not if the size of the next request depends on its contents, and not with
    /// several streams, because only the whole reply shows which of them have no more entries. `wants`: whether the caller wants
    /// a batch.
    pub(super) fn look_ahead(&mut self, wants: bool) {
        let is_settled = matches!(&*self.streams, [stream] if stream.paging.is_settled());
        let may = wants && is_settled && !self.spare.plan().is_packed();
        if matches!(self.ahead, Ahead::No | Ahead::May) {
            self.ahead = if may { Ahead::May } else { Ahead::No };
        }
    }

    /// Sends the caller's decisions, and requests the entries after those of the first reply, if the whole reply has arrived and
    /// more entries may follow. Returns whether the request was written.
    pub(super) fn ask_ahead(&mut self, buffers: &mut Buffers) -> Result<bool, Fault> {
        let (Some(Ask::New { count, .. }), 1) = (self.in_flight.front(), self.in_flight.len()) else {
            return Ok(false);
        };
        let count = *count;
        self.begin_reply(count, 1, buffers);
        let mut key = Key { streams: &self.streams, pages: &mut self.pages, violation: None };
        let rest = buffers.look_ahead(&mut key);
        if let Some(violation) = key.violation {
            return Err(protocol(violation));
        }
        let Some(rest) = rest else { return Ok(false) };
        self.ahead = Ahead::No;
        let read = self.pages.last().map_or(0, |page| page.entries);
        let is_last = read + rest.entries < count;
        let is_old = self.is_older_than(0, self.options.min_idle / 4);
        if is_last || is_old || self.is_ready() || !self.may_ask_ahead() {
            return Ok(false);
        }
        self.send_work(buffers);
        self.ask_new(None, rest.entries as usize, buffers);
        Ok(true)
    }
}

/// A sink for the stream key that precedes the entries.
struct Key<'a> {
    streams: &'a [Stream],
    pages: &'a mut Vec<Page>,
    violation: Option<&'static str>,
}

impl EntrySink for Key<'_> {
    fn stream(&mut self, key: &[u8]) {
        match Page::new(self.streams, key) {
            Ok(page) => self.pages.push(page),
            Err(violation) => self.violation = Some(violation),
        }
    }

    fn entry(&mut self, _: EntryId, _: Option<usize>) {}

    fn field(&mut self, _: &[u8], _: &[u8]) {}

    fn end(&mut self) {}
}
