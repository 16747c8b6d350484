#![allow(clippy::unwrap_used, clippy::panic)]
use super::super::request::Moved;
use super::*;
use crate::error::code;

const LEASE: Duration = Duration::from_secs(10);

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn place(number: u64) -> Place {
    Place { id: EntryId { ms: number, seq: 0 }, is_entry: true, added: Some(number), removed: None }
}

fn text(text: &str) -> Value {
    Value::BulkString(text.as_bytes().to_vec())
}

/// A member of this number of streams, of one server, and its clock.
struct Member {
    leases: Leases,
    line: Vec<usize>,
    now: Duration,
}

impl Member {
    /// A member that is alone, and knows it.
    fn alone(streams: usize) -> Self {
        let names = LeaseNames {
            group: b"g".to_vec(),
            member: b"a".to_vec(),
            instance: b"i".to_vec(),
            lease: LEASE,
            begins_after: "0-0".to_owned(),
            creates: true,
            batch: 8,
            moves: Some((2, b"dead".to_vec())),
            durability: None,
        };
        let mut member = Self { leases: Leases::new(names, streams, 0), line: (0..streams).collect(), now: at(1_000) };
        member.beats(&["a"]);
        member
    }

    /// One that owns this number of streams, the stream `n` with the epoch `n + 1`.
    fn of(streams: usize) -> Self {
        let mut member = Self::alone(streams);
        for _ in 0..streams {
            let request = member.sends();
            member.gets(&request, &taken(request.stream as u64 + 1));
        }
        member.leases.take_changes(member.now);
        member
    }

    /// The next command, which there must be.
    fn sends(&mut self) -> Request {
        let (left, request) = (self.leases.left(&self.line, self.now), self.leases.take(&self.line, self.now));
        assert!(left.is_zero(), "it has nothing to do for {left:?}");
        request.unwrap()
    }

    /// The time until it sends something.
    fn rests(&mut self) -> Duration {
        assert_eq!(self.leases.take(&self.line, self.now), None);
        self.leases.left(&self.line, self.now)
    }

    fn gets(&mut self, request: &Request, reply: &Value) {
        self.leases.replied(request, reply, self.now).unwrap();
    }

    /// It says that it is there, and sees these members.
    fn beats(&mut self, members: &[&str]) {
        let request = self.sends();
        assert!(matches!(request.action, Action::Beat { .. }), "{request:?}");
        self.gets(&request, &list_of(0, members));
    }

    fn hands_out(&mut self, stream: usize, up_to: u64, entries: u64) -> Ticket {
        let epoch = stream as u64 + 1;
        match self.leases.hand_out(stream, epoch, place(up_to), entries, self.now) {
            HandOut::Now(ticket) => ticket,
            other => panic!("{other:?}"),
        }
    }

    /// The counts: committed, fenced, unknown, pending.
    fn counts(&self) -> [u64; 4] {
        let report = self.leases.report();
        [report.committed, report.fenced, report.unknown, report.pending]
    }
}

fn taken(epoch: u64) -> Value {
    taken_in_doubt(epoch, 0, 0)
}

fn taken_in_doubt(epoch: u64, limit: i64, failures: i64) -> Value {
    let epoch = Value::Int(i64::try_from(epoch).unwrap());
    let doubt = [Value::Int(limit), Value::Int(failures), text("why"), text("1-0")];
    Value::Array([epoch, text(""), text("0-0"), text("")].into_iter().chain(doubt).collect())
}

fn list_of(released: i64, members: &[&str]) -> Value {
    Value::Array([Value::Int(released)].into_iter().chain(members.iter().map(|name| text(name))).collect())
}

const DONE: Value = Value::Int(1);
const PINNED_TO_ANOTHER: Value = Value::Int(3);

/// Another member owns it.
fn anothers() -> Value {
    text("b")
}

#[test]
fn what_is_committed_while_a_lease_ends_is_fenced() {
    let mut member = Member::of(1);
    let first = member.hands_out(0, 3, 3);
    member.hands_out(0, 5, 2);
    member.leases.commit(first, None);
    member.leases.end(member.now);
    let release = member.sends();
    let second = Ticket { number: 1, ..first };
    member.leases.commit(second, None);
    member.gets(&release, &DONE);
    assert_eq!(member.counts(), [3, 2, 0, 0]);
}

