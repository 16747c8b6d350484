//! The names of the shards of a stream.

use crate::cluster::{SLOTS, slot};

/// The option `shard_names`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ShardNames {
    /// `orders:0`, `orders:1` and so on: their slots are arbitrary.
    Plain,
    /// `orders:{…}`, with tags that spread the shards evenly over the slots.
    Spread,
}

impl ShardNames {
    /// The names of the variants, the default first.
    pub(crate) const NAMES: [&str; 2] = ["plain", "spread"];

    pub(crate) fn named(name: &str) -> Option<Self> {
        [Self::Plain, Self::Spread].into_iter().find(|names| names.name() == name)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Plain => Self::NAMES[0],
            Self::Spread => Self::NAMES[1],
        }
    }

    /// The stream keys of `count` shards of `name`.
    pub(super) fn keys(self, name: &[u8], count: usize) -> Vec<Vec<u8>> {
        match self {
            Self::Plain => (0..count).map(|shard| [name, format!(":{shard}").as_bytes()].concat()).collect(),
            Self::Spread => tags(count).into_iter().map(|tag| [name, b":{", tag.as_bytes(), b"}"].concat()).collect(),
        }
    }
}

/// The tag of each shard: the smallest hexadecimal number in the middle slot of its share of the slots.
fn tags(count: usize) -> Vec<String> {
    let share = |shard: usize| (2 * shard + 1) * usize::from(SLOTS) / (2 * count);
    let mut missing: std::collections::HashMap<u16, usize> =
        (0..count).filter_map(|shard| Some((u16::try_from(share(shard)).ok()?, shard))).collect();
    let mut tags = vec![String::new(); count];
    // The first 314,737 numbers cover all slots.
    for number in 0_u32.. {
        if missing.is_empty() {
            break;
        }
        let tag = format!("{number:x}");
        if let Some(shard) = missing.remove(&slot(tag.as_bytes())) {
            tags[shard] = tag;
        }
    }
    tags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_shards_are_numbered_from_zero() {
        assert_eq!(ShardNames::Plain.keys(b"orders", 2), [b"orders:0", b"orders:1"]);
    }

    #[test]
    fn spread_shards_divide_the_slots_evenly() {
        for count in [1, 3, 12, 60, 1_024] {
            let slots: Vec<_> = ShardNames::Spread.keys(b"orders", count).iter().map(|key| slot(key)).collect();
            let middles: Vec<_> =
                (0..count).map(|shard| ((2 * shard + 1) * usize::from(SLOTS) / (2 * count)) as u16).collect();
            assert_eq!(slots, middles, "{count} shards");
        }
    }

    #[test]
    fn tags_are_short() {
        assert!(tags(1_024).iter().all(|tag| (1..=5).contains(&tag.len())));
    }
}
