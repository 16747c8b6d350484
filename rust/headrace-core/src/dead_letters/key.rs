//! The streams that receive dead letters.

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::cluster::tag;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};

/// A placeholder in the key for dead letters: the tag of the stream's key takes its place, so that both keys are in one slot.
const OF_STREAM: &[u8] = b"{stream}";

/// The stream that receives the dead letters of the stream `key`. `given`: the option `dead_letter_key`.
pub(crate) fn dead_letter_key<'a>(given: &'a [u8], key: &[u8]) -> Cow<'a, [u8]> {
    let Some(at) = given.windows(OF_STREAM.len()).position(|part| part == OF_STREAM) else {
        return Cow::Borrowed(given);
    };
    let behind = given.get(at + OF_STREAM.len()..).unwrap_or_default();
    [given.get(..at).unwrap_or_default(), b"{", tag(key), b"}", behind].concat().into()
}

/// Checks that the dead letters of these streams go to another stream, in a cluster to one of the same slot.
pub(crate) fn check_dead_letter_key(endpoint: &Endpoint, keys: &[Vec<u8>], given: &[u8]) -> Result<()> {
    let streams: BTreeSet<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    for key in keys {
        let dead = dead_letter_key(given, key);
        if streams.contains(&*dead) {
            let message = format!("dead_letter_key must not be one of the streams, got '{}'", dead.escape_ascii());
            return Err(Error::config("dead_letter_key", message));
        }
        endpoint.for_keys("dead_letter_key", [key.as_slice(), &*dead])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_letter_stream_can_share_the_slot_of_its_stream() {
        let of = |given: &str, key: &str| {
            String::from_utf8_lossy(&dead_letter_key(given.as_bytes(), key.as_bytes())).into_owned()
        };
        assert_eq!(of("dead", "orders:7"), "dead");
        assert_eq!(of("dead:{stream}", "orders:7"), "dead:{orders:7}");
        assert_eq!(of("{stream}:dead", "a{orders}:7"), "{orders}:dead");
        assert_eq!(of("{stream}{stream}", "stream"), "{stream}{stream}");
    }
}
