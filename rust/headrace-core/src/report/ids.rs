//! Message IDs in produce order: an ordinal takes no memory, an integer takes eight bytes.

use crate::rows::{CallerId, IdColumn};

/// The message ID in a report: the caller's ID, or the message's ordinal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportedId<'a> {
    /// The message's ordinal since the last flush, for a message without an ID.
    Ordinal(u64),
    /// A signed integer.
    Int(i64),
    /// An unsigned integer, from an Arrow column.
    UInt(u64),
    /// A string.
    Text(&'a str),
}

/// IDs of consecutive messages that can be written together.
#[derive(Debug)]
pub(crate) enum Span<'a> {
    Ordinals { first: u64, count: u64 },
    Ints(&'a [i64]),
    One(ReportedId<'a>),
}

/// The IDs of consecutive messages, all stored in the same way.
#[derive(Debug, Clone)]
enum Segment {
    Ordinals(u64),
    /// Ordinals of messages that were separated from the messages they were produced with, and are now in another report.
    Numbers {
        first: u64,
        count: u64,
    },
    Ints(Vec<i64>),
    Texts {
        ends: Vec<u32>,
        text: String,
    },
    Column(IdColumn),
}

/// The maximum size of a text segment in bytes, so that 32-bit offsets suffice.
const MAX_TEXT: usize = 1 << 30;

impl Segment {
    fn len(&self) -> u64 {
        match self {
            Self::Ordinals(count) | Self::Numbers { count, .. } => *count,
            Self::Ints(ids) => ids.len() as u64,
            Self::Texts { ends, .. } => ends.len() as u64,
            Self::Column(column) => column.len() as u64,
        }
    }

    /// All IDs, if they are signed integers.
    fn ints(&self) -> Option<&[i64]> {
        match self {
            Self::Ints(ids) => Some(ids),
            Self::Column(column) => column.ints(),
            Self::Ordinals(_) | Self::Numbers { .. } | Self::Texts { .. } => None,
        }
    }

    /// The ID at `at`; `None` if it is the message's ordinal.
    fn get(&self, at: u64) -> Option<ReportedId<'_>> {
        if let Self::Numbers { first, .. } = self {
            return Some(ReportedId::Ordinal(first + at));
        }
        let at = at as usize;
        match self {
            Self::Ordinals(_) | Self::Numbers { .. } => None,
            Self::Ints(ids) => ids.get(at).copied().map(ReportedId::Int),
            Self::Texts { ends, text } => {
                let start = at.checked_sub(1).and_then(|before| ends.get(before)).map_or(0, |end| *end as usize);
                let end = *ends.get(at)? as usize;
                text.get(start..end).map(ReportedId::Text)
            }
            Self::Column(column) => column.get(at).map(|id| match id {
                CallerId::Int(id) => ReportedId::Int(id),
                CallerId::UInt(id) => ReportedId::UInt(id),
                CallerId::Text(id) => ReportedId::Text(id),
            }),
        }
    }

    /// Removes and returns the first `count` IDs, which must be fewer than all.
    fn split_front(&mut self, count: u64) -> Self {
        let at = count as usize;
        match self {
            Self::Ordinals(remaining) => {
                *remaining -= count;
                Self::Ordinals(count)
            }
            Self::Numbers { first, count: remaining } => {
                let front = Self::Numbers { first: *first, count };
                (*first, *remaining) = (*first + count, *remaining - count);
                front
            }
            Self::Ints(ids) => {
                let rest = ids.split_off(at);
                Self::Ints(std::mem::replace(ids, rest))
            }
            Self::Texts { ends, text } => {
                let rest_ends = ends.split_off(at);
                let cut = ends.last().copied().unwrap_or_default();
                let rest_text = text.split_off(cut as usize);
                let rest_ends = rest_ends.into_iter().map(|end| end - cut).collect();
                Self::Texts { ends: std::mem::replace(ends, rest_ends), text: std::mem::replace(text, rest_text) }
            }
            Self::Column(column) => {
                let front = column.slice(0, at);
                *column = column.slice(at, column.len() - at);
                Self::Column(front)
            }
        }
    }
}

