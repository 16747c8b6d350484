//! Sharded streams: several streams under one name, and which of them a message goes to. No I/O.
//!
//! Messages with equal keys go to one shard, so that their order is kept; shards are in different slots of a cluster. With the
//! hash of Kafka's clients, a message goes to the shard with the number of the partition that it would have had there.

mod murmur2;
mod names;

use crate::cluster::slot;
use murmur2::murmur2;
pub(crate) use names::ShardNames;

/// The maximum number of shards of a stream.
pub(crate) const MAX_SHARDS: i64 = 1_024;

/// The option `shard_hash`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ShardHash {
    /// The hash of Kafka's Java client.
    Murmur2,
    /// The checksum of zlib, which librdkafka's `consistent` partitioners use.
    Crc32,
}

impl ShardHash {
    /// The names of the hashes, the default first.
    pub(crate) const NAMES: [&str; 2] = ["murmur2", "crc32"];

    pub(crate) fn named(name: &str) -> Option<Self> {
        [Self::Murmur2, Self::Crc32].into_iter().find(|hash| hash.name() == name)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Murmur2 => Self::NAMES[0],
            Self::Crc32 => Self::NAMES[1],
        }
    }

    /// The shard of a key, out of `count`.
    #[inline]
    pub(crate) fn shard(self, key: &[u8], count: usize) -> usize {
        let hash = match self {
            // Kafka takes the lower 31 bits: `Utils.toPositive` in its Java client.
            Self::Murmur2 => murmur2(key) & 0x7fff_ffff,
            Self::Crc32 => crc32fast::hash(key),
        };
        hash as usize % count
    }
}

/// The shards of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Shards {
    pub(crate) hash: ShardHash,
    pub(crate) names: ShardNames,
    keys: Vec<Vec<u8>>,
    /// The slot of each in a cluster.
    slots: Vec<u16>,
}

impl Shards {
    /// `count` shards of the stream `name`, which has no braces.
    pub(crate) fn new(name: &[u8], count: usize, hash: ShardHash, names: ShardNames) -> Self {
        let keys = names.keys(name, count.max(1));
        let slots = keys.iter().map(|key| slot(key)).collect();
        Self { hash, names, keys, slots }
    }

    /// The shards of the stream `name`, as the fields of its registry describe them; an error says what is wrong with the fields.
    ///
    /// `fields`: names and values, in turn; a later version may add others.
    pub(crate) fn from_registry(name: &[u8], fields: &[&[u8]]) -> Result<Self, String> {
        let value = |name: &str| {
            let found = fields.chunks_exact(2).find_map(|pair| (pair[0] == name.as_bytes()).then_some(pair[1]));
            found.map(|value| String::from_utf8_lossy(value)).ok_or_else(|| format!("it has no field '{name}'"))
        };
        let (count, hash, names) = (value("n")?, value("hash")?, value("names")?);
        let wrong = |field: &str, value: &str, allowed: &str| {
            Err(format!("its field '{field}' must be {allowed}, got '{}'", value.escape_debug()))
        };
        let Some(count) = count.parse().ok().filter(|count| (1..=MAX_SHARDS).contains(count)) else {
            return wrong("n", &count, &format!("a number from 1 to {MAX_SHARDS}"));
        };
        let Some(hash) = ShardHash::named(&hash) else {
            return wrong("hash", &hash, &format!("one of {}", ShardHash::NAMES.join(", ")));
        };
        let Some(names) = ShardNames::named(&names) else {
            return wrong("names", &names, &format!("one of {}", ShardNames::NAMES.join(", ")));
        };
        Ok(Self::new(name, usize::try_from(count).unwrap_or(1), hash, names))
    }

    pub(crate) fn count(&self) -> usize {
        self.keys.len()
    }

    /// The stream keys of the shards, in the order of their numbers.
    pub(crate) fn keys(&self) -> &[Vec<u8>] {
        &self.keys
    }

    /// The number of the shard that messages with this key go to.
    #[inline]
    pub(crate) fn of_key(&self, key: &[u8]) -> usize {
        self.hash.shard(key, self.keys.len())
    }

