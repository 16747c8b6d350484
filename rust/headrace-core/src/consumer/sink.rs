//! Collects the entries of a reply in the open batch of their stream.

use std::time::Duration;

use super::stream::{Bad, Open, Pending, Stream};
use crate::entries::SpareColumns;
use crate::resp::EntryId;
use crate::resp::stream_reply::EntrySink;

/// The part of a reply that belongs to one stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Page {
    pub(super) stream: usize,
    pub(super) entries: u64,
    /// The size of the names and values of the page's largest entry, in bytes.
    pub(super) largest: u64,
}

impl Page {
    /// An empty page of the stream with this key.
    pub(super) fn new(streams: &[Stream], key: &[u8]) -> Result<Self, &'static str> {
        let stream = streams.iter().position(|stream| *stream.key == *key);
        let stream = stream.ok_or("entries of a stream that was not requested")?;
        Ok(Self { stream, entries: 0, largest: 0 })
    }
}

/// The destination of the entries of a reply.
pub(super) struct Sink<'a> {
    pub(super) streams: &'a mut [Stream],
    pub(super) spare: &'a mut SpareColumns,
    /// The consumer's pending entries that were requested; `None`: new entries were requested.
    pub(super) wanted: Option<&'a [Pending]>,
    pub(super) pages: &'a mut Vec<Page>,
    /// Entries that were deleted while they were pending, each with the number of its stream.
    pub(super) deleted: &'a mut Vec<(usize, EntryId)>,
    /// Whether the reply had pending entries of this consumer that were not requested.
    pub(super) has_strays: &'a mut bool,
    pub(super) violation: &'a mut Option<&'static str>,
    /// The entries were delivered at this time or later.
    pub(super) since: Duration,
    pub(super) is_left_out: bool,
    pub(super) size: u64,
}

impl Sink<'_> {
    /// The open batch that the current entry goes into; `None` if the entry is left out.
    #[inline]
    fn open(&mut self) -> Option<&mut Open> {
        let page = self.pages.last()?;
        if self.is_left_out { None } else { self.streams.get_mut(page.stream)?.open.as_mut() }
    }
}

impl EntrySink for Sink<'_> {
    fn stream(&mut self, key: &[u8]) {
        match Page::new(self.streams, key) {
            Ok(page) => self.pages.push(page),
            Err(violation) => *self.violation = Some(violation),
        }
    }

    #[inline]
    fn entry(&mut self, id: EntryId, fields: Option<usize>) {
        (self.is_left_out, self.size) = (true, 0);
        let Some(page) = self.pages.last_mut() else { return };
        let Some(stream) = self.streams.get_mut(page.stream) else { return };
        page.entries += 1;
        let deliveries = match self
            .wanted
            .map(|wanted| wanted.binary_search_by_key(&id, |pending| pending.id).map(|at| &wanted[at]))
        {
            None => None,
            Some(Ok(pending)) => Some(pending.deliveries + 1),
            Some(Err(_)) => {
                *self.has_strays = true;
                return;
            }
        };
        if fields.is_none() {
            self.deleted.push((page.stream, id));
            return;
        }
        self.is_left_out = false;
        let is_reclaimed = stream.is_reclaimed && deliveries.is_some();
        let open = stream.open.get_or_insert_with(|| {
            let columns = self.spare.take(&stream.key);
            Open { columns, ids: Vec::new(), deliveries: Vec::new(), is_reclaimed, since: self.since }
        });
        open.columns.entry(id, fields);
        open.ids.push(id);
        open.deliveries.extend(deliveries);
    }

    #[inline]
    fn field(&mut self, name: &[u8], value: &[u8]) {
        self.size += (name.len() + value.len()) as u64;
        if let Some(open) = self.open() {
            open.columns.field(name, value);
        }
    }

    #[inline]
    fn end(&mut self) {
        if let Some(page) = self.pages.last_mut() {
            page.largest = page.largest.max(self.size);
        }
        let Some(open) = self.open() else { return };
        open.columns.end();
        let Some(bad) = open.columns.take_bad() else { return };
        open.ids.pop();
        let deliveries = open.deliveries.pop().unwrap_or(1);
        if let Some(stream) = self.pages.last().and_then(|page| self.streams.get_mut(page.stream)) {
            stream.bad.push(Bad { entry: Pending { id: bad.0, deliveries }, value: bad.1, since: self.since });
        }
    }

    #[inline]
    fn is_full(&self) -> bool {
        let open = self.pages.last().and_then(|page| self.streams.get(page.stream)?.open.as_ref());
        self.violation.is_some() || open.is_some_and(|open| open.columns.is_full())
    }
}
