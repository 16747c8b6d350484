//! Streams that are on another node than their slot while the slot is moved key by key. No I/O.
//!
//! The number of a slot is itself a route. Each of these streams has a route of its own, with a number above those of the slots.
//! These numbers alone distinguish what waits, is in flight or must be confirmed.

use std::collections::BTreeMap;

use crate::cluster::SLOTS;

/// The maximum number of streams: the 16-bit numbers that the slots leave free.
const MAX_STREAMS: usize = (u16::MAX - SLOTS) as usize + 1;

/// The maximum size of all keys of streams in bytes.
const MAX_BYTES: usize = 16 << 20;

#[derive(Debug)]
struct StreamRoute {
    key: Box<[u8]>,
    slot: u16,
    lane: usize,
}

/// The streams, and the lane of each.
#[derive(Debug)]
pub(super) struct StreamRoutes {
    by_key: BTreeMap<Box<[u8]>, u16>,
    /// Indexed by route, from the first number above those of the slots. `None`: free.
    routes: Vec<Option<StreamRoute>>,
    free: Vec<u16>,
    bytes: usize,
    max_streams: usize,
}

impl Default for StreamRoutes {
    fn default() -> Self {
        let (by_key, routes, free) = (BTreeMap::new(), Vec::new(), Vec::new());
        Self { by_key, routes, free, bytes: 0, max_streams: MAX_STREAMS }
    }
}

impl StreamRoutes {
    #[cfg(any(test, fuzzing))]
    pub(super) fn with_max(max_streams: usize) -> Self {
        Self { max_streams, ..Self::default() }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// The route and the lane of a stream, if it has its own.
    pub(super) fn of_key(&self, key: &[u8]) -> Option<(u16, usize)> {
        let route = *self.by_key.get(key)?;
        Some((route, self.get(route)?.lane))
    }

    fn get(&self, route: u16) -> Option<&StreamRoute> {
        self.routes.get(usize::from(route.checked_sub(SLOTS)?))?.as_ref()
    }

    fn get_mut(&mut self, route: u16) -> Option<&mut StreamRoute> {
        self.routes.get_mut(usize::from(route.checked_sub(SLOTS)?))?.as_mut()
    }

    pub(super) fn lane(&self, route: u16) -> Option<usize> {
        self.get(route).map(|stream| stream.lane)
    }

    /// The slot of the stream that has this route.
    pub(super) fn slot(&self, route: u16) -> Option<u16> {
        self.get(route).map(|stream| stream.slot)
    }

    pub(super) fn set_lane(&mut self, route: u16, lane: usize) {
        if let Some(stream) = self.get_mut(route) {
            stream.lane = lane;
        }
    }

    /// Whether another stream may have a route of its own.
    pub(super) fn has_room(&self, key: &[u8]) -> bool {
        self.by_key.len() < self.max_streams && self.bytes + key.len() <= MAX_BYTES
    }

    /// Gives a stream a route of its own. `None`: there is [no room](Self::has_room).
    pub(super) fn add(&mut self, key: &[u8], slot: u16, lane: usize) -> Option<u16> {
        if !self.has_room(key) {
            return None;
        }
        let route = match self.free.pop() {
            Some(route) => route,
            None => SLOTS + u16::try_from(self.routes.len()).ok()?,
        };
        let at = usize::from(route - SLOTS);
        if at == self.routes.len() {
            self.routes.push(None);
        }
        self.routes[at] = Some(StreamRoute { key: key.into(), slot, lane });
        self.by_key.insert(key.into(), route);
        self.bytes += key.len();
        Some(route)
    }

    /// Each route with its slot and lane.
    pub(super) fn all(&self) -> impl Iterator<Item = (u16, u16, usize)> {
        let numbered = (SLOTS..=u16::MAX).zip(&self.routes);
        numbered.filter_map(|(route, stream)| stream.as_ref().map(|stream| (route, stream.slot, stream.lane)))
    }

    /// Removes the routes of the streams that are not kept: these are where their slots are.
    pub(super) fn retain(&mut self, is_kept: impl Fn(u16, usize) -> bool) {
        for (route, stream) in (SLOTS..=u16::MAX).zip(&mut self.routes) {
            if let Some(gone) = stream.take_if(|stream| !is_kept(route, stream.lane)) {
                self.by_key.remove(&gone.key);
                self.bytes -= gone.key.len();
                self.free.push(route);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn streams_have_routes_above_those_of_slots() {
        let mut routes = StreamRoutes::default();
        assert_eq!((routes.add(b"a", 7, 1), routes.add(b"b", 7, 2)), (Some(SLOTS), Some(SLOTS + 1)));
        assert_eq!((routes.of_key(b"b"), routes.of_key(b"c")), (Some((SLOTS + 1, 2)), None));
        assert_eq!((routes.slot(SLOTS), routes.lane(SLOTS), routes.lane(7)), (Some(7), Some(1), None));
        routes.set_lane(SLOTS, 3);
        assert_eq!(routes.all().collect::<Vec<_>>(), [(SLOTS, 7, 3), (SLOTS + 1, 7, 2)]);
        routes.retain(|_, lane| lane != 3);
        assert_eq!((routes.of_key(b"a"), routes.all().count()), (None, 1));
        assert_eq!(routes.add(b"c", 8, 4), Some(SLOTS), "the number is free again");
        routes.retain(|_, _| false);
        assert!(routes.is_empty() && routes.bytes == 0);
    }

    #[test]
    fn stream_routes_are_bounded_in_number_and_in_bytes() {
        let mut routes = StreamRoutes::default();
        for number in 0..MAX_STREAMS {
            assert!(routes.add(&number.to_be_bytes(), 0, 0).is_some());
        }
        assert_eq!((MAX_STREAMS, routes.add(b"one more", 0, 0)), (49_152, None));
        routes.retain(|route, _| route != 20_000);
        assert_eq!(routes.add(b"one more", 0, 0), Some(20_000));
        routes.retain(|_, _| false);
        assert!(routes.add(&vec![0; MAX_BYTES], 0, 0).is_some() && routes.add(b"a", 0, 0).is_none());
    }
}
