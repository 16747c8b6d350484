//! Groups streams by the slots of a cluster, each slot with its own endpoint.

use crate::cluster::slot;
use crate::endpoint::Endpoint;
use crate::error::Result;

/// The keys for each session: all keys; in a cluster, those of one slot. With `in_order`, only consecutive keys are grouped.
pub(crate) fn by_slot<'a>(endpoint: &Endpoint, keys: &'a [Vec<u8>], in_order: bool) -> Vec<Vec<&'a [u8]>> {
    let mut groups: Vec<(u16, Vec<&[u8]>)> = Vec::new();
    let is_of_cluster = endpoint.cluster().is_some();
    for key in keys {
        let slot = if is_of_cluster { slot(key) } else { 0 };
        let candidates = if in_order { groups.len().saturating_sub(1)..groups.len() } else { 0..groups.len() };
        match groups[candidates].iter_mut().find(|(other, _)| *other == slot) {
            Some((_, group)) => group.push(key),
            None => groups.push((slot, vec![key])),
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

/// The endpoint for the streams of one slot. The consumer group belongs only to the endpoint's own stream.
pub(crate) fn endpoint_of(endpoint: &Endpoint, keys: &[&[u8]]) -> Result<Endpoint> {
    let own = endpoint.stream_key();
    if keys.contains(&own) {
        return endpoint.for_keys("streams", [own].into_iter().chain(keys.iter().copied()));
    }
    let of_keys = endpoint.for_keys("streams", keys.iter().copied())?;
    Ok(if endpoint.cluster().is_some() { of_keys.without_consumer_group() } else { of_keys })
}
