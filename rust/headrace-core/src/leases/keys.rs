//! The keys of leases: each in the slot of the stream that it is about.

use crate::cluster::tag;

/// The key of the lease that a group has of a stream.
pub(crate) fn lease_key(stream: &[u8], group: &[u8]) -> Vec<u8> {
    of_stream(stream, b"lease", group)
}

/// The key of the members of a group. `stream`: one of its streams, the same for all members.
pub(crate) fn members_key(stream: &[u8], group: &[u8]) -> Vec<u8> {
    of_stream(stream, b"members", group)
}

/// Whether the keys of leases are in the slot of this stream.
pub(crate) fn has_slot_of_stream(stream: &[u8]) -> bool {
    tag(stream) != stream || !stream.contains(&b'}')
}

/// `{orders:7}:lease:billing` for the stream `orders:7`, `lease:a{orders}7:billing` for `a{orders}7`, which has a tag: no two
/// streams have the same key.
fn of_stream(stream: &[u8], what: &[u8], group: &[u8]) -> Vec<u8> {
    if tag(stream) == stream {
        [&b"{"[..], stream, b"}:", what, b":", group].concat()
    } else {
        [what, b":", stream, b":", group].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::slot;

    #[test]
    fn a_lease_is_in_the_slot_of_its_stream() {
        for stream in ["orders", "orders:7", "a{orders}:7", "{orders}", "{a", "a}b{c}"] {
            for key in [lease_key(stream.as_bytes(), b"g{x}"), members_key(stream.as_bytes(), b"g")] {
                assert_eq!(slot(&key), slot(stream.as_bytes()), "{stream} {}", key.escape_ascii());
            }
        }
        assert_eq!(lease_key(b"orders:7", b"g"), b"{orders:7}:lease:g");
        assert_eq!(lease_key(b"{orders:7}", b"g"), b"lease:{orders:7}:g");
    }
}
