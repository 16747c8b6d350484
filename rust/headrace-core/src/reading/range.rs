//! The beginning and the end of a reader, as specified by the caller.

use super::position::Place;
use crate::decimal;
use crate::resp::{EntryId, entry_id};
use crate::stream_facts::StreamInfo;

/// The position at which reading a stream begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// With the oldest entry.
    Earliest,
    /// After the newest entry.
    Latest,
    /// With this ID, or the next existing one.
    At(EntryId),
    /// At the position of an earlier reader.
    After(Place),
}

/// The position at which reading a stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Nowhere: continue with new entries.
    Never,
    /// With the entry that is currently the newest.
    Latest,
    /// With this ID, or the last existing one before it.
    At(EntryId),
}

impl Start {
    /// Parses `earliest`, `latest`, `ms` (from its first entry on) or `ms-seq`; `None`: it is none of these.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "earliest" => Some(Self::Earliest),
            "latest" => Some(Self::Latest),
            _ => id_or_ms(text, 0).map(Self::At),
        }
    }

    /// The same place, of which nothing is known: neither that it is an entry, nor how many precede it.
    pub(crate) fn without_claims(self) -> Self {
        match self {
            Self::After(Place { id, .. }) => Self::After(Place { id, ..Place::default() }),
            other => other,
        }
    }

    /// The place, once the server has described the stream.
    ///
    /// Entries that were trimmed before reading began are not a loss: if the first entry to read may be among the removed ones,
    /// all removed entries count as read.
    pub(crate) fn place(self, info: &StreamInfo) -> Place {
        let removed = info.removed();
        match self {
            // No entry after the start exists yet, so none is missing.
            Self::After(place) if !place.is_entry && info.last_id <= place.id => Place { added: info.added, ..place },
            Self::After(place) => place,
            Self::Earliest => Place { added: removed, ..Place::default() },
            Self::Latest => {
                let is_entry = info.last_id > EntryId::default();
                Place { id: info.last_id, is_entry, added: info.added, removed: None }
            }
            Self::At(id) => {
                let id = id.previous().unwrap_or_default();
                if id >= info.last_id {
                    let is_entry = id == info.last_id && id > EntryId::default();
                    Place { id, is_entry, added: info.added, removed: None }
                } else if info.first_id.is_some_and(|first| first <= id) {
                    Place { id, is_entry: false, added: None, removed }
                } else {
                    // No entry is below the start, and none will be, unless another stream takes its place.
                    Place { id, is_entry: false, added: removed, removed: None }
                }
            }
        }
    }
}

impl End {
    /// Parses `latest`, `ms` (up to its last entry) or `ms-seq`; `None`: it is none of these.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "latest" => Some(Self::Latest),
            _ => id_or_ms(text, u64::MAX).map(Self::At),
        }
    }

    /// The last entry to read; `None`: no entry is the last one.
    pub(crate) fn last(self, info: &StreamInfo) -> Option<EntryId> {
        match self {
            Self::Never => None,
            Self::Latest => Some(info.last_id),
            Self::At(id) => Some(id),
        }
    }
}

/// The highest ID to read backwards, from new entries to old ones: `latest`, `ms` (from its last entry on) or `ms-seq`.
pub(crate) fn first_backward(text: &str) -> Option<EntryId> {
    if text == "latest" { Some(EntryId::MAX) } else { id_or_ms(text, u64::MAX) }
}

/// The lowest ID to read backwards, from new entries to old ones: `earliest`, `ms` (down to its first entry) or `ms-seq`.
pub(crate) fn last_backward(text: &str) -> Option<EntryId> {
    if text == "earliest" { Some(EntryId::default()) } else { id_or_ms(text, 0) }
}

fn id_or_ms(text: &str, seq: u64) -> Option<EntryId> {
    entry_id(text.as_bytes()).or_else(|| decimal::parse(text.as_bytes()).map(|ms| EntryId { ms, seq }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn id(ms: u64, seq: u64) -> EntryId {
        EntryId { ms, seq }
    }

    #[test]
    fn an_id_without_a_sequence_number_covers_the_whole_millisecond() {
        assert_eq!(Start::parse("5"), Some(Start::At(id(5, 0))));
        assert_eq!(End::parse("5"), Some(End::At(id(5, u64::MAX))));
        assert_eq!((Start::parse("5-7"), End::parse("5-7")), (Some(Start::At(id(5, 7))), Some(End::At(id(5, 7)))));
        for wrong in ["", "-", "+", "$", "5-", "-5", "5-*", "(5-0", "newest", "18446744073709551616"] {
            assert_eq!((Start::parse(wrong), End::parse(wrong)), (None, None), "{wrong:?}");
        }
        assert_eq!((first_backward("5"), last_backward("5")), (Some(id(5, u64::MAX)), Some(id(5, 0))));
        assert_eq!((first_backward("latest"), last_backward("earliest")), (Some(EntryId::MAX), Some(id(0, 0))));
        assert_eq!((first_backward("earliest"), last_backward("latest")), (None, None));
        assert_eq!((Start::parse("earliest"), End::parse("earliest")), (Some(Start::Earliest), None));
    }

    #[test]
    fn entries_trimmed_before_the_start_are_not_lost() {
        let info = StreamInfo {
            length: 80,
            last_id: id(100, 0),
            first_id: Some(id(21, 0)),
            added: Some(100),
            ..StreamInfo::default()
        };
        for (start, ms, seq, added) in [
            (Start::Earliest, 0, 0, Some(20)),
            (Start::Latest, 100, 0, Some(100)),
            (Start::At(id(0, 0)), 0, 0, Some(20)),
            (Start::At(id(5, 0)), 4, u64::MAX, Some(20)),
            (Start::At(id(50, 0)), 49, u64::MAX, None),
            (Start::At(id(100, 1)), 100, 0, Some(100)),
            (Start::At(id(500, 0)), 499, u64::MAX, Some(100)),
        ] {
            let (is_entry, removed) = (id(ms, seq) == id(100, 0), added.is_none().then_some(20));
            assert_eq!(start.place(&info), Place { id: id(ms, seq), is_entry, added, removed }, "{start:?}");
        }
        let nothing = StreamInfo { added: Some(0), ..StreamInfo::default() };
        assert_eq!(Start::Latest.place(&nothing), Place { added: Some(0), ..Place::default() });
    }
}
