//! Turns the entries of a session into batches.

use std::mem::take;
use std::sync::Arc;

use super::super::batch::ReadBatch;
use super::super::errors::bad_field;
use super::super::pages::Taken;
use super::super::position::{Place, Position};
use super::super::stream::{Open, Stream};
use super::{Linger, Session};
use crate::error::Error;
use crate::stream_facts::NOT_COUNTED;

impl Session {
    /// Hands out the open batches that are full, or for which no more entries are available.
    pub(super) fn hand_out(&mut self) {
        while let Some(at) = self.due.pop_front() {
            self.hand_out_stream(at);
        }
        let is_last = self.left == 0;
        let looks_at_all = self.must_look_at_all();
        let looked = if looks_at_all { (0..self.streams.len()).collect() } else { take(&mut self.touched) };
        self.touched.clear();
        if looked.iter().any(|at| self.streams[*at].is_unproven()) {
            self.is_unsettled = true;
            return;
        }
        let lingers = self.options.follows && !is_last && !self.options.linger.is_zero() && self.linger != Linger::Over;
        let (mut waits, mut bytes, mut kept) = (false, 0, Vec::new());
        for at in looked {
            let stream = &self.streams[at];
            if stream.open.is_none() && stream.bad.is_none() {
                continue;
            }
            let is_full = self.is_full(stream);
            let is_at_end = is_last || stream.bad.is_some() || stream.is_finished() || (!stream.is_behind && !lingers);
            if is_full || is_at_end {
                self.complete(at);
            } else {
                waits |= !stream.is_behind;
                bytes += stream.bytes();
                kept.push(at);
            }
        }
        self.linger = Linger::No;
        if !looks_at_all {
            self.open_bytes += bytes;
            return;
        }
        while bytes >= self.options.batch_bytes {
            let Some(largest) = (0..kept.len()).max_by_key(|place| self.streams[kept[*place]].bytes()) else { break };
            let at = kept.swap_remove(largest);
            bytes -= self.streams[at].bytes();
            self.complete(at);
        }
        self.open_bytes = bytes;
        self.is_unsettled = self.streams.iter().any(|stream| stream.needs_info() || stream.lag.is_suspected());
        if waits && !self.is_behind() {
            self.linger = Linger::Waits;
        }
    }

    fn is_full(&self, stream: &Stream) -> bool {
        stream.rows() >= self.options.batch_rows || stream.bytes() >= self.options.batch_bytes
    }

    /// Completes the full batches after a lost connection: each page that is requested again would add to them.
    pub(super) fn complete_full(&mut self) {
        for at in 0..self.streams.len() {
            let stream = &self.streams[at];
            if stream.open.is_some() && self.is_full(stream) && !stream.is_unproven() && !self.due.contains(&at) {
                self.complete(at);
            }
        }
    }

    /// Whether all streams must be looked at, not only those that got a page: others have changed, or their open batches are due.
    fn must_look_at_all(&self) -> bool {
        let added: usize = self.touched.iter().map(|at| self.streams[*at].bytes()).sum();
        let is_due =
            self.left == 0 || self.linger == Linger::Over || self.open_bytes + added >= self.options.batch_bytes;
        self.is_unsettled || is_due || !self.is_behind()
    }

    /// Whether pages of any stream are to be requested. The stream whose turn is next is checked first.
    fn is_behind(&self) -> bool {
        let (asked, next) = self.streams.split_at(self.turn);
        next.iter().chain(asked).any(Stream::has_pages)
    }

    /// Ends the open batch of a stream. While replies are due, whose entries would be added to it, the batch is made at once.
    fn complete(&mut self, at: usize) {
        let stream = &self.streams[at];
        if self.in_flight.is_empty() && stream.bad.is_none() && stream.rows() > 0 {
            self.due.push_back(at);
        } else {
            self.hand_out_stream(at);
        }
    }

    /// Makes a batch that has reached its maximum size in the middle of a page.
    pub(super) fn hand_out_full(&mut self) {
        let Some((at, _)) = self.pages.last().copied() else { return };
        if self.streams[at].is_unproven() {
            // A gap before the batch will be detected too late for this one: the next batch reports it.
            self.doubt = Some(NOT_COUNTED);
            self.streams[at].prove_blindly();
        }
        self.hand_out_stream(at);
    }

    pub(super) fn hand_out_stream(&mut self, at: usize) {
        let stream = &mut self.streams[at];
        let open = stream.open.take();
        let place = stream.proven();
        let bad = stream.bad.take();
        let before = match &bad {
            Some(bad) => Place { id: bad.before, added: place.added.map(|added| added.saturating_sub(1)), ..place },
            None => place,
        };
        match open {
            Some(open) if open.columns.rows() > 0 => self.push_batch(at, open, None, before),
            Some(open) => self.spare.keep(open.columns, 0),
            None => {}
        }
        if let Some(bad) = bad {
            // The position of the error is behind the loss before the entry, so the error reports the loss, unless the batch has.
            let lost = self.streams[at].lost.take();
            self.push_error(at, Some(place), bad_field(&self.streams[at].key, bad.id, &bad.value, lost));
        }
    }

