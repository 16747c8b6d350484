//! Collects the entries of a reply in the open batch of their stream.

use super::stream::{Bad, Open, Stream};
use crate::entries::{EntryColumns, SpareColumns};
use crate::resp::EntryId;
use crate::resp::stream_reply::EntrySink;

/// The properties of a page, as found while reading it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Page {
    /// The number of the page's entries, including the one that overlaps with the previous page.
    pub(crate) entries: u64,
    /// The size of the names and values of the page's largest entry, in bytes.
    pub(crate) largest: u64,
    /// Whether entries may be missing before the page's first entry.
    pub(crate) has_gap: bool,
    /// Whether the next page begins with an entry of this one.
    pub(crate) is_cut: bool,
}

/// The destination of the entries of one page.
pub(crate) struct Sink<'a> {
    pub(crate) streams: &'a mut [Stream],
    pub(crate) spare: &'a mut SpareColumns,
    /// The number of entries that may still be read from all streams.
    pub(crate) left: &'a mut u64,
    /// The pages of the reply, each with its stream. The current entries belong to the last one.
    pub(crate) pages: &'a mut Vec<(usize, Page)>,
    /// The entry that the page must begin with if no entry is missing before it.
    pub(crate) anchor: Option<EntryId>,
    /// The violation of the protocol: a stream, or an order of entries, that was not requested.
    pub(crate) violation: &'a mut Option<&'static str>,
    /// Whether the current entry is left out.
    pub(crate) is_left_out: bool,
    /// The entry that was read before the current one.
    pub(crate) before: EntryId,
    pub(crate) size: u64,
}

impl Sink<'_> {
    /// The open batch that the current entry goes into; `None` if the entry is left out.
    #[inline]
    fn columns(&mut self) -> Option<&mut EntryColumns> {
        let (at, _) = self.pages.last()?;
        if self.is_left_out { None } else { Some(&mut self.streams.get_mut(*at)?.open.as_mut()?.columns) }
    }
}

impl EntrySink for Sink<'_> {
    fn stream(&mut self, key: &[u8]) {
        // A server replies in the order of the request.
        let (first, count) = (self.pages.last().map_or(0, |(at, _)| at + 1), self.streams.len());
        match (first..first + count).map(|at| at % count).find(|at| *self.streams[*at].key == *key) {
            Some(at) => self.pages.push((at, Page::default())),
            None => *self.violation = Some("entries of a stream that was not requested"),
        }
    }

    #[inline]
    fn entry(&mut self, id: EntryId, fields: Option<usize>) {
        self.is_left_out = true;
        self.size = 0;
        let Some((at, page)) = self.pages.last_mut() else { return };
        let Some(stream) = self.streams.get_mut(*at) else { return };
        let is_first = page.entries == 0;
        page.entries += 1;
        if is_first && self.anchor == Some(id) {
            return;
        }
        if id <= stream.after() {
            *self.violation = Some("entries that are not in the order of their IDs");
            return;
        }
        // What the limit leaves out is read later if the entries of another stream are dropped, and do not count: perhaps while
        // the rest of this page arrives, which is left out with it.
        page.is_cut |= *self.left == 0;
        // The next page begins after an entry that does not fit.
        if page.is_cut || stream.bad.is_some() || stream.standing.is_left_out() {
            return;
        }
        if page.has_gap && stream.open.as_ref().is_some_and(|open| open.columns.is_overfull()) {
            // The batch must wait for the end of the page.
            page.is_cut = true;
            return;
        }
        self.before = stream.after();
        *self.left -= 1;
        self.is_left_out = false;
        page.has_gap |= is_first && stream.begins_with_gap(id);
        let open = stream.open.get_or_insert_with(|| {
            let columns = self.spare.take(&stream.key);
            Open { columns, first_id: id, proven: 0 }
        });
        open.columns.entry(id, fields);
        if page.has_gap {
            // Only the description after the page shows the loss before the batch.
            open.columns.hold(true);
            stream.since.ids.push(id);
        } else {
            stream.read_on(id);
        }
    }

    #[inline]
    fn field(&mut self, name: &[u8], value: &[u8]) {
        self.size += (name.len() + value.len()) as u64;
        if let Some(columns) = self.columns() {
            columns.field(name, value);
        }
    }

    #[inline]
    fn end(&mut self) {
        if let Some((_, page)) = self.pages.last_mut() {
            page.largest = page.largest.max(self.size);
        }
        let Some(columns) = self.columns() else { return };
        columns.end();
        let bad = columns.take_bad();
        if let (Some((id, value)), Some((at, _))) = (bad, self.pages.last())
            && let Some(stream) = self.streams.get_mut(*at)
        {
            stream.bad = Some(Bad { id, before: self.before, value });
        }
    }

    #[inline]
    fn is_full(&self) -> bool {
        let is_full = |(at, _): &(usize, Page)| {
            let open = self.streams.get(*at).and_then(|stream| stream.open.as_ref());
            open.is_some_and(|open| open.columns.is_full())
        };
        self.violation.is_some() || self.pages.last().is_some_and(is_full)
    }
}
