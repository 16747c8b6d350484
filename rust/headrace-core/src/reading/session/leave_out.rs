//! Leaves out streams that cannot be read, so that the others continue.

use super::super::errors::{is_of_stream, stream_refused, stream_replaced};
use super::super::lag::Lag;
use super::super::standing::Standing;
use super::super::stream::Stream;
use super::Session;
use crate::error::Fault;

impl Session {
    /// Handles the server's refusal of a command about one stream.
    pub(super) fn refuse(&mut self, at: usize, fault: Fault) -> Result<(), Fault> {
        if !is_of_stream(&fault) {
            return Err(fault);
        }
        self.is_unsettled = true;
        if fault.code == "WRONGTYPE" && self.streams[at].note_missing() {
            self.begun.push(at);
        }
        if self.streams[at].standing.refuse() {
            self.leave_out(at);
            self.push_error(at, None, stream_refused(&self.streams[at].key, &fault));
        } else {
            // The stream was refused before, and read again as a suspect: its entries without proof would hold up the other
            // streams.
            self.forget_unproven(at);
        }
        Ok(())
    }

    /// Handles the refusal of a request for new entries of all streams. The refusal does not name the stream at fault, so the
    /// server is asked about each stream. If it has refused none since the last such refusal, no stream is at fault.
    pub(super) fn refuse_all(&mut self, fault: Fault) -> Result<(), Fault> {
        if !is_of_stream(&fault) || self.is_refused {
            return Err(fault);
        }
        self.is_refused = true;
        self.is_unsettled = true;
        for stream in self.streams.iter_mut().filter(|stream| stream.standing == Standing::Read) {
            stream.standing = Standing::Suspect { is_known: false };
        }
        Ok(())
    }

    /// Handles a stream that is not the one that was read before.
    pub(super) fn replace(&mut self, at: usize, reason: &str) {
        self.streams[at].standing = Standing::Replaced;
        self.leave_out(at);
        self.push_error(at, None, stream_replaced(&self.streams[at].key, reason));
    }

    /// Ends the reading of a stream, at the last entry that is proven.
    fn leave_out(&mut self, at: usize) {
        self.is_unsettled = true;
        self.forget_unproven(at);
        self.streams[at].lag = Lag::default();
        // A request for all streams may have been refused because of this one.
        self.is_refused = false;
    }

    /// See [`Pages::drop_stream`](super::Pages::drop_stream).
    pub(super) fn forget(&mut self, key: &[u8]) -> bool {
        let joins = self.joining.iter().position(|(at, _)| *self.streams[*at].key == *key);
        if let Some(joins) = joins {
            self.joining.remove(joins);
        }
        let is_it = |stream: &Stream| *stream.key == *key && stream.standing != Standing::Dropped;
        let Some(at) = self.streams.iter().position(is_it) else { return joins.is_some() };
        self.streams[at].standing = Standing::Dropped;
        self.leave_out(at);
        // Entries that the caller does not take do not count for the limit.
        self.left += self.ready.iter().map(|taken| taken.entries_of(key)).sum::<u64>();
        self.ready.retain(|taken| *taken.stream != *key);
        self.streams[at].bad = None;
        if self.in_flight.is_empty() {
            // The others may have waited for what it needed, and nothing may follow.
            self.hand_out();
        }
        true
    }
}
