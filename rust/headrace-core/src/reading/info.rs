//! Takes the reply to XINFO STREAM from the received bytes.

use super::errors::protocol;
use super::input::Input;
use crate::error::{Fault, ReplyText};
use crate::resp::outline::{Outline, WITHOUT_FIELDS};
use crate::stream_facts::StreamInfo;

/// The maximum size of the reply in bytes, without the fields of its entries: about forty names and numbers.
const MOST_BYTES: usize = 128 * 1024;

/// The progress of reading the reply.
#[derive(Debug)]
pub(super) struct InfoReply(Outline);

impl Default for InfoReply {
    fn default() -> Self {
        Self(Outline::new(WITHOUT_FIELDS, MOST_BYTES))
    }
}

impl InfoReply {
    /// Takes the reply from the received bytes; `None`: it is not complete yet. A stream that does not exist is empty.
    pub(super) fn take(&mut self, input: &mut Input) -> Result<Option<StreamInfo>, Fault> {
        // Most replies have arrived whole, and are read where they are.
        if !self.0.has_begun()
            && let Some((info, rest)) = StreamInfo::read(input.unread())
        {
            input.consume(input.unread().len() - rest);
            return Ok(Some(info));
        }
        let (taken, is_complete) = self.0.take(input.unread()).map_err(protocol)?;
        input.consume(taken);
        if !is_complete {
            return Ok(None);
        }
        let reply = self.0.finish();
        if let Some(line) = reply.strip_prefix(b"-") {
            let fault = Fault::from_reply(line.strip_suffix(b"\r\n").unwrap_or(line));
            if fault.text != ReplyText::NoSuchKey {
                return Err(fault.of_command("XINFO STREAM"));
            }
            return Ok(Some(StreamInfo::missing()));
        }
        let info = StreamInfo::read(&reply).map(|(info, _)| info);
        info.ok_or_else(|| protocol("a reply that does not fit XINFO STREAM")).map(Some)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::resp::EntryId;

    /// The result of reading bytes that arrive in pieces of this size, and the maximum number of bytes that waited to be taken.
    fn take(reply: &[u8], piece: usize) -> (Result<Option<StreamInfo>, Fault>, usize) {
        let (mut input, mut info, mut most) = (Input::default(), InfoReply::default(), 0);
        for bytes in reply.chunks(piece) {
            input.space()[..bytes.len()].copy_from_slice(bytes);
            input.filled(bytes.len());
            let taken = info.take(&mut input);
            most = most.max(input.unread().len());
            if !matches!(taken, Ok(None)) {
                assert!(taken.is_err() || input.unread().is_empty());
                return (taken, most);
            }
        }
        (Ok(None), most)
    }

    fn shown(size: usize, fields: usize) -> Vec<u8> {
        let mut reply = b"*10\r\n$6\r\nlength\r\n:2\r\n$17\r\nlast-generated-id\r\n$3\r\n7-5\r\n".to_vec();
        reply.extend_from_slice(b"$6\r\ngroups\r\n:0\r\n");
        for (name, id) in [("first-entry", "5-0"), ("last-entry", "7-5")] {
            reply.extend_from_slice(
                format!("${}\r\n{name}\r\n*2\r\n$3\r\n{id}\r\n*{fields}\r\n", name.len()).as_bytes(),
            );
            for _ in 0..fields {
                reply.extend_from_slice(format!("${size}\r\n").as_bytes());
                reply.extend(std::iter::repeat_n(b'v', size));
                reply.extend_from_slice(b"\r\n");
            }
        }
        reply
    }

    #[test]
    fn the_fields_of_entries_are_skipped() {
        let expected = StreamInfo {
            length: 2,
            last_id: EntryId { ms: 7, seq: 5 },
            first_id: Some(EntryId { ms: 5, seq: 0 }),
            newest_id: Some(EntryId { ms: 7, seq: 5 }),
            ..StreamInfo::default()
        };
        for (size, fields) in [(0, 0), (0, 2), (5, 2), (3_000, 4), (2, 2_000), (600_000, 2)] {
            let reply = shown(size, fields);
            for piece in [1, 7, 60_000] {
                if reply.len() / piece < 100_000 {
                    let (taken, most) = take(&reply, piece);
                    assert_eq!(taken.unwrap().as_ref(), Some(&expected), "{size} {fields} {piece}");
                    assert!(most < 70_000, "{most}");
                }
            }
            assert!(matches!(take(&reply[..reply.len() - 1], 60_000).0, Ok(None)));
        }
    }

    #[test]
    fn a_malformed_reply_is_refused() {
        let mut unended = shown(5, 2);
        let end = unended.len() - 1;
        unended[end] = b'x';
        let long = [&b"*2\r\n$400000\r\n"[..], &[b'x'; 100]].concat();
        let many = [&b"*20000\r\n"[..], &b"$9\r\nabcdefghi\r\n".repeat(20_000)].concat();
        for bytes in [&unended[..], b"*1\r\n:1\r\n", b"*-1\r\n", b"$3\r\nabcde", b"_\r\n", &long, &many] {
            assert!(take(bytes, 50_000).0.is_err(), "{}", bytes[..20.min(bytes.len())].escape_ascii());
        }
        let error = take(b"-WRONGTYPE no\r\n", 3).0.unwrap_err();
        assert_eq!(error.code, "WRONGTYPE");
        assert_eq!(take(b"-ERR no such key\r\n", 3).0.unwrap().unwrap().added, Some(0));
    }
}