#[test]
fn a_batch_is_not_valid_once_its_lease_was_given_up() {
    let mut member = Member::of(1);
    let ticket = member.hands_out(0, 3, 3);
    assert!(member.leases.is_valid(ticket, member.now));
    member.leases.end(member.now);
    let release = member.sends();
    assert!(!member.leases.is_valid(ticket, member.now), "the server may have given it to another member");
    member.leases.returned(&release);
    assert!(!member.leases.is_valid(ticket, member.now));
}

#[test]
fn each_entry_whose_commit_comes_too_late_counts_once() {
    let mut member = Member::of(1);
    let (first, second) = (member.hands_out(0, 3, 3), member.hands_out(0, 6, 3));
    member.leases.commit(first, Some((place(1), 2)));
    let keep = member.sends();
    member.gets(&keep, &anothers());
    assert_eq!(member.counts(), [0, 1, 0, 0]);
    for (row, left) in [(4, 2), (5, 1), (5, 1), (4, 2)] {
        member.leases.commit(second, Some((place(row), left)));
    }
    assert_eq!(member.counts(), [0, 5, 0, 0], "those of the batch before it, too");
    member.leases.commit(second, None);
    member.leases.commit(second, None);
    member.leases.commit(first, None);
    assert_eq!(member.counts(), [0, 6, 0, 0]);
}

#[test]
fn others_learn_at_once_what_is_given_up_while_a_member_says_that_it_is_there() {
    let mut member = Member::of(2);
    member.now += at(600);
    let beat = member.sends();
    member.gets(&beat, &list_of(0, &["a", "b"]));
    let release = member.sends();
    member.now += at(600);
    let beat = member.sends();
    member.gets(&release, &DONE);
    assert_eq!(beat.action, Action::Beat { lease: LEASE, released: 0 });
    member.gets(&beat, &list_of(0, &["a", "b"]));
    assert_eq!(member.sends().action, Action::Beat { lease: LEASE, released: 1 });
}

#[test]
fn a_member_leaves_as_soon_as_it_has_given_everything_up() {
    let mut member = Member::of(1);
    member.now += at(600);
    let beat = member.sends();
    member.leases.end(member.now);
    let release = member.sends();
    member.gets(&release, &DONE);
    member.gets(&beat, &list_of(0, &["a"]));
    let leave = member.sends();
    assert_eq!(leave.action, Action::Beat { lease: Duration::ZERO, released: 1 });
    assert!(!member.leases.has_ended());
    member.gets(&leave, &list_of(1, &[]));
    assert!(member.leases.has_ended());
    assert_eq!(member.rests(), Duration::MAX);
}

#[test]
fn a_member_that_ends_gives_up_what_it_may_have_taken_unknowingly() {
    let mut member = Member::alone(1);
    let take = member.sends();
    member.leases.returned(&take);
    member.leases.end(member.now);
    let take = member.sends();
    assert!(matches!(take.action, Action::Take { .. }), "{take:?}");
    member.gets(&take, &taken(1));
    let release = member.sends();
    assert_eq!(release.action, Action::Release { epoch: 1, changed: None });
    member.gets(&release, &DONE);
    assert!(member.leases.take_changes(member.now).is_empty(), "the caller has not seen it");
    assert_eq!(member.sends().action, Action::Beat { lease: Duration::ZERO, released: 1 });
}

#[test]
fn a_take_that_was_refused_has_taken_nothing() {
    let mut member = Member::alone(1);
    let take = member.sends();
    member.leases.refused(&take, Error::state("no"), member.now);
    member.leases.end(member.now);
    assert_eq!(member.sends().action, Action::Beat { lease: Duration::ZERO, released: 0 });
}

#[test]
fn a_lease_that_lapsed_while_it_was_given_up_ends_at_the_server() {
    let mut member = Member::of(1);
    member.hands_out(0, 3, 3);
    member.now += at(4_000);
    let beat = member.sends();
    member.gets(&beat, &list_of(0, &["a"]));
    let keep = member.sends();
    member.leases.end(member.now);
    member.now += at(6_000);
    member.gets(&keep, &DONE);
    let beat = member.sends();
    member.gets(&beat, &list_of(0, &["a"]));
    let release = member.sends();
    assert_eq!(release.action, Action::Release { epoch: 1, changed: None });
    member.gets(&release, &DONE);
    assert!(matches!(member.sends().action, Action::Beat { lease: Duration::ZERO, .. }));
}

