//! A reply without the fields of the entries in it. Bytes in, the kept bytes out: no I/O, and nothing is kept or allocated for
//! what a header merely declares.
//!
//! XINFO STREAM shows the whole first and last entry, of up to 1 GiB each, and XRANGE a whole entry, where only their IDs are
//! needed. Their fields are skipped as they arrive, and take no memory.

use super::framing::{Head, MAX_PARTS, Nesting, Wrong};

/// The fields of an entry are an array within the entry, which is one within the reply.
pub(crate) const WITHOUT_FIELDS: usize = 2;
/// Deeper than any reply may be.
pub(crate) const WHOLE: usize = usize::MAX;

/// How far a reply has been read, as its bytes arrive.
#[derive(Debug)]
pub(crate) struct Outline {
    /// The depth below which nested parts are skipped: an array there becomes an empty one.
    depth: usize,
    /// The maximum number of bytes that are kept.
    most: usize,
    nesting: Nesting,
    parts: u64,
    kept: Vec<u8>,
    /// The bytes of a bulk string that are still to come, without its line end, and whether they are kept.
    rest: Option<(u64, bool)>,
}

impl Outline {
    pub(crate) const fn new(depth: usize, most: usize) -> Self {
        Self { depth, most, nesting: Nesting::new(), parts: 0, kept: Vec::new(), rest: None }
    }

