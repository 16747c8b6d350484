//! The parts of replies, one after the other, where they are: nothing is copied or allocated.

use super::framing::Head;
use crate::decimal;

/// One part. What an array contains are the parts behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part<'a> {
    Bulk(&'a [u8]),
    /// Not below 0.
    Number(u64),
    /// With this number of parts.
    Array(u64),
    /// Nil, a line of text, or a number below 0.
    Other,
}

/// The parts that are still to come.
#[derive(Debug, Clone)]
pub(crate) struct Parts<'a>(&'a [u8]);

impl<'a> Parts<'a> {
    /// The parts of replies, of which the last one may be incomplete.
    pub(crate) const fn of(replies: &'a [u8]) -> Self {
        Self(replies)
    }

    /// Passes over this number of values, each with all that it contains.
    pub(crate) fn pass(&mut self, mut values: u64) -> Option<()> {
        while values > 0 {
            values -= 1;
            if let Part::Array(parts) = self.next()? {
                values = values.checked_add(parts)?;
            }
        }
        Some(())
    }

    /// The bytes behind the parts so far.
    pub(crate) const fn rest(&self) -> &'a [u8] {
        self.0
    }
}

impl<'a> Iterator for Parts<'a> {
    type Item = Part<'a>;

    fn next(&mut self) -> Option<Part<'a>> {
        let head = Head::read(self.0).ok()??;
        let (line, mut rest) = self.0.split_at_checked(head.length)?;
        let part = match (head.kind, head.declared) {
            (b'*', Some(parts)) => Part::Array(parts),
            (b'$', Some(length)) => {
                let (bytes, behind) = rest.split_at_checked(usize::try_from(length).ok()?)?;
                rest = behind.strip_prefix(b"\r\n")?;
                Part::Bulk(bytes)
            }
            (b':', _) => line.get(1..line.len() - 2).and_then(decimal::parse).map_or(Part::Other, Part::Number),
            _ => Part::Other,
        };
        self.0 = rest;
        Some(part)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::framing::tests::REPLIES;
    use super::*;

    #[test]
    fn each_part_is_found() {
        let reply = b"*5\r\n$3\r\na\r\n\r\n:12\r\n:-12\r\n*-1\r\n*1\r\n+OK\r\n";
        let found: Vec<_> = Parts::of(reply).collect();
        let (bulk, number) = (Part::Bulk(b"a\r\n"), Part::Number(12));
        assert_eq!(found, [Part::Array(5), bulk, number, Part::Other, Part::Other, Part::Array(1), Part::Other]);
    }

    #[test]
    fn a_value_is_passed_over_with_all_that_it_contains() {
        for reply in REPLIES {
            let followed = [reply, b":7\r\n"].concat();
            let mut parts = Parts::of(&followed);
            parts.pass(1).unwrap();
            assert_eq!(parts.rest(), b":7\r\n");
            assert_eq!(parts.collect::<Vec<_>>(), [Part::Number(7)], "{}", reply.escape_ascii());
        }
    }

    #[test]
    fn an_incomplete_reply_ends_early() {
        for reply in REPLIES {
            assert_eq!(Parts::of(&reply[..reply.len() - 1]).pass(1), None, "{}", reply.escape_ascii());
        }
    }
}