#[test]
fn only_a_process_that_begins_takes_leases_of_its_name() {
    let mut member = Member::alone(2);
    let take = member.sends();
    assert_eq!(take.action, Action::Take { from_namesake: true, only_pinned: false });
    member.gets(&take, &taken(1));
    let take = member.sends();
    member.gets(&take, &Value::Array(vec![Value::Int(0), Value::Int(20_000), text("b")]));
    // It was stopped, and a later process of its name has its lease by now.
    member.now += at(30_000);
    let (beat, keep, take) = (member.sends(), member.sends(), member.sends());
    assert!(matches!(beat.action, Action::Beat { .. }) && matches!(keep.action, Action::Keep { .. }));
    assert_eq!(take.action, Action::Take { from_namesake: false, only_pinned: false });
    member.gets(&keep, &text("a"));
    assert!(member.leases.has_namesake());
}

#[test]
fn what_the_caller_was_told_to_undo_comes_again() {
    let mut member = Member::of(1);
    let (first, second) = (member.hands_out(0, 3, 3), member.hands_out(0, 5, 2));
    member.now += at(4_000);
    let beat = member.sends();
    member.gets(&beat, &list_of(0, &["a"]));
    let keep = member.sends();
    // The process is stopped. When it goes on, the caller is faster than the keeper.
    let sent = member.now;
    member.now += at(7_000);
    assert!(!member.leases.check(first, member.now));
    member.leases.replied(&keep, &DONE, sent).unwrap();
    assert!(!member.leases.check(second, member.now), "a commit of it would include the first one");
    assert_eq!(member.leases.take_changes(member.now), [Change::Lost { stream: 0 }]);
}

#[test]
fn a_commit_under_way_counts_when_its_lease_is_renounced() {
    for reply in [None, Some(DONE), Some(anothers())] {
        let mut member = Member::of(1);
        let ticket = member.hands_out(0, 3, 3);
        member.leases.commit(ticket, None);
        let keep = member.sends();
        member.leases.renounce(0, 1, member.now);
        assert!(!member.leases.is_settled(), "the reply says what became of it");
        match &reply {
            None => member.leases.returned(&keep),
            Some(reply) => member.gets(&keep, reply),
        }
        let counts = member.counts();
        let expected = match reply {
            None => [0, 0, 3, 0],
            Some(DONE) => [3, 0, 0, 0],
            Some(_) => [0, 3, 0, 0],
        };
        assert_eq!(counts, expected);
    }
}

#[test]
fn a_lease_that_lapsed_ends_at_the_server_when_the_member_ends() {
    let mut member = Member::of(1);
    member.leases.renounce(0, 1, member.now);
    member.leases.end(member.now);
    member.now += TRIES_EVERY;
    let beat = member.sends();
    member.gets(&beat, &list_of(0, &["a"]));
    let take = member.sends();
    assert_eq!(take.action, Action::Take { from_namesake: false, only_pinned: false });
    member.gets(&take, &taken(2));
    assert_eq!(member.sends().action, Action::Release { epoch: 2, changed: None });
}

#[test]
fn a_member_that_ends_waits_for_the_servers_that_it_can_reach() {
    let mut member = Member::of(2);
    let away = Fault::new(code::CONNECT, "no route");
    member.leases.faulted(&[1], &away, member.now);
    assert_eq!(member.leases.last_outage(Duration::ZERO, member.now), None, "it has committed nothing");
    member.leases.end(member.now);
    let (first, second) = (member.sends(), member.sends());
    member.leases.returned(&second);
    assert_eq!((first.stream, second.stream), (0, 1));
    assert_eq!(member.leases.last_outage(Duration::ZERO, member.now), None, "the first server replies");
    member.gets(&first, &DONE);
    assert_eq!(member.leases.last_outage(Duration::ZERO, member.now), Some(&away));
    assert_eq!(member.leases.last_outage(at(1), member.now), None, "a policy allows a wait");
    member.leases.reached(&[1]);
    assert_eq!(member.leases.last_outage(Duration::ZERO, member.now), None);
}

#[test]
fn a_commit_waits_for_its_server_and_not_for_others() {
    let mut member = Member::of(2);
    let ticket = member.hands_out(0, 3, 3);
    member.leases.faulted(&[1], &Fault::new(code::CONNECT, "no route"), member.now);
    member.leases.commit(ticket, None);
    assert_eq!(member.leases.last_outage(Duration::ZERO, member.now), None);
    member.leases.faulted(&[0], &Fault::new(code::CONNECT, "no route"), member.now);
    assert!(member.leases.last_outage(Duration::ZERO, member.now).is_some());
}

