#![allow(clippy::unwrap_used)]
use super::*;

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
        member.leases.take_changes();
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
    Value::Array(vec![Value::Int(epoch as i64), text(""), text("0-0"), text("")])
}

fn list_of(released: i64, members: &[&str]) -> Value {
    Value::Array([Value::Int(released)].into_iter().chain(members.iter().map(|name| text(name))).collect())
}

const DONE: Value = Value::Int(1);

/// Another member owns it.
fn anothers() -> Value {
    text("b")
}

#[test]
fn what_is_committed_while_a_lease_ends_is_fenced() {
    let mut member = Member::of(1);
    let first = member.hands_out(0, 3, 3);
    member.hands_out(0, 5, 2);
    member.leases.commit(first, 3, None);
    member.leases.end(member.now);
    let release = member.sends();
    let second = Ticket { number: 1, ..first };
    member.leases.commit(second, 2, None);
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
    member.leases.returned(release);
    assert!(!member.leases.is_valid(ticket, member.now));
}

#[test]
fn each_entry_whose_commit_comes_too_late_counts_once() {
    let mut member = Member::of(1);
    let (first, second) = (member.hands_out(0, 3, 3), member.hands_out(0, 6, 3));
    member.leases.commit(first, 3, Some((place(1), 2)));
    let keep = member.sends();
    member.gets(&keep, &anothers());
    assert_eq!(member.counts(), [0, 1, 0, 0]);
    for (row, left) in [(4, 2), (5, 1), (5, 1), (4, 2)] {
        member.leases.commit(second, 3, Some((place(row), left)));
    }
    assert_eq!(member.counts(), [0, 5, 0, 0], "those of the batch before it, too");
    [(); 2].map(|()| member.leases.commit(second, 3, None));
    member.leases.commit(first, 3, None);
    assert_eq!(member.counts(), [0, 6, 0, 0]);
}
