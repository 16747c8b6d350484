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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;
    use std::time::Duration;

    use arrow_schema::{DataType, Field};

    use super::super::super::buffers::Buffers;
    use super::super::super::pages::Pages as _;
    use super::super::super::paging::Paging;
    use super::super::SessionOptions;
    use super::*;
    use crate::entries::{BodyPlan, ColumnsPlan, FieldsPlan, OnBadField};
    use crate::reading::Exchange as _;

    #[test]
    fn a_stream_that_waits_for_a_reply_before_it_joins_can_be_dropped() {
        let options = SessionOptions {
            batch_rows: 10,
            batch_bytes: 1 << 20,
            block: Duration::from_secs(1),
            linger: Duration::ZERO,
            limit: u64::MAX,
            follows: true,
            fails_on_loss: true,
        };
        let fields = vec![Field::new("v", DataType::Utf8, true)];
        let body = BodyPlan::Fields(FieldsPlan::new(fields, OnBadField::Fail).unwrap());
        let columns = ColumnsPlan::new(Vec::new(), None, body).unwrap();
        let stream = |key: &[u8]| Stream::new(Arc::from(key), Start::Earliest, End::Never, Paging::new(1 << 20, 10));
        let mut session = Session::new(vec![stream(b"a"), stream(b"b")], options, Arc::new(columns));
        assert!(session.drop_stream(b"b"));
        let mut buffers = Buffers::default();
        session.request(None, &mut buffers);
        assert!(session.awaits_reply());
        assert!(session.read_stream(b"b", Start::Earliest) && session.drop_stream(b"b"));
        assert!(!session.drop_stream(b"b") && session.joining.is_empty());
    }
}