#[test]
fn a_commit_is_unconfirmed_until_its_reply() {
    let mut member = Member::of(1);
    let ticket = member.hands_out(0, 3, 3);
    member.leases.commit(ticket, None);
    assert_eq!(member.leases.unconfirmed(), 3);
    let keep = member.sends();
    assert_eq!(member.leases.unconfirmed(), 3);
    member.gets(&keep, &DONE);
    assert_eq!(member.leases.unconfirmed(), 0);
}

#[test]
fn what_is_committed_of_several_leases_too_late_counts_once() {
    let mut member = Member::of(1);
    let mut tickets = Vec::new();
    for epoch in 1..=20 {
        member.leases.take_changes(member.now);
        let HandOut::Now(ticket) = member.leases.hand_out(0, epoch, place(3), 3, member.now) else { panic!("{epoch}") };
        tickets.push(ticket);
        member.leases.renounce(0, epoch, member.now);
        member.now += TRIES_EVERY;
        while let Some(request) = member.leases.take(&member.line, member.now) {
            let is_beat = matches!(request.action, Action::Beat { .. });
            member.gets(&request, &if is_beat { list_of(0, &["a"]) } else { taken(epoch + 1) });
        }
    }
    for _ in 0..2 {
        for ticket in &tickets {
            member.leases.commit(*ticket, None);
        }
    }
    let fenced = member.counts()[1];
    assert_eq!(fenced, 8 * 3, "of the last leases, each once");
}

#[test]
fn a_commit_that_was_not_executed_is_fenced_when_its_lease_is_renounced() {
    let mut member = Member::of(1);
    let ticket = member.hands_out(0, 3, 3);
    member.leases.commit(ticket, None);
    let keep = member.sends();
    member.leases.renounce(0, 1, member.now);
    member.leases.unsent(&keep);
    assert_eq!(member.counts(), [0, 3, 0, 0]);
}

/// The entry `number` of a batch of as many entries as its last one says.
fn entry(number: u64, last: u64) -> Failed {
    let before = (number > 1).then(|| (place(number - 1), last + 1 - number));
    Failed { before, entry: Some((place(number).id, place(number), last - number)), reason: "why".into(), delay: None }
}

