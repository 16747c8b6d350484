//! Replies as servers send them, whole and cut at each byte, and bytes that are no replies.

#![allow(clippy::unwrap_used)]

use super::*;

/// What a sink received, as text.
#[derive(Debug, Default, PartialEq, Eq, Clone)]
struct Told {
    lines: Vec<String>,
    entries: usize,
    /// After how many entries it is full.
    most: Option<usize>,
}

impl EntrySink for Told {
    fn stream(&mut self, key: &[u8]) {
        self.lines.push(format!("stream {}", key.escape_ascii()));
    }

    fn entry(&mut self, id: EntryId, fields: Option<usize>) {
        self.lines.push(format!("{id}: {fields:?}"));
    }

    fn field(&mut self, name: &[u8], value: &[u8]) {
        self.lines.push(format!("{}={}", name.escape_ascii(), value.escape_ascii()));
    }

    fn end(&mut self) {
        self.lines.push("end".to_owned());
        self.entries += 1;
    }

    fn is_full(&self) -> bool {
        self.most.is_some_and(|most| self.entries >= most)
    }
}

fn limits() -> Limits {
    Limits { entry_bytes: 4096, reply_entries: 10, fields: 8, streams: 2 }
}

/// Scans a reply that arrives in pieces; returns what the sink received and how many bytes belong to the reply. The result is the
/// same if the pieces are looked at ahead.
fn scan_pieces(
    shape: Shape,
    bytes: &[u8],
    pieces: impl IntoIterator<Item = usize> + Clone,
) -> Result<(Told, usize, bool), Wrong> {
    let scanned = scan_with(shape, bytes, pieces.clone(), false);
    assert_eq!(scan_with(shape, bytes, pieces, true), scanned);
    scanned
}

fn scan_with(
    shape: Shape,
    bytes: &[u8],
    pieces: impl IntoIterator<Item = usize>,
    looks: bool,
) -> Result<(Told, usize, bool), Wrong> {
    let (mut reply, mut told) = (StreamReply::new(shape, limits()), Told::default());
    let mut start = 0;
    let mut needed = 0;
    let mut end: usize = 0;
    for piece in pieces.into_iter().chain([bytes.len()]) {
        end = bytes.len().min(end + piece);
        let rest = if looks { reply.look_ahead(&bytes[start..end], &mut told) } else { None };
        let entries = told.entries as u64;
        let scanned = reply.scan(&bytes[start..end], &mut told)?;
        if let Some(rest) = rest {
            assert_eq!((told.entries as u64 - entries, scanned.done), (rest.entries, true));
            assert!(told.lines.iter().any(|line| line.starts_with(&format!("{}: ", rest.last))));
        }
        assert!(scanned.consumed == 0 || end - start >= needed, "it went on with {} of {needed}", end - start);
        start += scanned.consumed;
        if scanned.done {
            assert_eq!(scanned.needed, 0);
            return Ok((told, start, true));
        }
        assert!(scanned.needed > end - start, "it needs {} and has {}", scanned.needed, end - start);
        needed = scanned.needed;
    }
    Ok((told, start, false))
}

/// The lines of a reply: the same for the whole reply, for two pieces cut anywhere, and byte by byte.
fn told(shape: Shape, bytes: &[u8]) -> Vec<String> {
    let whole = scan_pieces(shape, bytes, [bytes.len()]).unwrap();
    assert_eq!((whole.1, whole.2), (bytes.len(), true), "{}", bytes.escape_ascii());
    for cut in 0..bytes.len() {
        assert_eq!(scan_pieces(shape, bytes, [cut]).unwrap(), whole, "cut at {cut}");
        let (before, consumed, done) = scan_pieces(shape, &bytes[..cut], [cut]).unwrap();
        assert!(!done && consumed <= cut && whole.0.lines.starts_with(&before.lines), "only {cut} bytes");
        assert!(before.lines.last().is_none_or(|last| last == "end" || last.starts_with("stream")), "half an entry");
    }
    assert_eq!(scan_pieces(shape, bytes, std::iter::repeat_n(1, bytes.len())).unwrap(), whole);
    let next = [bytes, b"*1\r\n"].concat();
    assert_eq!(scan_pieces(shape, &next, []).unwrap(), whole, "what follows belongs to the next reply");
    whole.0.lines
}

