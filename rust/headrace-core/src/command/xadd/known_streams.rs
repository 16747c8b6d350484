//! Streams that commands name repeatedly: how each command for one starts, and its slot. No I/O.

use crate::cluster::slot;

/// How many streams named by rows are kept: a power of two.
const PLACES: usize = 1_024;
/// The longest key of a stream that is kept.
const MAX_KEY: usize = 256;

/// A stream that commands name.
#[derive(Debug, Default)]
pub(super) struct KnownStream {
    pub(super) key: Vec<u8>,
    pub(super) hash_slot: u16,
    /// Whether the stream is the endpoint's, named by a row.
    pub(super) is_own: bool,
    /// The start of a command with an ID chosen by the server, up to its fields: without and with the trim options. Kept from the
    /// last command, with its number of arguments: most commands have the same number.
    pub(super) starts: [(usize, Vec<u8>); 2],
}

impl KnownStream {
    fn set(&mut self, key: &[u8], is_own: bool) {
        self.key.clear();
        self.key.extend_from_slice(key);
        (self.hash_slot, self.is_own) = (slot(key), is_own);
        for (arguments, start) in &mut self.starts {
            *arguments = 0;
            start.clear();
        }
    }
}

/// The shards of the endpoint's stream, and the streams that rows name: as many of the latter as there are places, so that memory
/// is bounded.
#[derive(Debug)]
pub(super) struct KnownStreams {
    /// First the shards, then the places of the others, once a row names one.
    streams: Vec<KnownStream>,
    shards: usize,
}

impl KnownStreams {
    pub(super) fn new(shards: &[Vec<u8>]) -> Self {
        let mut streams = Vec::new();
        streams.resize_with(shards.len(), KnownStream::default);
        streams.iter_mut().zip(shards).for_each(|(stream, key)| stream.set(key, false));
        Self { streams, shards: shards.len() }
    }

    /// The place of a stream that a row names. `None`: its key is too long. A stream displaces another one that has its place.
    #[inline]
    pub(super) fn place(&mut self, key: &[u8], own: &[u8]) -> Option<usize> {
        let first = hash(key);
        // Two streams whose keys have the same hash do not displace each other.
        let places = [self.shards + first, self.shards + (first ^ 1)];
        let is_there = |place: &usize| self.streams.get(*place).is_some_and(|known| known.key == key);
        places.into_iter().find(is_there).or_else(|| self.learn(key, own, places))
    }

    #[cold]
    #[inline(never)]
    fn learn(&mut self, key: &[u8], own: &[u8], places: [usize; 2]) -> Option<usize> {
        // No stream has the empty key, which stands for a free place.
        if key.is_empty() || key.len() > MAX_KEY {
            return None;
        }
        if self.streams.len() == self.shards {
            self.streams.resize_with(self.shards + PLACES, KnownStream::default);
        }
        let is_free = |place: &usize| self.streams[*place].key.is_empty();
        let place = places.into_iter().find(is_free).unwrap_or(places[0]);
        self.streams[place].set(key, key == own);
        Some(place)
    }

    #[inline]
    pub(super) fn get(&self, place: usize) -> &KnownStream {
        &self.streams[place]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, place: usize) -> &mut KnownStream {
        &mut self.streams[place]
    }
}

/// A number below [`PLACES`]: cheap, and good enough for names that differ in a few digits.
#[inline]
fn hash(key: &[u8]) -> usize {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |hash: u64, bytes: [u8; 8]| (hash.rotate_left(23) ^ u64::from_le_bytes(bytes)).wrapping_mul(FACTOR);
    let (chunks, rest) = key.as_chunks::<8>();
    let hash = chunks.iter().fold(key.len() as u64, |hash, chunk| mix(hash, *chunk));
    // The last chunk overlaps the one before.
    let hash = match key.last_chunk::<8>() {
        Some(last) => mix(hash, *last),
        None => rest.iter().fold(hash, |hash, byte| mix(hash, [*byte; 8])),
    };
    (hash >> (u64::BITS - PLACES.ilog2())) as usize
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_keeps_its_place_until_another_one_takes_it() {
        let mut known = KnownStreams::new(&[]);
        let keys: Vec<String> = (0..10_000).map(|number| format!("orders:{number}")).collect();
        for key in &keys {
            let place = known.place(key.as_bytes(), b"orders:7").unwrap();
            assert_eq!(known.place(key.as_bytes(), b"orders:7"), Some(place));
            let stream = known.get(place);
            assert_eq!((&*stream.key, stream.hash_slot), (key.as_bytes(), slot(key.as_bytes())));
            assert_eq!(stream.is_own, key == "orders:7");
            assert!(known.streams.len() <= PLACES);
        }
    }

    #[test]
    fn a_few_streams_have_places_of_their_own() {
        let mut known = KnownStreams::new(&[]);
        for name in ["bench:stream-", "s", "{customer}:"] {
            let mut places: Vec<_> =
                (0..64).map(|number| known.place(format!("{name}{number:02}").as_bytes(), b"").unwrap()).collect();
            places.sort_unstable();
            places.dedup();
            assert_eq!(places.len(), 64, "{name}");
        }
    }

    #[test]
    fn keys_that_are_too_long_have_no_place() {
        let mut known = KnownStreams::new(&[b"a:0".to_vec()]);
        assert_eq!(known.place(&[b'x'; MAX_KEY + 1], b""), None);
        assert_eq!(known.place(b"", b""), None);
        assert!(known.place(&[b'x'; MAX_KEY], b"").unwrap() >= 1, "behind the shards");
        assert_eq!(known.get(0).key, b"a:0");
    }
}