fn changed(request: &Request) -> &Changed {
    match &request.action {
        Action::Keep { changed: Some(changed), .. } | Action::Release { changed: Some(changed), .. } => changed,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_before_a_failure_is_committed_and_the_rest_comes_again() {
    let mut member = Member::of(1);
    let (first, second) = (member.hands_out(0, 3, 3), member.hands_out(0, 6, 3));
    let third = member.hands_out(0, 9, 3);
    let failed = Failed { before: Some((place(4), 2)), entry: Some((place(5).id, place(5), 1)), ..entry(1, 1) };
    assert_eq!(member.leases.fail(second, failed.clone(), member.now), AfterFailure::Again(5));
    assert_eq!(member.leases.hand_out(0, 1, place(12), 3, member.now), HandOut::Never);
    assert_eq!(member.leases.fail(second, failed, member.now), AfterFailure::Nothing);
    member.leases.commit(third, None);
    let keep = member.sends();
    let Changed { commit: Some(commit), doubt: Some(doubt), .. } = changed(&keep) else { panic!("{keep:?}") };
    assert_eq!((commit.place, commit.entries, doubt.failures, doubt.limit), (place(4), 4, 1, 0));
    assert_eq!(member.leases.fail(first, entry(1, 3), member.now), AfterFailure::IsCommitted);
    member.gets(&keep, &DONE);
    assert_eq!(member.leases.take_changes(member.now), [Change::Failed { stream: 0 }]);
    member.now += at(100);
    let start = Start::After(place(4));
    assert_eq!(member.leases.take_changes(member.now), [Change::Reads { stream: 0, epoch: 1, start }]);
    assert!(member.leases.take_changes(member.now).is_empty());
    let report = member.leases.report();
    assert_eq!((report.committed, report.failed, report.repeated, report.pending), (4, 1, 5, 0));
}

#[test]
fn an_entry_that_failed_too_often_is_moved_once() {
    let mut member = Member::of(1);
    for _ in 0..2 {
        member.now += at(1_000);
        member.leases.take_changes(member.now);
        let ticket = member.hands_out(0, 3, 3);
        member.leases.fail(ticket, entry(1, 3), member.now);
    }
    assert!(member.leases.has_news(member.now), "it is not the entry behind it that failed");
    member.beats(&["a"]);
    let keep = member.sends();
    let moved = changed(&keep).commit.as_ref().unwrap().moved.clone();
    assert_eq!(moved, [Moved { number: 1, id: place(1).id, reason: "why".into(), failures: 2 }]);
    member.leases.returned(&keep);
    let keep = member.sends();
    assert_eq!((changed(&keep).number, changed(&keep).commit.as_ref().unwrap().moved.clone()), (2, moved));
    member.gets(&keep, &DONE);
    let report = member.leases.report();
    assert_eq!((report.committed, report.dead), (1, 1));
}

#[test]
fn entries_that_fail_together_come_in_halves() {
    let mut member = Member::of(1);
    let mut limits = Vec::new();
    for entries in [8, 4, 2] {
        member.now += at(1_000);
        member.leases.take_changes(member.now);
        let ticket = member.hands_out(0, entries, entries);
        let failed = Failed { before: None, entry: None, reason: "why".into(), delay: None };
        member.leases.fail(ticket, failed, member.now);
        limits.push(member.leases.limit(0));
    }
    assert_eq!(limits, [4, 2, 1]);
}

#[test]
fn an_entry_is_alone_in_hand_only_once_the_server_knows_and_has_what_is_before_it() {
    let mut member = Member::alone(1);
    let take = member.sends();
    member.gets(&take, &taken_in_doubt(1, 1, 1));
    member.now += at(100);
    member.leases.take_changes(member.now);
    let mut tickets = Vec::new();
    for number in 1..=3 {
        assert_eq!(member.leases.hand_out(0, 1, place(number), 1, member.now), HandOut::Later, "{number}");
        let keep = member.sends();
        if number > 1 {
            assert!(changed(&keep).commit.is_some());
            member.gets(&keep, &DONE);
            assert_eq!(member.leases.hand_out(0, 1, place(number), 1, member.now), HandOut::Later);
            let keep = member.sends();
            assert!(changed(&keep).doubt.as_ref().unwrap().is_alone);
            member.gets(&keep, &DONE);
        } else {
            member.gets(&keep, &DONE);
        }
        tickets.push(member.hands_out(0, number, 1));
        assert_eq!(member.leases.limit(0), 1);
        member.leases.commit(tickets[tickets.len() - 1], None);
    }
    assert_eq!(member.leases.limit(0), u64::MAX, "all that were in hand when it failed are committed");
}

#[test]
fn an_entry_whose_processes_ended_is_moved_before_it_is_returned() {
    let mut member = Member::alone(1);
    let take = member.sends();
    member.gets(&take, &taken_in_doubt(1, 1, 2));
    member.now += at(1_000);
    member.leases.take_changes(member.now);
    assert_eq!(member.leases.limit(0), 1);
    assert_eq!(member.leases.hand_out(0, 1, place(1), 1, member.now), HandOut::Moved);
    member.beats(&["a"]);
    let keep = member.sends();
    assert_eq!(changed(&keep).commit.as_ref().unwrap().moved.len(), 1);
    assert_eq!(changed(&keep).doubt.as_ref().unwrap().failures, 0);
}

/// Not granted: who has it, or alone may take it.
fn refused(why: i64, who: &str) -> Value {
    Value::Array(vec![Value::Int(why), Value::Int(if why < 0 { 0 } else { 5_000 }), text(who)])
}

#[test]
fn an_owner_gives_up_what_is_pinned_to_another_member() {
    let mut member = Member::of(2);
    let ticket = member.hands_out(1, 3, 3);
    member.now += at(4_000);
    let (beat, first, second) = (member.sends(), member.sends(), member.sends());
    member.gets(&beat, &list_of(0, &["a"]));
    member.gets(&first, &DONE);
    member.gets(&second, &PINNED_TO_ANOTHER);
    assert_eq!(member.leases.take_changes(member.now), [Change::Revoked { stream: 1 }]);
    assert_eq!(member.leases.assignment().collect::<Vec<_>>(), [0]);
    member.leases.commit(ticket, None);
    let release = member.sends();
    assert!(matches!(release.action, Action::Release { epoch: 2, changed: Some(_) }), "{release:?}");
    member.gets(&release, &PINNED_TO_ANOTHER);
    assert!(matches!(member.sends().action, Action::Beat { released: 1, .. }));
    assert_eq!(member.counts(), [3, 0, 0, 0]);
}

#[test]
fn a_member_has_what_is_pinned_to_it_in_addition_to_its_share() {
    let mut member = Member::alone(4);
    member.now += at(500);
    let beat = member.sends();
    member.gets(&beat, &list_of(0, &["a", "b"]));
    for _ in 0..2 {
        let take = member.sends();
        member.gets(&take, &taken(take.stream as u64 + 1));
    }
    member.now += at(500);
    let beat = member.sends();
    // The stream 3 is pinned to it, which has its share.
    member.gets(&beat, &list_of(PINS_CHANGED, &["a", "b"]));
    for _ in 0..2 {
        let keep = member.sends();
        assert!(matches!(keep.action, Action::Keep { .. }), "{keep:?}");
        member.gets(&keep, &DONE);
    }
    for (stream, reply) in [(2, refused(-1, "")), (3, refused(0, "b"))] {
        let take = member.sends();
        assert_eq!((take.stream, &take.action), (stream, &Action::Take { from_namesake: true, only_pinned: true }));
        member.gets(&take, &reply);
    }
    // The owner has given it up.
    member.now += at(500);
    let beat = member.sends();
    member.gets(&beat, &list_of(PINS_CHANGED + 1, &["a", "b"]));
    let take = member.sends();
    assert_eq!((take.stream, &take.action), (3, &Action::Take { from_namesake: true, only_pinned: false }));
    member.gets(&take, &taken(4));
    assert_eq!(member.leases.assignment().collect::<Vec<_>>(), [0, 1, 3]);
    // Its share of the three others is two or one: it never gives up what is pinned to it.
    member.now += at(500);
    let beat = member.sends();
    member.gets(&beat, &list_of(PINS_CHANGED + 1, &["Z", "a", "b"]));
    assert_eq!(member.leases.assignment().collect::<Vec<_>>(), [0, 3]);
}

#[test]
fn a_command_that_was_sent_before_pins_changed_does_not_tell_them() {
    let mut member = Member::of(1);
    member.now += at(4_000);
    let (beat, keep) = (member.sends(), member.sends());
    member.now += at(1);
    member.gets(&beat, &list_of(PINS_CHANGED, &["a"]));
    member.gets(&keep, &DONE);
    let keep = member.sends();
    member.gets(&keep, &PINNED_TO_ANOTHER);
    assert_eq!(member.leases.take_changes(member.now), [Change::Revoked { stream: 0 }]);
}

#[test]
fn a_lease_that_is_renounced_while_it_is_given_up_counts_once() {
    let mut member = Member::of(1);
    member.leases.end(member.now);
    let release = member.sends();
    assert!(matches!(release.action, Action::Release { .. }), "{release:?}");
    member.leases.renounce(0, 1, member.now);
    member.gets(&release, &DONE);
    let report = member.leases.report();
    assert_eq!((report.streams_taken, report.streams_given_up, report.streams_lost), (1, 0, 1));
}

#[test]
fn a_commit_needs_its_replicas_also_while_the_member_ends() {
    let mut member = Member::of(1);
    let ticket = member.hands_out(0, 3, 3);
    member.leases.commit(ticket, None);
    let keep = member.sends();
    member.leases.end(member.now);
    assert!(member.leases.needs_proof(&keep));
    member.leases.unproven(&keep, Error::state("too few replicas"), member.now);
    assert_eq!(member.counts(), [0, 0, 0, 0]);
    member.now += TRIES_EVERY;
    member.beats(&["a"]);
    let release = member.sends();
    assert!(changed(&release).commit.is_some() && member.leases.needs_proof(&release));
}

#[test]
fn an_entry_is_not_moved_for_one_that_was_deleted() {
    let mut member = Member::alone(1);
    let take = member.sends();
    // The entry 1-0 has failed often enough.
    member.gets(&take, &taken_in_doubt(1, 1, 2));
    member.now += at(1_000);
    member.leases.take_changes(member.now);
    assert_eq!(member.leases.hand_out(0, 1, place(2), 1, member.now), HandOut::Later);
    member.beats(&["a"]);
    let keep = member.sends();
    let doubt = changed(&keep).doubt.as_ref().unwrap();
    assert_eq!((doubt.failures, doubt.failed, doubt.is_alone), (0, Some(place(2).id), true));
    member.gets(&keep, &DONE);
    member.hands_out(0, 2, 1);
}