/// The IDs of consecutive messages, in produce order.
#[derive(Debug, Default, Clone)]
pub(crate) struct MessageIds {
    segments: std::collections::VecDeque<Segment>,
}

impl MessageIds {
    pub(crate) fn push_ordinals(&mut self, more: u64) {
        match self.segments.back_mut() {
            Some(Segment::Ordinals(count)) => *count += more,
            _ => self.segments.push_back(Segment::Ordinals(more)),
        }
    }

    /// Appends `more` ordinals that count up from `from`, regardless of where their messages are in this list.
    pub(crate) fn push_numbers(&mut self, from: u64, more: u64) {
        match self.segments.back_mut() {
            Some(Segment::Numbers { first, count }) if *first + *count == from => *count += more,
            _ => self.segments.push_back(Segment::Numbers { first: from, count: more }),
        }
    }

    /// Appends the IDs of the next `count` messages of another list, and advances its cursor. Ordinals keep their values from
    /// that list.
    pub(crate) fn push_from(&mut self, other: &Self, cursor: &mut IdCursor, count: u64) {
        let end = cursor.ordinal + count;
        while cursor.ordinal < end {
            cursor.enter_segment(other);
            let Some(segment) = other.segments.get(cursor.segment) else { return };
            let more = (end - cursor.ordinal).min(segment.len() - cursor.at);
            match segment {
                Segment::Ordinals(_) => self.push_numbers(cursor.ordinal, more),
                Segment::Numbers { first, .. } => self.push_numbers(first + cursor.at, more),
                Segment::Column(column) => {
                    self.push_rows(column.slice(cursor.at as usize, more as usize), cursor.ordinal);
                }
                Segment::Ints(_) | Segment::Texts { .. } => {
                    (0..more).filter_map(|step| segment.get(cursor.at + step)).for_each(|id| self.push_id(id));
                }
            }
            cursor.at += more;
            cursor.ordinal += more;
        }
    }

    /// Appends the IDs of rows. The first row has the ordinal `first`; a row without an ID gets its ordinal.
    fn push_rows(&mut self, column: IdColumn, first: u64) {
        if (0..column.len()).all(|row| column.get(row).is_some()) {
            self.push_column(column);
            return;
        }
        for row in 0..column.len() {
            match column.get(row) {
                Some(_) => self.push_column(column.slice(row, 1)),
                None => self.push_numbers(first + row as u64, 1),
            }
        }
    }

    /// Appends one ID. An ordinal keeps its value, regardless of where its message is in this list.
    pub(crate) fn push_id(&mut self, id: ReportedId<'_>) {
        match id {
            ReportedId::Ordinal(id) | ReportedId::UInt(id) => self.push_numbers(id, 1),
            ReportedId::Int(id) => self.push_int(id),
            ReportedId::Text(id) => self.push_text(id),
        }
    }

    pub(crate) fn push_int(&mut self, id: i64) {
        match self.segments.back_mut() {
            Some(Segment::Ints(ids)) => ids.push(id),
            _ => self.segments.push_back(Segment::Ints(vec![id])),
        }
    }

    pub(crate) fn push_text(&mut self, id: &str) {
        match self.segments.back_mut() {
            Some(Segment::Texts { ends, text }) if text.len() + id.len() <= MAX_TEXT => {
                text.push_str(id);
                ends.push(text.len() as u32);
            }
            _ => self.segments.push_back(Segment::Texts { ends: vec![id.len() as u32], text: id.to_owned() }),
        }
    }

    pub(crate) fn push_column(&mut self, column: IdColumn) {
        if !column.is_empty() {
            self.segments.push_back(Segment::Column(column));
        }
    }

    /// Removes and returns the IDs of the first `count` messages.
    pub(crate) fn take_front(&mut self, mut count: u64) -> Self {
        let mut front = Self::default();
        while count > 0 {
            let Some(first) = self.segments.front_mut() else { break };
            let length = first.len();
            if length <= count {
                front.segments.extend(self.segments.pop_front());
                count -= length;
            } else {
                front.segments.push_back(first.split_front(count));
                count = 0;
            }
        }
        front
    }

    #[cfg(test)]
    fn len(&self) -> u64 {
        self.segments.iter().map(Segment::len).sum()
    }
}

