//! Waits for a replica that has not received all entries that were read before, from another server or up to a stored position.

use std::time::Duration;

use redis::{Value, parse_redis_value};

use super::super::buffers::Buffers;
use super::super::request;
use super::super::stream::Stream;
use super::{Ask, Session};
use crate::error::Fault;
use crate::resp::EntryId;
use crate::resp::stream_reply::Shape;
use crate::resp::value::{bytes, field};
use crate::stream_facts::StreamInfo;

/// How long the wait for a replica holds up the other streams of a reader; also how often a replica is asked if no entry shows
/// that it has caught up.
const TURN: Duration = Duration::from_millis(100);

impl Session {
    /// Asks whether the server is a replica, if a stream needs to know; returns whether the question was written.
    pub(super) fn ask_role(&mut self, buffers: &mut Buffers) -> bool {
        let is_wanted = self.streams.iter().any(|stream| stream.lag.is_suspected());
        if is_wanted {
            request::hello(&mut buffers.out);
            self.in_flight.push_back(Ask::Role);
        }
        is_wanted
    }

    /// Reads the server's role; returns whether the reply is complete. A server that refuses to state it does not count as a
    /// replica.
    pub(super) fn read_role(&mut self, buffers: &mut Buffers) -> Result<bool, Fault> {
        let Some(reply) = buffers.take_reply()? else { return Ok(false) };
        let reply = parse_redis_value(reply).unwrap_or(Value::Nil);
        let is_replica = matches!(field(&reply, "role").and_then(bytes), Some(b"replica" | b"slave"));
        for at in self.which(|stream| stream.lag.is_suspected()) {
            self.streams[at].lag.resolve(is_replica);
            if is_replica {
                // Entries without proof would hold up the other streams as long as this one waits.
                self.forget_unproven(at);
            } else {
                self.streams[at].is_doubtful = true;
            }
        }
        Ok(true)
    }

    /// Waits until the replica has the last entry that was read from a stream, or for a while if no entry shows that it has
    /// caught up; returns whether a stream requires it.
    pub(super) fn ask_to_catch_up(&mut self, waits: Option<Duration>, buffers: &mut Buffers) -> bool {
        let lagging = self.which(|stream| stream.lag.waits());
        if lagging.is_empty() {
            return false;
        }
        let Some(waits) = waits else { return true };
        let is_shown = lagging.iter().all(|at| self.streams[*at].lag.awaited().is_some());
        let takes_turns = lagging.len() < self.streams.len();
        let most = if is_shown && !takes_turns { self.options.block.max(TURN) } else { TURN };
        let block = waits.min(most).max(Duration::from_millis(1));
        let place = |stream: &'_ Stream| stream.lag.awaited().unwrap_or(EntryId::MAX);
        let places: Vec<_> =
            lagging.into_iter().map(|at| &self.streams[at]).map(|stream| (&*stream.key, place(stream))).collect();
        request::follow(&mut buffers.out, places.into_iter(), 1, Some(block));
        self.in_flight.push_back(Ask::CatchUp { block });
        true
    }

    /// Skips the reply for the streams that wait for their replica; returns whether it is complete.
    pub(super) fn read_caught_up(&mut self, block: Duration, buffers: &mut Buffers) -> Result<bool, Fault> {
        if !self.pass_reply(Shape::Streams, 1, buffers)? {
            return Ok(false);
        }
        for stream in &mut self.streams {
            stream.is_behind = true;
            if stream.lag.waits() {
                stream.lag.look_again(block);
                stream.is_doubtful = stream.asked.is_none();
            }
        }
        Ok(true)
    }
}