    /// The number of the shard of a message without a key: shards take turns, in such a way that a batch that is produced again
    /// goes to the same ones. `ordinal`: the number of the message in its batch.
    #[inline]
    pub(crate) fn of_ordinal(&self, ordinal: u64) -> usize {
        (ordinal % self.keys.len() as u64) as usize
    }

    /// The number of the only shard in a slot of a cluster.
    pub(crate) fn only_in_slot(&self, slot: u16) -> Option<usize> {
        let mut found = self.slots.iter().enumerate().filter(|(_, its)| **its == slot).map(|(shard, _)| shard);
        found.next().filter(|_| found.next().is_none())
    }

    /// The stream key of a shard.
    #[inline]
    pub(crate) fn key(&self, shard: usize) -> &[u8] {
        &self.keys[shard]
    }
}

/// The key beside the shards that stores how many there are: in the slot of the stream's name.
pub(crate) fn registry_key(name: &[u8]) -> Vec<u8> {
    [b"{", name, b"}:shards"].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// zlib's check value, and what librdkafka's tests expect of it: `crc32("")` is 0.
    #[test]
    fn crc32_matches_zlib() {
        assert_eq!(ShardHash::Crc32.shard(b"123456789", 1 << 32), 0xcbf4_3926);
        assert_eq!(ShardHash::Crc32.shard(b"", 7), 0);
    }

    #[test]
    fn hashes_are_found_by_their_names() {
        for name in ShardHash::NAMES {
            assert_eq!(ShardHash::named(name).map(ShardHash::name), Some(name));
        }
        assert_eq!(ShardHash::named("md5"), None);
    }

    #[test]
    fn messages_without_a_key_are_assigned_to_shards_in_turn() {
        let shards = Shards::new(b"orders", 3, ShardHash::Murmur2, ShardNames::Plain);
        let turns: Vec<_> = (0..5).map(|ordinal| shards.of_ordinal(ordinal)).collect();
        assert_eq!(turns, [0, 1, 2, 0, 1]);
    }

    #[test]
    fn a_slot_identifies_its_shard_unless_two_shards_share_it() {
        let shards = Shards::new(b"orders", 3, ShardHash::Murmur2, ShardNames::Plain);
        assert_eq!(shards.only_in_slot(slot(b"orders:2")), Some(2));
        assert_eq!(shards.only_in_slot(slot(b"other")), None);
        let shared = (0..1_000_u32).find_map(|name| {
            let shards = Shards::new(&name.to_be_bytes(), 1_024, ShardHash::Murmur2, ShardNames::Plain);
            shards.slots.iter().copied().find(|slot| shards.only_in_slot(*slot).is_none())
        });
        assert!(shared.is_some(), "no two of 1,024 shards share a slot, whatever their names");
    }

    #[test]
    fn shards_are_read_from_a_registry() {
        let read = |fields: &[&[u8]]| Shards::from_registry(b"orders", fields);
        let complete: [&[u8]; 8] = [b"names", b"spread", b"n", b"3", b"later", b"field", b"hash", b"crc32"];
        assert_eq!(read(&complete), Ok(Shards::new(b"orders", 3, ShardHash::Crc32, ShardNames::Spread)));
        assert_eq!(read(&complete[..6]), Err("it has no field 'hash'".to_owned()));
        for (at, value, why) in [
            (3, "0", "its field 'n' must be a number from 1 to 1024, got '0'"),
            (3, "1025", "its field 'n' must be a number from 1 to 1024, got '1025'"),
            (3, "3\n", "its field 'n' must be a number from 1 to 1024, got '3\\n'"),
            (7, "md5", "its field 'hash' must be one of murmur2, crc32, got 'md5'"),
            (1, "", "its field 'names' must be one of plain, spread, got ''"),
        ] {
            let mut fields = complete;
            fields[at] = value.as_bytes();
            assert_eq!(read(&fields), Err(why.to_owned()));
        }
    }

    #[test]
    fn the_registry_is_in_the_slot_of_the_stream_name() {
        assert_eq!(registry_key(b"orders"), b"{orders}:shards");
        assert_eq!(slot(&registry_key(b"orders")), slot(b"orders"));
    }
}
