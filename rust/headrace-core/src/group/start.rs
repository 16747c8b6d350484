//! The position at which a group begins to read, or a range of pending entries begins.

use crate::decimal;
use crate::endpoint::OptionValue;
use crate::resp::{EntryId, entry_id};

/// A position in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Before the first entry.
    Earliest,
    /// After the last entry.
    Latest,
    /// At this entry.
    At(EntryId),
    /// After this entry.
    Behind(EntryId),
}

impl Start {
    /// Parses `earliest`, `latest`, an entry ID, or `(` and an entry ID.
    pub(crate) fn parse(value: &OptionValue) -> Option<Self> {
        let OptionValue::Text(text) = value else { return None };
        match text.as_str() {
            "earliest" => Some(Self::Earliest),
            "latest" => Some(Self::Latest),
            text => match text.strip_prefix('(') {
                Some(id) => parse_id(id.as_bytes()).map(Self::Behind),
                None => parse_id(text.as_bytes()).map(Self::At),
            },
        }
    }

    /// The ID that a group must have as last delivered so that it begins at this position.
    pub(crate) fn last_delivered(self) -> String {
        match self {
            Self::Earliest => "0-0".to_owned(),
            Self::Latest => "$".to_owned(),
            Self::At(id) => before(id).unwrap_or(EntryId { ms: 0, seq: 0 }).to_string(),
            Self::Behind(id) => id.to_string(),
        }
    }

    /// The beginning of a range; `None`: the range is empty. Servers report an error for the highest ID with `(`.
    pub(super) fn range(self) -> Option<String> {
        match self {
            Self::Earliest => Some("-".to_owned()),
            Self::At(id) => Some(id.to_string()),
            Self::Latest | Self::Behind(EntryId { ms: u64::MAX, seq: u64::MAX }) => None,
            Self::Behind(id) => Some(format!("({id}")),
        }
    }
}

/// Parses `ms-seq`, or `ms` for `ms-0`.
pub(super) fn parse_id(text: &[u8]) -> Option<EntryId> {
    entry_id(text).or_else(|| Some(EntryId { ms: decimal::parse(text)?, seq: 0 }))
}

/// The ID directly before another one; `None` for `0-0`.
fn before(id: EntryId) -> Option<EntryId> {
    match (id.ms, id.seq) {
        (0, 0) => None,
        (ms, 0) => Some(EntryId { ms: ms - 1, seq: u64::MAX }),
        (ms, seq) => Some(EntryId { ms, seq: seq - 1 }),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const MAX: &str = "18446744073709551615";

    fn parsed(text: &str) -> Option<Start> {
        Start::parse(&OptionValue::text(text))
    }

    #[test]
    fn a_start_is_converted_to_the_last_delivered_id() {
        let cases = [
            ("earliest", "0-0", Some("-")),
            ("latest", "$", None),
            ("0", "0-0", Some("0-0")),
            ("0-1", "0-0", Some("0-1")),
            ("5-3", "5-2", Some("5-3")),
            ("5", &format!("4-{MAX}"), Some("5-0")),
            ("(5-3", "5-3", Some("(5-3")),
            ("(5", "5-0", Some("(5-0")),
            (&format!("{MAX}-{MAX}"), &format!("{MAX}-18446744073709551614"), Some(&format!("{MAX}-{MAX}"))),
            (&format!("({MAX}-{MAX}"), &format!("{MAX}-{MAX}"), None),
        ];
        for (text, last, range) in cases {
            let start = parsed(text).unwrap();
            assert_eq!((start.last_delivered(), start.range().as_deref()), (last.to_owned(), range), "{text}");
        }
    }

    #[test]
    fn invalid_starts_are_refused() {
        for bad in ["", "$", "+", "-", ">", "*", "5-", "-5", "5-*", "((5", "(", "5 ", "Latest", "18446744073709551616"]
        {
            assert_eq!(parsed(bad), None, "{bad}");
        }
        assert_eq!(Start::parse(&OptionValue::Int(5)), None);
    }
}
