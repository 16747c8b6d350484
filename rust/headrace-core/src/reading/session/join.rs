//! Reads streams again that were dropped.

use super::super::range::{End, Start};
use super::super::standing::Standing;
use super::super::stream::Stream;
use super::Session;

impl Session {
    /// See [`Pages::read_stream`](super::Pages::read_stream).
    pub(super) fn join(&mut self, key: &[u8], start: Start) -> bool {
        let Some(at) = self.streams.iter().position(|stream| *stream.key == *key) else { return false };
        self.joining.retain(|(joins, _)| *joins != at);
        self.joining.push((at, start));
        self.is_unsettled = true;
        // A reply that is due may be about the stream as it was read before.
        if self.in_flight.is_empty() {
            self.join_now();
        }
        true
    }

    pub(super) fn join_now(&mut self) {
        for (at, start) in std::mem::take(&mut self.joining) {
            let stream = &mut self.streams[at];
            if stream.standing != Standing::Dropped {
                continue;
            }
            // What was read of it before is of no use.
            self.ready.retain(|taken| taken.stream != stream.key);
            *stream = Stream::new(stream.key.clone(), start, End::Never, stream.paging.clone());
            self.is_unsettled = true;
            self.is_refused = false;
            self.begun.push(at);
        }
    }
}