impl Stream {
    /// The ID directly before the last entry that was read, if the server, which described the stream as `info`, lacks that
    /// entry.
    pub(super) fn awaited(&self, info: &StreamInfo) -> Option<EntryId> {
        self.read_up_to().previous().filter(|before| info.last_id <= *before)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use arrow_schema::{DataType, Field};

    use super::super::super::pages::Pages;
    use super::super::super::paging::Paging;
    use super::super::super::position::Place;
    use super::super::super::range::{End, Start};
    use super::super::SessionOptions;
    use super::*;
    use crate::entries::{BodyPlan, ColumnsPlan, FieldsPlan, OnBadField};
    use crate::reading::Exchange as _;

    const REPLICA: &str = "*2\r\n$4\r\nrole\r\n$7\r\nreplica\r\n";
    const MASTER: &str = "*2\r\n$4\r\nrole\r\n$6\r\nmaster\r\n";
    const NOTHING: &str = "*-1\r\n";

    const fn id(ms: u64) -> EntryId {
        EntryId { ms, seq: 0 }
    }

    /// Behind the entry `ms`-0, before which the stream had had as many.
    fn behind(ms: u64) -> Start {
        Start::After(Place { id: id(ms), is_entry: true, added: Some(ms), removed: None })
    }

    fn session(starts: &[(&str, Start)], follows: bool) -> Session {
        let fields = vec![Field::new("v", DataType::Int64, true)];
        let body = BodyPlan::Fields(FieldsPlan::new(fields, OnBadField::Fail).unwrap());
        let plan = Arc::new(ColumnsPlan::new(Vec::new(), None, body).unwrap());
        let options = SessionOptions {
            batch_rows: 100,
            batch_bytes: 1 << 20,
            block: Duration::from_secs(1),
            linger: Duration::ZERO,
            limit: u64::MAX,
            follows,
            fails_on_loss: false,
        };
        let end = if follows { End::Never } else { End::Latest };
        let stream = |(key, start): &(&str, Start)| {
            Stream::new(Arc::from(key.as_bytes()), *start, end, Paging::new(1 << 20, 100))
        };
        Session::new(starts.iter().map(stream).collect(), options, plan)
    }

    /// Sends the next commands. Returns their words.
    fn ask(session: &mut Session) -> String {
        let mut buffers = Buffers::default();
        session.request(Some(Duration::MAX), &mut buffers);
        let sent = String::from_utf8(buffers.out).unwrap();
        sent.split("\r\n").filter(|line| !line.starts_with(['*', '$'])).collect::<Vec<_>>().join(" ").trim().to_owned()
    }

    fn say(session: &mut Session, replies: &[&str]) {
        let reply = replies.concat();
        let mut buffers = Buffers::default();
        buffers.space()[..reply.len()].copy_from_slice(reply.as_bytes());
        session.received(reply.len(), &mut buffers).unwrap();
    }

    fn bulk(text: &str) -> String {
        format!("${}\r\n{text}\r\n", text.len())
    }

    fn entries(all: &[(u64, &str)]) -> String {
        let entry = |(ms, value): &(u64, &str)| {
            format!("*2\r\n{}*2\r\n{}{}", bulk(&id(*ms).to_string()), bulk("v"), bulk(value))
        };
        format!("*{}\r\n{}", all.len(), all.iter().map(entry).collect::<String>())
    }

    /// A stream to which 1-0 to `added`-0 were added, and from which those below `first` were trimmed.
    fn described(added: u64, first: u64) -> String {
        let entry = |ms| if first > added { "$-1\r\n".to_owned() } else { entries(&[(ms, "1")]).split_off(4) };
        let parts = [
            ("length", format!(":{}\r\n", added + 1 - first)),
            ("last-generated-id", bulk(&id(added).to_string())),
            ("max-deleted-entry-id", bulk("0-0")),
            ("entries-added", format!(":{added}\r\n")),
            ("first-entry", entry(first)),
            ("last-entry", entry(added)),
        ];
        format!("*12\r\n{}", parts.map(|(name, value)| bulk(name) + &value).concat())
    }

    /// The first and the last entry of the next batch.
    fn batch(session: &mut Session) -> (EntryId, EntryId) {
        let batch = session.take().unwrap().result.unwrap();
        (batch.first_id(), batch.last_id())
    }

    #[test]
    fn a_replica_is_waited_for_before_others_are_taken_if_nobody_takes_them_yet() {
        let mut session = session(&[("s", behind(9)), ("t", Start::Earliest)], false);
        assert_eq!(ask(&mut session), "XINFO STREAM s XINFO STREAM t");
        say(&mut session, &[&described(2, 1), &described(1, 1)]);
        assert_eq!(ask(&mut session), "HELLO");
        say(&mut session, &[REPLICA]);
        assert!(ask(&mut session).starts_with("XRANGE t 0-1"));
        say(&mut session, &[&entries(&[(1, "1")])]);
        assert!(session.is_ready() && !session.has_begun());
        assert_eq!(ask(&mut session), "XREAD COUNT 1 BLOCK 100 STREAMS s 8-18446744073709551615");
        say(&mut session, &[&format!("*1\r\n*2\r\n{}{}", bulk("s"), entries(&[(9, "1")]))]);
        assert_eq!(ask(&mut session), "XINFO STREAM s");
        say(&mut session, &[&described(9, 1)]);
        assert!(session.has_begun());
        assert_eq!(ask(&mut session), "", "the caller takes what is ready first");
        assert_eq!(batch(&mut session), (id(1), id(1)));
    }

    #[test]
    fn what_a_replica_lacks_does_not_hold_up_other_streams() {
        let mut session = session(&[("s", behind(1)), ("t", behind(1))], true);
        ask(&mut session);
        say(&mut session, &[&described(3, 1), &described(1, 1)]);
        assert!(ask(&mut session).starts_with("XRANGE s 1-0"));
        // 1-0 to 3-0 are gone.
        say(&mut session, &[&entries(&[(4, "1")]), &entries(&[(1, "1")])]);
        assert_eq!(ask(&mut session), "XINFO STREAM s");
        say(&mut session, &[&described(4, 4)]);
        assert_eq!((batch(&mut session), session.lost()), ((id(4), id(4)), (2, true)));
        session.disconnected();
        assert!(ask(&mut session).starts_with("XRANGE s 4-0"));
        say(&mut session, &[&entries(&[]), &entries(&[(1, "1")])]);
        session.disconnected();
        assert_eq!(ask(&mut session), "XINFO STREAM s");
        say(&mut session, &[&described(3, 1)]);
        assert_eq!(ask(&mut session), "HELLO");
        say(&mut session, &[REPLICA]);
        assert!(ask(&mut session).starts_with("XRANGE t 1-0"));
        say(&mut session, &[&entries(&[(1, "1"), (2, "1"), (3, "no number")])]);
        assert_eq!(batch(&mut session), (id(2), id(2)));
        assert!(session.take().unwrap().result.is_err());
        assert!(ask(&mut session).starts_with("XRANGE t 3-0"));
        say(&mut session, &[&entries(&[(3, "no number")])]);
        assert_eq!(ask(&mut session), "XREAD COUNT 1 BLOCK 100 STREAMS s 3-18446744073709551615");
        say(&mut session, &[NOTHING]);
        assert_eq!(ask(&mut session), "XINFO STREAM s");
        say(&mut session, &[&described(4, 4)]);
        assert_eq!(session.lost(), (2, true));
    }

    #[test]
    fn entries_without_proof_are_requested_again_over_a_new_connection() {
        let mut session = session(&[("s", behind(1))], true);
        ask(&mut session);
        say(&mut session, &[&described(3, 1)]);
        assert!(ask(&mut session).starts_with("XRANGE s 1-0"));
        // 1-0 and 2-0 are gone. The next server is a replica that still has them.
        say(&mut session, &[&entries(&[(3, "1")])]);
        session.disconnected();
        assert!(ask(&mut session).starts_with("XRANGE s 1-0"));
        say(&mut session, &[&entries(&[(1, "1"), (2, "1"), (3, "1")])]);
        assert_eq!((batch(&mut session), session.lost()), ((id(2), id(3)), (0, true)));
    }

    #[test]
    fn a_replica_with_fewer_entries_than_were_gone_before_the_start_is_waited_for() {
        let mut session = session(&[("s", Start::Earliest)], true);
        ask(&mut session);
        say(&mut session, &[&described(20, 21)]);
        assert!(ask(&mut session).starts_with("XRANGE s 0-1"));
        session.disconnected();
        assert_eq!(ask(&mut session), "XINFO STREAM s", "a page may be older than its description");
        say(&mut session, &[&described(20, 1)]);
        assert_eq!(ask(&mut session), "HELLO");
        say(&mut session, &[REPLICA]);
        for _ in 0..3 {
            let never = "XREAD COUNT 1 BLOCK 100 STREAMS s 18446744073709551615-18446744073709551615";
            assert_eq!(ask(&mut session), never, "no entry shows that the replica has caught up");
            say(&mut session, &[NOTHING]);
            assert_eq!(ask(&mut session), "XINFO STREAM s");
            say(&mut session, &[&described(19, 1)]);
            assert_eq!(ask(&mut session), "HELLO");
            say(&mut session, &[REPLICA]);
        }
        ask(&mut session);
        say(&mut session, &[NOTHING]);
        ask(&mut session);
        say(&mut session, &[&described(25, 23)]);
        assert!(ask(&mut session).starts_with("XRANGE s 0-1"));
        say(&mut session, &[&entries(&[(23, "1"), (24, "1"), (25, "1")])]);
        assert_eq!((batch(&mut session), session.lost()), ((id(23), id(25)), (2, true)));
    }

    #[test]
    fn a_position_with_a_higher_count_waits_for_a_replica_and_not_for_a_master() {
        let before_all = Place { added: Some(20), ..Place::default() };
        let mid_stream = Place { id: id(5), removed: Some(20), ..Place::default() };
        let behind_a_loss = Place { id: id(5), is_entry: true, added: Some(20), removed: None };
        let places = [
            (before_all, REPLICA, false),
            (before_all, MASTER, true),
            (mid_stream, REPLICA, false),
            (behind_a_loss, REPLICA, false),
            (behind_a_loss, MASTER, true),
        ];
        for (place, role, has_begun) in places {
            let mut session = session(&[("s", Start::After(place))], true);
            ask(&mut session);
            say(&mut session, &[&described(9, 10)]);
            assert_eq!(ask(&mut session), "HELLO");
            say(&mut session, &[role]);
            let asked = ask(&mut session);
            assert!(asked.starts_with(if has_begun { "XINFO" } else { "XREAD" }), "{asked}");
            say(&mut session, &[if has_begun { described(9, 10) } else { NOTHING.to_owned() }.as_str()]);
            assert_eq!(session.has_begun(), has_begun);
        }
    }
}
