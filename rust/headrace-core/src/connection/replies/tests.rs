//! Replies of every form, whole and in pieces, and bytes that are no replies.

use super::*;
use proptest::prelude::*;

#[derive(Debug, PartialEq, Eq, Clone)]
enum Owned {
    Id(u64, u64),
    Nil,
    Error(Vec<u8>),
}

impl Owned {
    fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Id(ms, seq) => {
                let id = format!("{ms}-{seq}");
                format!("${}\r\n{id}\r\n", id.len()).into_bytes()
            }
            Self::Nil => b"$-1\r\n".to_vec(),
            Self::Error(text) => [b"-", text.as_slice(), b"\r\n"].concat(),
        }
    }
}

fn feed(buffer: &mut ReplyBuffer, bytes: &[u8], seen: &mut Vec<Owned>) -> Result<(), Violation> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let space = buffer.space();
        let count = rest.len().min(space.len());
        space[..count].copy_from_slice(&rest[..count]);
        buffer.filled(count);
        rest = &rest[count..];
        while let Some(reply) = buffer.next(Expect::EntryId)? {
            match reply {
                Reply::Ids { first, count } => {
                    seen.extend((0..count).map(|more| Owned::Id(first.ms, first.seq + more)));
                }
                Reply::Nil => seen.push(Owned::Nil),
                Reply::Error(line) => seen.push(Owned::Error(line.to_vec())),
                Reply::Run(_) | Reply::Acknowledged { .. } | Reply::Status(_) => {
                    unreachable!("an entry ID is expected")
                }
            }
        }
    }
    Ok(())
}

fn replies() -> impl Strategy<Value = Vec<Owned>> {
    let one = prop_oneof![
        4 => (any::<u64>(), any::<u64>()).prop_map(|(ms, seq)| vec![Owned::Id(ms, seq)]),
        // Like the answers of busy servers: one sequence number after the other, with more digits now and then.
        16 => (prop_oneof![7..9_u64, Just(u64::MAX)], 0..1_200_u64, 1..120_u64)
            .prop_map(|(ms, seq, count)| (seq..seq + count).map(|seq| Owned::Id(ms, seq)).collect()),
        1 => (0..5_u64).prop_map(|more| (u64::MAX - 5..=u64::MAX - more).map(|seq| Owned::Id(1, seq)).collect()),
        1 => Just(vec![Owned::Nil]),
        2 => "[A-Z]{1,9} [ -~]{0,60}".prop_map(|text| vec![Owned::Error(text.into_bytes())]),
        1 => (20_000..65_000_usize).prop_map(|length| vec![Owned::Error(vec![b'x'; length])]),
    ];
    prop::collection::vec(one, 0..40).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn replies_are_parsed_as_they_were_encoded_however_the_bytes_are_split(
        expected in replies(), cuts in prop::collection::vec(1..5_000_usize, 1..50)
    ) {
        let bytes: Vec<u8> = expected.iter().flat_map(Owned::to_bytes).collect();
        let (mut buffer, mut seen, mut at) = (ReplyBuffer::new(), Vec::new(), 0);
        for cut in cuts.iter().cycle() {
            let end = bytes.len().min(at + cut);
            feed(&mut buffer, &bytes[at..end], &mut seen).unwrap();
            at = end;
            if at == bytes.len() { break }
        }
        prop_assert_eq!(seen, expected);
        prop_assert_eq!(buffer.unread(), 0);
    }

    #[test]
    fn no_bytes_make_the_reply_buffer_panic_or_stall(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = feed(&mut ReplyBuffer::new(), &bytes, &mut Vec::new());
    }
}

#[test]
fn other_replies_to_xadd_are_violations() {
    for bytes in [
        &b"+OK\r\n"[..],
        b":1\r\n",
        b"*0\r\n",
        b"_\r\n",
        b">2\r\n",
        b"$3\r\nabc\r\n",
        b"$-2\r\n",
        b"$9999\r\n",
        b"$\r\n",
        b"$x\r\n",
        b"$3\r\n1-2xx",
        b"$0\r\n\r\n",
        b"$23\r\n18446744073709551616-00\r\n",
        b"$99999999999999999999999\r\n",
        b"-ERR a\rb",
        b"\r\n",
        b"$3\r\n1-\r\r\n",
        b"$4\r\n1--2\r\n",
    ] {
        let mut seen = Vec::new();
        assert!(
            feed(&mut ReplyBuffer::new(), bytes, &mut seen).is_err(),
            "{:?} gave {seen:?}",
            String::from_utf8_lossy(bytes)
        );
        assert!(seen.is_empty());
    }
    assert!(feed(&mut ReplyBuffer::new(), &vec![b'-'; MAX_LINE], &mut Vec::new()).is_err());
}