/// A position in [`MessageIds`] that only moves forward.
#[derive(Debug, Clone)]
pub(crate) struct IdCursor {
    segment: usize,
    at: u64,
    ordinal: u64,
}

impl IdCursor {
    /// Gives the ordinal of the last message to the next one.
    pub(crate) fn skip_ordinal(&mut self) {
        self.ordinal -= 1;
    }

    /// The position before the first ID, whose message has this ordinal.
    pub(crate) fn new(ordinal: u64) -> Self {
        Self { segment: 0, at: 0, ordinal }
    }

    /// Skips `count` messages.
    pub(crate) fn skip(&mut self, ids: &MessageIds, count: u64) {
        self.ordinal += count;
        self.at += count;
        self.enter_segment(ids);
    }

    /// Returns the ID at this position and advances.
    pub(crate) fn next<'a>(&mut self, ids: &'a MessageIds) -> ReportedId<'a> {
        self.enter_segment(ids);
        let id = ids.segments.get(self.segment).and_then(|segment| segment.get(self.at));
        let id = id.unwrap_or(ReportedId::Ordinal(self.ordinal));
        self.at += 1;
        self.ordinal += 1;
        id
    }

    /// Passes the IDs of the next `count` messages to `visit`, as many at a time as are adjacent, and advances.
    pub(crate) fn spans<'a>(&mut self, ids: &'a MessageIds, count: u64, mut visit: impl FnMut(Span<'a>)) {
        let end = self.ordinal + count;
        while self.ordinal < end {
            self.enter_segment(ids);
            let Some(segment) = ids.segments.get(self.segment) else { return };
            let more = (end - self.ordinal).min(segment.len() - self.at);
            let (at, ordinal) = (self.at, self.ordinal);
            match (segment, segment.ints()) {
                (Segment::Ordinals(_), _) => visit(Span::Ordinals { first: ordinal, count: more }),
                (Segment::Numbers { first, .. }, _) => visit(Span::Ordinals { first: first + at, count: more }),
                (_, Some(ids)) => visit(Span::Ints(&ids[at as usize..(at + more) as usize])),
                (_, None) => (0..more).for_each(|step| {
                    visit(Span::One(segment.get(at + step).unwrap_or(ReportedId::Ordinal(ordinal + step))));
                }),
            }
            self.at += more;
            self.ordinal += more;
        }
    }

    /// Moves to the segment that holds the position, if the position is past the end of its segment.
    fn enter_segment(&mut self, ids: &MessageIds) {
        while let Some(segment) = ids.segments.get(self.segment) {
            let length = segment.len();
            if self.at < length {
                break;
            }
            self.at -= length;
            self.segment += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Given {
        Ordinal,
        Int(i64),
        Text(String),
    }

    proptest! {
        #[test]
        fn each_message_keeps_its_id_wherever_reports_split(
            given in prop::collection::vec(prop_oneof![
                Just(Given::Ordinal), any::<i64>().prop_map(Given::Int), ".{0,5}".prop_map(Given::Text),
            ], 0..80),
            cuts in prop::collection::vec(0..20_u64, 0..20),
        ) {
            let mut ids = MessageIds::default();
            for id in &given {
                match id {
                    Given::Ordinal => ids.push_ordinals(1),
                    Given::Int(id) => ids.push_int(*id),
                    Given::Text(id) => ids.push_text(id),
                }
            }
            let mut seen = 0;
            for cut in cuts.into_iter().chain([given.len() as u64]) {
                let part = ids.take_front(cut);
                let mut cursor = IdCursor::new(seen);
                for at in 0..part.len() {
                    let expected = &given[(seen + at) as usize];
                    match (cursor.next(&part), expected) {
                        (ReportedId::Ordinal(n), Given::Ordinal) => prop_assert_eq!(n, seen + at),
                        (ReportedId::Int(id), Given::Int(expected)) => prop_assert_eq!(id, *expected),
                        (ReportedId::Text(id), Given::Text(expected)) => prop_assert_eq!(id, expected),
                        (id, expected) => prop_assert!(false, "{:?} is not {:?}", id, expected),
                    }
                }
                seen += part.len();
            }
            prop_assert_eq!(seen, given.len() as u64);
        }
    }
}