    /// Takes what it can of the next bytes of the reply. Returns how many bytes these are, and whether the reply is complete;
    /// then [`finish`](Self::finish) returns it.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<(usize, bool), Wrong> {
        let mut at = 0;
        loop {
            let Some((length, parts)) = self.part(bytes.get(at..).unwrap_or_default())? else { return Ok((at, false)) };
            at += length;
            if self.rest.is_none() && self.nesting.pass(parts)? {
                return Ok((at, true));
            }
        }
    }

    /// Whether a part of a reply has been taken.
    pub(crate) const fn has_begun(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Returns the kept bytes of a complete reply, and prepares for the next one.
    pub(crate) fn finish(&mut self) -> Vec<u8> {
        let next = Self::new(self.depth, self.most);
        std::mem::replace(self, next).kept
    }

    /// Takes a line, or the bytes of a bulk string that have arrived. Returns how many bytes, and how many parts an array has.
    /// `None`: more bytes must arrive first.
    fn part(&mut self, bytes: &[u8]) -> Result<Option<(usize, u64)>, Wrong> {
        if let Some((rest, is_kept)) = self.rest {
            return self.body(bytes, rest, is_kept);
        }
        let Some(head) = Head::read(bytes)? else { return Ok(None) };
        let is_kept = self.nesting.depth() <= self.depth;
        let mut parts = 0;
        match (head.kind, head.declared) {
            (b'*', Some(declared)) => {
                parts = declared;
                if is_kept && self.nesting.depth() == self.depth {
                    self.keep(b"*0\r\n")?;
                    return Ok(Some((head.length, parts)));
                }
                if is_kept {
                    self.parts = self.parts.saturating_add(parts);
                    if self.parts > MAX_PARTS {
                        return Err("a reply of too many parts");
                    }
                }
            }
            (b'$', Some(body)) => {
                let left = (self.most - self.kept.len()) as u64;
                if is_kept && body > left {
                    return Err("a reply that is too large");
                }
                self.rest = Some((body, is_kept));
            }
            _ => {}
        }
        if is_kept {
            self.keep(bytes.get(..head.length).unwrap_or_default())?;
        }
        Ok(Some((head.length, parts)))
    }

    /// Takes the bytes of the body of a bulk string that have arrived.
    fn body(&mut self, bytes: &[u8], rest: u64, is_kept: bool) -> Result<Option<(usize, u64)>, Wrong> {
        let count = usize::try_from(rest).unwrap_or(usize::MAX).min(bytes.len());
        let end = bytes.get(count..).unwrap_or_default();
        let length = match end {
            [b'\r', b'\n', ..] => count + 2,
            [] | [b'\r'] => count,
            _ => return Err("a bulk string without an end"),
        };
        if is_kept {
            self.keep(bytes.get(..length).unwrap_or_default())?;
        }
        self.rest = (length == count).then_some((rest - count as u64, is_kept));
        Ok((length > 0).then_some((length, 0)))
    }

    fn keep(&mut self, bytes: &[u8]) -> Result<(), Wrong> {
        if bytes.len() > self.most - self.kept.len() {
            return Err("a reply that is too large");
        }
        self.kept.extend_from_slice(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::framing::tests::REPLIES;
    use super::super::framing::{MAX_DEPTH, MAX_LINE, MAX_REPLY};
    use super::*;

    /// What is kept of bytes that arrive in pieces of this size, and how many bytes were left over.
    fn outline(bytes: &[u8], piece: usize, depth: usize) -> Result<Option<(Vec<u8>, usize)>, Wrong> {
        let (mut outline, mut unread, mut left) = (Outline::new(depth, MAX_REPLY), Vec::new(), bytes.len());
        for piece in bytes.chunks(piece) {
            unread.extend_from_slice(piece);
            let (taken, is_complete) = outline.take(&unread)?;
            unread.drain(..taken);
            left -= taken;
            assert!(unread.len() <= MAX_LINE, "{}", unread.len());
            if is_complete {
                return Ok(Some((outline.finish(), left)));
            }
        }
        Ok(None)
    }

    #[test]
    fn a_whole_reply_is_kept_unchanged() {
        for reply in REPLIES {
            for piece in 1..=reply.len() + 1 {
                let followed = [reply, b"*"].concat();
                let left = if piece > reply.len() { 1 } else { followed.len() - reply.len() };
                assert_eq!(
                    outline(&followed, piece, WHOLE),
                    Ok(Some((reply.to_vec(), left))),
                    "{}",
                    reply.escape_ascii()
                );
                assert_eq!(outline(&reply[..reply.len() - 1], piece, WHOLE), Ok(None));
            }
        }
    }

    #[test]
    fn fields_are_skipped() {
        let reply = b"*3\r\n$1\r\na\r\n*2\r\n$3\r\n1-0\r\n*4\r\n$1\r\nf\r\n$-1\r\n*1\r\n:7\r\n$5\r\n\r\n\r\n1\r\n*2\r\n$1\r\nb\r\n:8\r\n";
        let expected = b"*3\r\n$1\r\na\r\n*2\r\n$3\r\n1-0\r\n*0\r\n*2\r\n$1\r\nb\r\n:8\r\n";
        for piece in 1..=reply.len() {
            assert_eq!(outline(reply, piece, WITHOUT_FIELDS), Ok(Some((expected.to_vec(), 0))), "{piece}");
        }
        let empty = b"*1\r\n*2\r\n$3\r\n1-0\r\n*0\r\n";
        assert_eq!(outline(empty, 3, WITHOUT_FIELDS), Ok(Some((empty.to_vec(), 0))));
        let nil = b"*1\r\n*2\r\n$3\r\n1-0\r\n*-1\r\n";
        assert_eq!(outline(nil, 3, WITHOUT_FIELDS), Ok(Some((nil.to_vec(), 0))));
    }

    #[test]
    fn skipped_fields_may_exceed_the_limit_of_kept_bytes() {
        let large = [&b"*2\r\n$3\r\n1-0\r\n*1\r\n*1\r\n$300000\r\n"[..], &vec![b'x'; 300_000], b"\r\n"].concat();
        let many = [&b"*2\r\n$3\r\n1-0\r\n*1\r\n*50000\r\n"[..], &b"$1\r\na\r\n".repeat(50_000)].concat();
        for reply in [large, many] {
            let mut outline = Outline::new(WITHOUT_FIELDS, 100);
            assert_eq!(outline.take(&reply), Ok((reply.len(), true)));
            assert_eq!(outline.finish(), b"*2\r\n$3\r\n1-0\r\n*1\r\n*0\r\n");
            assert_eq!(Outline::new(WHOLE, 100).take(&reply), Err("a reply that is too large"));
        }
        assert!(Outline::new(WHOLE, 100).take(b"$101\r\n").is_err(), "before it is here");
    }

    #[test]
    fn a_malformed_or_oversized_reply_is_refused_before_it_is_complete() {
        let deep = |depth| b"*1\r\n".repeat(depth);
        for bytes in [
            &b"\r\n"[..],
            b"HTTP/1.1",
            b"_\r\n",
            b">1\r\n",
            b"$-2\r\n",
            b"*x\r\n",
            b"$1\r\nab\r\n",
            b"$1\r\na\rb",
            b"$67108865\r\n",
            b"*1048577\r\n",
            b"*2\r\n*1048575\r\n",
            b"*18446744073709551616\r\n",
            &b"+".repeat(MAX_LINE),
            &deep(MAX_DEPTH + 1),
        ] {
            for piece in [1 + bytes.len() / 1000, bytes.len()] {
                assert!(outline(bytes, piece, WHOLE).is_err(), "{}", bytes.escape_ascii());
            }
        }
        assert_eq!(outline(&deep(MAX_DEPTH + 1), 1, WITHOUT_FIELDS), Err("arrays that are too deep in one another"));
    }
}
