//! Writes the next requests of a session.

use std::time::Duration;

use super::super::buffers::Buffers;
use super::super::exchange::Exchange;
use super::super::pages::Pages;
use super::super::request;
use super::super::standing::{Standing, TRIES_EVERY};
use super::super::stream::Stream;
use super::{Ask, Linger, Session};
use crate::resp::EntryId;

/// The maximum number of commands of one request for entries.
const MAX_COMMANDS: usize = 64;

/// The maximum number of streams that one request asks about: with many streams, each request looks at all of them.
const MAX_INFOS: usize = 512;

/// With at most this number of streams, the request that waits for entries also asks for descriptions, which show the loss before
/// the entries. With more streams, a separate request asks about those that got entries.
const FEW_STREAMS: usize = 8;

impl Session {
    /// Writes the next commands, unless replies are due, batches are ready or there is nothing to ask for. The beginnings of
    /// streams are requested even if an error of one of them is ready: a constructor waits for them. `waits`: how long the server
    /// may wait for new entries; `None`: new entries are not requested.
    pub(super) fn ask(&mut self, waits: Option<Duration>, buffers: &mut Buffers) {
        if !self.awaits_reply() {
            self.join_now();
        }
        if self.awaits_reply()
            || (self.is_ready() && self.has_begun())
            || self.linger == Linger::Waits
            || self.is_finished()
        {
            return;
        }
        if self.is_unsettled && (self.ask_role(buffers) || self.ask_infos(buffers)) {
            return;
        }
        if self.is_ready() {
            // A constructor takes nothing before all streams have begun.
            if !self.has_begun() {
                self.ask_to_catch_up(waits, buffers);
            }
            return;
        }
        if self.ask_pages(buffers) || self.ask_to_catch_up(waits, buffers) || !self.options.follows {
            return;
        }
        let Some(waits) = waits else { return };
        let followed = self.which(|stream| !stream.standing.is_left_out());
        if followed.is_empty() {
            return;
        }
        let streams = followed.len() as u64;
        let fewest = followed.iter().map(|at| self.streams[*at].paging.count()).min().unwrap_or(1);
        let room = self.options.batch_rows.saturating_sub(self.streams.iter().map(Stream::rows).max().unwrap_or(0));
        let count = (fewest / streams).min(room as u64).min(self.left).max(1);
        let is_refused = self.streams.iter().any(|stream| stream.standing == Standing::Refused);
        let waits = if is_refused { waits.min(TRIES_EVERY) } else { waits };
        let block = Some(waits.min(self.options.block)).filter(|block| self.linger == Linger::No && !block.is_zero());
        let places = followed.iter().map(|at| (&*self.streams[*at].key, self.streams[*at].after()));
        request::follow(&mut buffers.out, places, count, block);
        self.in_flight.push_back(Ask::Follow { count, block });
        if followed.len() <= FEW_STREAMS {
            for stream in followed {
                self.ask_info(stream, buffers);
            }
        }
    }

    pub(super) fn which(&self, is_one: impl Fn(&Stream) -> bool) -> Vec<usize> {
        self.streams.iter().enumerate().filter(|(_, stream)| is_one(stream)).map(|(at, _)| at).collect()
    }

    /// Asks the server to describe streams, as many as one request may name; returns whether any stream needs a description.
    fn ask_infos(&mut self, buffers: &mut Buffers) -> bool {
        let unknown = self.which(Stream::needs_info);
        for stream in unknown.iter().take(MAX_INFOS) {
            self.ask_info(*stream, buffers);
        }
        !unknown.is_empty()
    }

    pub(super) fn ask_info(&mut self, stream: usize, buffers: &mut Buffers) {
        request::info(&mut buffers.out, &self.streams[stream].key);
        self.in_flight.push_back(Ask::Info { stream });
    }

    /// Requests pages of the streams that are behind, as many as fit into one page together; returns whether any was requested.
    pub(super) fn ask_pages(&mut self, buffers: &mut Buffers) -> bool {
        let mut bytes = 0;
        let total = self.streams.len();
        let first = self.turn;
        for at in (first..first + total).map(|at| at % total) {
            let stream = &self.streams[at];
            if !stream.has_pages() || stream.asked.is_some() || stream.lag.waits() {
                continue;
            }
            if bytes > 0
                && (bytes + stream.paging.bytes() > stream.paging.page_bytes() || self.in_flight.len() >= MAX_COMMANDS)
            {
                self.turn = at;
                break;
            }
            bytes += stream.paging.bytes();
            let has_anchor = stream.has_anchor;
            let first = if has_anchor { Some(stream.after()) } else { stream.after().next() };
            let Some(first) = first else { continue };
            let count = self.page_count(at, stream.rows(), 0) + u64::from(has_anchor);
            self.push_page(at, first, count, buffers);
            if !has_anchor && self.streams[at].oldest.is_none() {
                self.ask_info(at, buffers);
            }
        }
        self.may_look_ahead();
        !self.in_flight.is_empty()
    }

    /// The number of entries to request next. The open batch has `rows` rows; `more` entries have arrived and are not read yet.
    pub(super) fn page_count(&self, at: usize, rows: usize, more: u64) -> u64 {
        let room = self.options.batch_rows.saturating_sub(rows).max(1) as u64;
        self.streams[at].paging.count().min(room).min(self.left.saturating_sub(more)).max(1)
    }

    /// Requests a page of `count` entries that begins with `first`.
    pub(super) fn push_page(&mut self, at: usize, first: EntryId, count: u64, buffers: &mut Buffers) {
        let stream = &self.streams[at];
        let last = stream.until.unwrap_or(EntryId::MAX);
        request::range(&mut buffers.out, &stream.key, first, last, count);
        self.in_flight.push_back(Ask::Page { stream: at, count });
    }
}
