//! The number of entries to request at once.

/// The number of entries on the first page: their sizes are not known yet.
const FIRST: u64 = 16;

/// With more entries than this, a larger page is worth its memory only if the network is slow.
const ENOUGH: u64 = 1_000;

/// The bytes of an entry in a reply in addition to its names and values: its ID, and the lengths.
const OVERHEAD: u64 = 64;

/// The COUNT of the next request for a stream, chosen by the sizes of its recent entries.
#[derive(Debug, Clone)]
pub(crate) struct Paging {
    count: u64,
    /// The size of the largest recent entry, in bytes. The value halves from page to page.
    largest: u64,
    page_bytes: u64,
    max_rows: u64,
    /// Whether the last page left the count unchanged.
    is_settled: bool,
}

impl Paging {
    /// Creates the state of a stream whose pages have roughly at most `page_bytes` bytes and at most `max_rows` entries.
    pub(crate) fn new(page_bytes: u64, max_rows: u64) -> Self {
        Self { count: FIRST.min(max_rows), largest: 0, page_bytes, max_rows, is_settled: false }
    }

    /// The number of entries to request.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// The maximum size of a page in bytes.
    pub(crate) fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// An estimate of the size of a page in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.count.saturating_mul(self.largest + OVERHEAD)
    }

    /// Adapts the number of entries to a page, whose largest entry had `largest` bytes. `is_full`: the page had as many entries
    /// as requested. `is_slow`: the page took longer to arrive than to scan.
    pub(crate) fn page(&mut self, largest: u64, is_full: bool, is_slow: bool) {
        self.largest = largest.max(self.largest / 2);
        let most = (self.page_bytes / (self.largest + OVERHEAD)).clamp(1, self.max_rows);
        let grows = is_full && (self.count < ENOUGH || is_slow);
        let wanted = if grows { self.count.saturating_mul(2) } else { self.count };
        let wanted = if is_slow { wanted } else { wanted.min(ENOUGH.max(self.count)) };
        let count = wanted.min(most);
        self.is_settled = count == self.count;
        self.count = count;
    }

    /// Whether the last page left the number of entries to request unchanged.
    pub(crate) fn is_settled(&self) -> bool {
        self.is_settled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn counts(paging: &mut Paging, largest: u64, is_slow: bool, pages: usize) -> Vec<u64> {
        (0..pages)
            .map(|_| {
                paging.page(largest, true, is_slow);
                paging.count()
            })
            .collect()
    }

    #[test]
    fn pages_grow_by_doubling_up_to_a_thousand_entries() {
        let mut paging = Paging::new(MIB, 8_192);
        assert_eq!(paging.count(), 16);
        assert_eq!(counts(&mut paging, 120, false, 6), [32, 64, 128, 256, 512, 1_000]);
        assert!(!paging.is_settled());
        assert_eq!(counts(&mut paging, 120, false, 2), [1_000, 1_000]);
        assert!(paging.is_settled());
    }

    #[test]
    fn pages_grow_up_to_the_limits_on_a_slow_network() {
        let mut paging = Paging::new(MIB, 8_192);
        assert_eq!(counts(&mut paging, 120, true, 10).last(), Some(&(MIB / 184)));
        assert_eq!(counts(&mut Paging::new(MIB, 2_000), 120, true, 10).last(), Some(&2_000));
    }

    #[test]
    fn one_large_entry_shrinks_pages_immediately_and_for_a_while() {
        let mut paging = Paging::new(MIB, 8_192);
        counts(&mut paging, 120, false, 8);
        assert_eq!(counts(&mut paging, 5 << 20, false, 1), [1]);
        assert_eq!(counts(&mut paging, 120, false, 5), [1, 1, 1, 2, 4]);
        paging.page(0, false, false);
        assert_eq!(paging.count(), 4, "a page that is not full says nothing about its size");
    }
}
