//! The parts of a reply that is complete, one after the other, where they are: nothing is copied or allocated.

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
    /// Those of `reply`, of which [`Framing`](super::framing::Framing) or [`Outline`](super::outline::Outline) has found the end.
    pub(crate) const fn of(reply: &'a [u8]) -> Self {
        Self(reply)
    }

    /// Passes over one value: a part, and all that it contains.
    pub(crate) fn pass_value(&mut self) -> Option<()> {
        let mut left = 1;
        while left > 0 {
            left -= 1;
            if let Part::Array(parts) = self.next()? {
                left += parts;
            }
        }
        Some(())
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
            parts.pass_value().unwrap();
            assert_eq!(parts.collect::<Vec<_>>(), [Part::Number(7)], "{}", reply.escape_ascii());
        }
    }

    #[test]
    fn an_incomplete_reply_ends_early() {
        for reply in REPLIES {
            assert_eq!(Parts::of(&reply[..reply.len() - 1]).pass_value(), None, "{}", reply.escape_ascii());
        }
    }
}