#[test]
fn a_range_reply_is_read_as_its_entries() {
    let reply = b"*3\r\n*2\r\n$15\r\n1795249090487-0\r\n*4\r\n$1\r\na\r\n$0\r\n\r\n$4\r\n\r\n*1\r\n$2\r\n\xff$\r\n\
        *2\r\n$3\r\n2-0\r\n*-1\r\n\
        *2\r\n$41\r\n18446744073709551615-18446744073709551615\r\n*2\r\n$1\r\nb\r\n$12\r\n0123456789ab\r\n";
    let lines = told(Shape::Entries, reply);
    let expected = [
        "1795249090487-0: Some(2)",
        "a=",
        r"\r\n*1=\xff$",
        "end",
        "2-0: None",
        "end",
        "18446744073709551615-18446744073709551615: Some(1)",
        "b=0123456789ab",
        "end",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn streams_have_a_key_and_entries() {
    let reply = b"*2\r\n\
        *2\r\n$6\r\norders\r\n*2\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n*2\r\n$3\r\n1-1\r\n*-1\r\n\
        *2\r\n$2\r\n\xff\n\r\n*0\r\n";
    let lines = told(Shape::Streams, reply);
    assert_eq!(lines, ["stream orders", "1-0: Some(1)", "a=b", "end", "1-1: None", "end", r"stream \xff\n"]);
}

#[test]
fn a_reply_without_entries_is_complete() {
    for reply in [&b"*0\r\n"[..], b"*-1\r\n", b"$-1\r\n"] {
        for shape in [Shape::Entries, Shape::Streams] {
            assert!(told(shape, reply).is_empty());
        }
    }
    assert_eq!(told(Shape::Streams, b"*1\r\n*2\r\n$1\r\ns\r\n*-1\r\n"), ["stream s"]);
    assert_eq!(told(Shape::Entries, b"*1\r\n*2\r\n$3\r\n1-0\r\n*0\r\n"), ["1-0: Some(0)", "end"]);
    assert_eq!(told(Shape::Entries, b"*1\r\n*2\r\n$3\r\n1-0\r\n$-1\r\n"), ["1-0: None", "end"]);
}

#[test]
fn an_error_is_returned_once_it_is_complete() {
    let reply = b"-NOGROUP No such key\r\n*1\r\n";
    for end in 0..22 {
        assert_eq!(scan_pieces(Shape::Streams, &reply[..end], [end]), Ok((Told::default(), 0, false)), "{end}");
    }
    assert_eq!(scan_pieces(Shape::Streams, reply, []), Err(Wrong::Error(1..20)));
    assert_eq!(&reply[1..20], b"NOGROUP No such key");
    let endless = [&b"-"[..], &vec![b'x'; 70_000]].concat();
    assert_eq!(scan_pieces(Shape::Streams, &endless, []), violation("a line of more than 64 KiB"));
}

#[allow(clippy::unnecessary_wraps)] // it is compared with results
fn violation<T>(text: &'static str) -> Result<T, Wrong> {
    Err(Wrong::Violation(Violation(text)))
}

#[test]
fn a_malformed_reply_is_refused() {
    let no_array = "something else where an array belongs";
    let no_bulk = "something else where a bulk string belongs";
    let no_id = "something else where an entry ID belongs";
    let too_large = "a bulk string that is larger than allowed";
    for (shape, reply, text) in [
        (Shape::Entries, &b"+OK\r\n"[..], no_array),
        (Shape::Entries, b":1\r\n", no_array),
        (Shape::Entries, b"\r\n", no_array),
        (Shape::Entries, b"%1\r\n", no_array),
        (Shape::Entries, b"$2\r\nab\r\n", "a reply that is not an array of entries"),
        (Shape::Entries, b"*x\r\n", "a length that is not a 64-bit number"),
        (Shape::Entries, b"*-2\r\n", "a length that is not a 64-bit number"),
        (Shape::Entries, b"*18446744073709551616\r\n", "a length that is not a 64-bit number"),
        (Shape::Entries, b"*1\n", "a number of more than 20 digits"),
        (Shape::Entries, b"*1\rx", "a line end without a line feed"),
        (Shape::Entries, b"*11\r\n", "a reply with more entries than were asked for"),
        (Shape::Entries, b"*1\r\n-ERR\r\n", no_array),
        (Shape::Entries, b"*1\r\n*3\r\n", "an entry that is not an array of an ID and fields"),
        (Shape::Entries, b"*1\r\n*-1\r\n", "an entry that is not an array of an ID and fields"),
        (Shape::Entries, b"*1\r\n*2\r\n:1\r\n", no_bulk),
        (Shape::Entries, b"*1\r\n*2\r\n$-1\r\n", "nil where a bulk string belongs"),
        (Shape::Entries, b"*1\r\n*2\r\n$1\r\n1\r\n", no_id),
        (Shape::Entries, b"*1\r\n*2\r\n$22\r\n18446744073709551616-0\r\n", no_id),
        (Shape::Entries, b"*1\r\n*2\r\n$4\r\n-1-0\r\n", no_id),
        (Shape::Entries, b"*1\r\n*2\r\n$900\r\n", no_id),
        (Shape::Entries, b"*1\r\n*2\r\n$4097\r\n", too_large),
        (Shape::Entries, b"*1\r\n*2\r\n$18446744073709551615\r\n", too_large),
        (Shape::Entries, b"*1\r\n*2\r\n$3\r\n1-0\r\n*3\r\n", "an entry with a name and no value"),
        (Shape::Entries, b"*1\r\n*2\r\n$3\r\n1-0\r\n*18\r\n", "an entry with more fields than allowed"),
        (Shape::Entries, b"*1\r\n*2\r\n$3\r\n1-0\r\n$1\r\n", "an entry without an array of fields"),
        (Shape::Entries, b"*1\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$-1\r\n", "nil where a bulk string belongs"),
        (Shape::Entries, b"*1\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$1\r\nab\r\n", "a bulk string without an end"),
        (Shape::Entries, b"*1\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$1\r\na\r\n*0\r\n", no_bulk),
        (Shape::Entries, b"*1\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$536870912\r\n", too_large),
        (Shape::Entries, b"*1\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$4066\r\n", "an entry that is larger than allowed"),
        (Shape::Streams, b"*3\r\n", "a reply with more streams than were asked for"),
        (Shape::Streams, b"*1\r\n*3\r\n", "a stream that is not an array of a key and entries"),
        (Shape::Streams, b"*1\r\n*2\r\n$-1\r\n", "nil where a bulk string belongs"),
        (Shape::Streams, b"*1\r\n*2\r\n$4095\r\n", too_large),
        (Shape::Streams, b"*1\r\n*2\r\n$1\r\ns\r\n$-1\r\n", no_array),
        (
            Shape::Streams,
            b"*2\r\n*2\r\n$1\r\ns\r\n*0\r\n*2\r\n$1\r\nt\r\n*11\r\n",
            "a reply with more entries than were asked for",
        ),
    ] {
        let reply = [reply, &[b'x'; 40]].concat();
        let shown = reply.escape_ascii();
        assert_eq!(scan_pieces(shape, &reply, []), violation(text), "{shown}");
        let one_by_one = scan_pieces(shape, &reply, std::iter::repeat_n(1, reply.len()));
        assert!(matches!(one_by_one, Err(Wrong::Violation(_))), "{one_by_one:?}: {shown}");
    }
}

#[test]
fn an_entry_may_reach_but_not_exceed_the_byte_limit() {
    let entry =
        |value: usize| [&b"*1\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$1\r\na\r\n$4063\r\n"[..], &vec![b'v'; value]].concat();
    let largest = [entry(4063), b"\r\n".to_vec()].concat();
    assert_eq!(largest.len() - b"*1\r\n".len(), limits().entry_bytes);
    assert_eq!(told(Shape::Entries, &largest).len(), 3);
    let small = Limits { entry_bytes: 4095, ..limits() };
    for end in [40, 4000, largest.len()] {
        let mut reply = StreamReply::new(Shape::Entries, small);
        assert!(matches!(reply.scan(&largest[..end], &mut Told::default()), Err(Wrong::Violation(_))), "{end}");
    }
    // Short parts are found on another path than long ones.
    let short = b"*1\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n*1\r\n";
    for (entry_bytes, is_taken) in [(31, true), (30, false)] {
        let mut reply = StreamReply::new(Shape::Entries, Limits { entry_bytes, ..limits() });
        assert_eq!(reply.scan(short, &mut Told::default()).is_ok(), is_taken);
    }
    let key = [&b"*1\r\n*2\r\n$200\r\n"[..], &[b'k'; 200], b"\r\n*0\r\n"].concat();
    assert_eq!(told(Shape::Streams, &key).len(), 1);
    let small = Limits { entry_bytes: 207, ..limits() };
    let refused = StreamReply::new(Shape::Streams, small).scan(&key, &mut Told::default());
    assert_eq!(refused, violation("a bulk string that is larger than allowed"));
}

#[test]
fn the_size_of_a_large_entry_is_known_from_its_headers() {
    let head = b"*1\r\n*2\r\n$3\r\n1-0\r\n*4\r\n$1\r\na\r\n$536870912\r\n";
    let mut reply = StreamReply::new(Shape::Entries, Limits { reply_entries: 1, ..Limits::default() });
    let scanned = reply.scan(head, &mut Told::default()).unwrap();
    // The entry's other field has at least twelve bytes.
    let needed = head.len() - 4 + 536_870_912 + 2 + 12;
    assert_eq!(scanned, Scanned { consumed: 4, done: false, needed });
    let more = [head, &[b'v'; 1000][..]].concat();
    let scanned = reply.scan(&more[4..], &mut Told::default()).unwrap();
    assert_eq!(scanned, Scanned { consumed: 0, done: false, needed });
    // No memory for what is merely declared.
    let many = b"*1\r\n*2\r\n$3\r\n1-0\r\n*33554432\r\n";
    let mut reply = StreamReply::new(Shape::Entries, Limits::default());
    let scanned = reply.scan(many, &mut Told::default()).unwrap();
    assert_eq!(scanned.needed, many.len() - 4 + 33_554_432 * 6);
}

#[test]
fn a_full_sink_stops_the_scan_between_entries() {
    let reply = b"*3\r\n*2\r\n$3\r\n1-0\r\n*-1\r\n*2\r\n$3\r\n1-1\r\n*-1\r\n*2\r\n$3\r\n1-2\r\n*-1\r\n";
    let mut scan = StreamReply::new(Shape::Entries, limits());
    let mut told = Told { most: Some(2), ..Told::default() };
    let scanned = scan.scan(reply, &mut told).unwrap();
    assert_eq!(scanned, Scanned { consumed: 4 + 2 * 18, done: false, needed: 0 });
    assert_eq!(scan.scan(&reply[40..], &mut told), Ok(Scanned { consumed: 0, done: false, needed: 0 }));
    told.most = Some(3);
    // The last entry completes the reply, full or not.
    assert_eq!(scan.scan(&reply[40..], &mut told), Ok(Scanned { consumed: 18, done: true, needed: 0 }));
    assert_eq!(told.lines, ["1-0: None", "end", "1-1: None", "end", "1-2: None", "end"]);
    assert_eq!(scan.scan(b"*1\r\n", &mut told), Ok(Scanned { consumed: 0, done: true, needed: 0 }));
}