#[test]
fn the_buffer_has_room_after_the_longest_run() {
    let digits = |marker, number| format!("{marker}{number:020}\r\n");
    let id = digits('$', 41) + &format!("{:020}-{:020}\r\n", 7, 1);
    let start = digits('*', 1_003) + &digits(':', 0) + &digits('$', 1_024) + &"x".repeat(1_024) + "\r\n";
    let start = start + &digits(':', 1_000);
    let mut buffer = ReplyBuffer::new();
    let feed = |buffer: &mut ReplyBuffer, text: &str| {
        let space = buffer.space();
        space[..text.len()].copy_from_slice(text.as_bytes());
        buffer.filled(text.len());
    };
    feed(&mut buffer, &(start + &id.repeat(999)));
    assert_eq!(buffer.next(Expect::ScriptRun { has_source: true }), Ok(None));
    feed(&mut buffer, &id);
    assert!(
        matches!(buffer.next(Expect::ScriptRun { has_source: true }), Ok(Some(Reply::Run(run))) if run.appended == 1_000)
    );
    feed(&mut buffer, &format!("*4\r\n:0\r\n$0\r\n\r\n:1\r\n${}", "1".repeat(40)));
    assert!(buffer.next(Expect::ScriptRun { has_source: true }).is_err(), "a length without an end is not waited for");
}

#[test]
fn counts_are_read_where_wait_is_expected_however_the_bytes_are_split() {
    let run: &[u8] = b"*4\r\n:1\r\n$0\r\n\r\n:1\r\n$3\r\n7-1\r\n";
    let entry: &[u8] = b"$3\r\n7-1\r\n";
    let counts: [(&[u8], u64, u64); 3] = [(b":12\r\n", 0, 12), (b"*2\r\n:1\r\n:0\r\n", 1, 0), (b":0\r\n", 0, 0)];
    for (other, expect) in [(run, Expect::ScriptRun { has_source: true }), (entry, Expect::EntryId)] {
        for (count, its_local, its_replicas) in counts {
            let expects = [expect, Expect::Wait, Expect::Wait, expect];
            let bytes = [other, count, b"-ERR no\r\n", other].concat();
            for cut in 0..bytes.len() {
                let mut buffer = ReplyBuffer::new();
                let mut seen = Vec::new();
                for part in [&bytes[..cut], &bytes[cut..]] {
                    buffer.space()[..part.len()].copy_from_slice(part);
                    buffer.filled(part.len());
                    while seen.len() < expects.len()
                        && let Some(reply) = buffer.next(expects[seen.len()]).unwrap()
                    {
                        seen.push(match reply {
                            Reply::Acknowledged { local, replicas } => Some((local, replicas)),
                            _ => None,
                        });
                    }
                }
                assert_eq!(seen, [None, Some((its_local, its_replicas)), None, None], "{expect:?} {cut}");
            }
        }
    }
}

#[test]
fn other_replies_to_wait_are_violations() {
    for bytes in [
        &b":\r\n"[..],
        b":-1\r\n",
        b":x\r\n",
        b"*1\r\n:1\r\n",
        b"*2\r\n$1\r\n1\r\n",
        b"*2\r\n:1\r\n+1\r\n",
        b"*3\r\n",
        b"$3\r\n7-1\r\n",
        b"*4\r\n:1\r\n$0\r\n\r\n:1\r\n$3\r\n7-1\r\n",
    ] {
        let mut buffer = ReplyBuffer::new();
        buffer.space()[..bytes.len()].copy_from_slice(bytes);
        buffer.filled(bytes.len());
        assert!(buffer.next(Expect::Wait).is_err(), "{}", String::from_utf8_lossy(bytes));
    }
}

#[test]
fn the_length_of_replies_to_runs_is_learned_from_the_shorter_of_the_last_two() {
    let run = |ids: &str| format!("*5\r\n:0\r\n$0\r\n\r\n:2\r\n{ids}{ids}");
    let (short, long) = (run("$3\r\n1-1\r\n"), run("$23\r\n1795324724029-123456789\r\n"));
    let mut buffer = ReplyBuffer::new();
    let mut feed = |reply: &str| {
        buffer.space()[..reply.len()].copy_from_slice(reply.as_bytes());
        buffer.filled(reply.len());
        assert!(matches!(buffer.next(Expect::ScriptRun { has_source: false }), Ok(Some(Reply::Run(_)))), "{reply}");
        buffer.still_to_come(11) - 1
    };
    assert_eq!(feed(&long), 0, "one reply says little");
    assert_eq!(feed(&long), 10 * (long.len() * 3 / 4));
    assert_eq!(feed(&short), 10 * (short.len() * 3 / 4));
    assert_eq!(feed(&long), 10 * (short.len() * 3 / 4));
}
