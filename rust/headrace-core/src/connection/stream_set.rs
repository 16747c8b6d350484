//! A set of streams.

use std::collections::{BTreeMap, BTreeSet};

/// Streams by their routes. Those of one route may have been sent to several nodes.
#[derive(Debug, Default)]
pub(crate) struct StreamSet(BTreeMap<u16, BTreeSet<Box<[u8]>>>);

impl StreamSet {
    pub(super) fn insert(&mut self, route: u16, stream_key: &[u8]) {
        let streams = self.0.entry(route).or_default();
        if !streams.contains(stream_key) {
            streams.insert(stream_key.into());
        }
    }

    /// `stream_key`: `None` if there is only one stream.
    pub(super) fn contains(&self, route: u16, stream_key: Option<&[u8]>) -> bool {
        self.0.get(&route).is_some_and(|streams| stream_key.is_none_or(|stream_key| streams.contains(stream_key)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_found_by_route_and_key() {
        let mut set = StreamSet::default();
        for key in [&b"a"[..], b"b", b"a"] {
            set.insert(1, key);
        }
        assert!(set.contains(1, Some(b"a")) && set.contains(1, Some(b"b")) && set.contains(1, None));
        assert!(!set.contains(1, Some(b"c")) && !set.contains(2, Some(b"a")) && !set.contains(2, None));
    }
}