    /// Adds an error, after which the stream continues at `place`.
    pub(super) fn push_error(&mut self, at: usize, place: Option<Place>, error: Error) {
        self.ready.push_back(Taken { stream: Arc::clone(&self.streams[at].key), place, result: Err(error) });
    }

    /// Adds a batch of the open entries, or of their first `rows` rows, which ends at `place`.
    pub(super) fn push_batch(&mut self, at: usize, mut open: Open, rows: Option<usize>, place: Place) {
        let entries = if rows.is_some() { open.proven } else { open.columns.entries() } as u64;
        let bytes = open.columns.bytes();
        let finished = open.columns.finish();
        let (misspelt, ids, fields_at) =
            (open.columns.take_misspelt(), open.columns.take_ids(), open.columns.fields_at());
        self.spare.keep(open.columns, bytes);
        let lost = self.streams[at].lost.take();
        let stream = Arc::clone(&self.streams[at].key);
        let result = finished.map(|batch| ReadBatch {
            batch: rows.map_or_else(|| batch.clone(), |rows| batch.slice(0, rows.min(batch.num_rows()))),
            ids,
            fields_at,
            stream: Arc::clone(&stream),
            entries,
            first_id: open.first_id,
            last_id: place.id,
            lost,
            misspelt,
            position: Position::default(),
        });
        let place = result.is_ok().then_some(place);
        self.ready.push_back(Taken { stream, place, result });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use arrow_schema::{DataType, Field};

    use super::super::super::buffers::Buffers;
    use super::super::super::exchange::Exchange as _;
    use super::super::super::pages::Pages as _;
    use super::super::super::paging::Paging;
    use super::super::super::range::{End, Start};
    use super::super::SessionOptions;
    use super::*;
    use crate::entries::{BodyPlan, ColumnsPlan, FieldsPlan, OnBadField};
    use crate::error::Fault;
    use crate::resp::EntryId;

    /// A session that reads these streams from their oldest entry, in batches of two rows.
    fn session(keys: &[&str]) -> Session {
        let fields = vec![Field::new("v", DataType::Int64, true)];
        let body = BodyPlan::Fields(FieldsPlan::new(fields, OnBadField::Fail).unwrap());
        let plan = Arc::new(ColumnsPlan::new(Vec::new(), None, body).unwrap());
        let options = SessionOptions {
            batch_rows: 2,
            batch_bytes: 1 << 20,
            block: Duration::ZERO,
            linger: Duration::ZERO,
            limit: u64::MAX,
            follows: false,
            fails_on_loss: false,
        };
        let stream = |key: &&str| {
            Stream::new(Arc::from(key.as_bytes()), Start::Earliest, End::At(EntryId::MAX), Paging::new(1 << 20, 2))
        };
        Session::new(keys.iter().map(stream).collect(), options, plan)
    }

    /// Lets the session ask, and hands it these replies.
    fn answer(session: &mut Session, replies: &[String]) {
        let mut buffers = Buffers::default();
        session.request(Some(Duration::ZERO), &mut buffers);
        let bytes = replies.concat();
        buffers.space()[..bytes.len()].copy_from_slice(bytes.as_bytes());
        session.received(bytes.len(), &mut buffers).unwrap();
    }

    fn entry((id, value): &(u64, &str)) -> String {
        let id = format!("{id}-0");
        format!("*2\r\n${}\r\n{id}\r\n*2\r\n$1\r\nv\r\n${}\r\n{value}\r\n", id.len(), value.len())
    }

    fn page(entries: &[(u64, &str)]) -> String {
        format!("*{}\r\n{}", entries.len(), entries.iter().map(entry).collect::<String>())
    }

    /// A stream to which the entries 1-0 to `added`-0 were added, and which has those from `first`-0 on.
    fn info(first: u64, added: u64) -> String {
        let last = format!("{added}-0");
        let head = format!("*8\r\n$6\r\nlength\r\n:{}\r\n$13\r\nentries-added\r\n:{added}\r\n", added + 1 - first);
        let last = format!("$17\r\nlast-generated-id\r\n${}\r\n{last}\r\n", last.len());
        format!("{head}{last}$11\r\nfirst-entry\r\n{}", entry(&(first, "0")))
    }

    #[test]
    fn an_entry_that_does_not_fit_reports_what_is_missing_before_it() {
        let mut session = session(&["s"]);
        answer(&mut session, &[info(1, 1)]);
        answer(&mut session, &[page(&[(5, "x"), (6, "6")])]);
        answer(&mut session, &[info(5, 6)]);
        let error = session.take().unwrap();
        assert_eq!(error.place.map(|place| place.added), Some(Some(5)));
        let error = error.result.unwrap_err();
        assert!(matches!(error, Error::Field { lost: 4, exact: true, .. }), "{error:?}");
        let message = error.to_string();
        assert!(message.ends_with("; before this entry, 4 entries were trimmed before they were read"), "{message}");
        answer(&mut session, &[page(&[(5, "x"), (6, "6")])]);
        assert_eq!(session.take().unwrap().result.unwrap().lost, None);
    }

    #[test]
    fn a_batch_that_waited_for_the_proof_of_a_stream_is_returned_when_that_is_dropped() {
        let mut session = session(&["s", "t"]);
        answer(&mut session, &[info(1, 2), info(1, 2)]);
        // 1-0 of the second stream is gone.
        answer(&mut session, &[page(&[(1, "1"), (2, "2")]), page(&[(2, "2")])]);
        assert!(!session.is_ready() && session.drop_stream(b"t"));
        assert_eq!(session.take().unwrap().result.unwrap().batch.num_rows(), 2);
    }

    #[test]
    fn what_the_limit_left_out_is_read_when_the_entries_of_another_stream_are_dropped() {
        let mut session = session(&["s", "t"]);
        *session.left() = 2;
        answer(&mut session, &[info(1, 2), info(1, 1)]);
        answer(&mut session, &[page(&[(1, "1"), (2, "2")]), page(&[(1, "1")])]);
        assert!(session.is_ready() && session.drop_stream(b"s"));
        assert!(!session.is_ready() && !session.is_finished());
        answer(&mut session, &[page(&[(1, "1")])]);
        let taken = session.take().unwrap();
        assert_eq!((&*taken.stream, taken.result.unwrap().entries), (&b"t"[..], 1));
    }

    #[test]
    fn an_entry_that_does_not_fit_does_not_count_for_the_limit_when_its_stream_is_dropped() {
        let mut session = session(&["s", "t"]);
        *session.left() = 2;
        answer(&mut session, &[info(1, 1), info(1, 2)]);
        answer(&mut session, &[page(&[(1, "x")]), page(&[(1, "1"), (2, "2")])]);
        assert!(session.is_ready() && session.drop_stream(b"s"));
        assert_eq!(session.take().unwrap().result.unwrap().entries, 1);
        answer(&mut session, &[page(&[(1, "1"), (2, "2")])]);
        assert_eq!(session.take().unwrap().result.unwrap().last_id, EntryId { ms: 2, seq: 0 });
    }

    #[test]
    fn the_rest_of_a_page_is_not_read_when_another_stream_is_dropped_in_the_middle_of_it() {
        let mut session = session(&["s", "t"]);
        *session.left() = 2;
        answer(&mut session, &[info(1, 2), info(1, 2)]);
        let (first, second) = ("*2\r\n".to_owned() + &entry(&(1, "1")), entry(&(2, "2")));
        let mut buffers = Buffers::default();
        session.request(Some(Duration::ZERO), &mut buffers);
        let mut arrive = |session: &mut Session, bytes: &str| {
            buffers.space()[..bytes.len()].copy_from_slice(bytes.as_bytes());
            session.received(bytes.len(), &mut buffers).unwrap();
        };
        arrive(&mut session, &(page(&[(1, "1"), (2, "2")]) + &first));
        assert!(session.drop_stream(b"s"));
        arrive(&mut session, &second);
        assert!(!session.is_ready() && !session.is_finished());
        answer(&mut session, &[page(&[(1, "1"), (2, "2")])]);
        let taken = session.take().unwrap();
        assert_eq!((&*taken.stream, taken.result.unwrap().first_id), (&b"t"[..], EntryId { ms: 1, seq: 0 }));
    }

    #[test]
    fn an_entry_that_does_not_fit_is_reported_before_its_stream_is_refused() {
        let mut session = session(&["s", "t"]);
        answer(&mut session, &[info(1, 2), info(1, 2)]);
        // The page of `t` is due.
        answer(&mut session, &[page(&[(1, "1"), (2, "x")])]);
        assert!(!session.is_ready());
        session.refuse(0, Fault::new("NOPERM", "No permissions to access a key")).unwrap();
        let batch = session.take().unwrap();
        assert_eq!(batch.place.map(|place| place.id), Some(EntryId { ms: 1, seq: 0 }));
        assert_eq!(batch.result.unwrap().last_id, EntryId { ms: 1, seq: 0 });
        assert!(matches!(session.take().unwrap().result, Err(Error::Field { .. })));
    }

    #[test]
    fn a_full_batch_does_not_grow_when_the_connection_is_lost_before_the_pages_of_other_streams() {
        let mut session = session(&["s", "t"]);
        answer(&mut session, &[info(1, 9), info(1, 9)]);
        answer(&mut session, &[page(&[(1, "1"), (2, "2")])]);
        assert!(!session.is_ready());
        session.disconnected();
        assert_eq!(session.take().unwrap().result.unwrap().batch.num_rows(), 2);
        assert!(!session.is_ready());
        answer(&mut session, &[info(1, 9)]);
        answer(&mut session, &[page(&[(2, "2"), (3, "3"), (4, "4")]), page(&[(1, "1"), (2, "2")])]);
        for rows in [2, 2] {
            assert_eq!(session.take().unwrap().result.unwrap().batch.num_rows(), rows);
        }
    }
}
