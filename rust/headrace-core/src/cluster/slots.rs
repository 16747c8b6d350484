//! The owners of slots: the reply to CLUSTER SLOTS, which every version has, and which does not list a master that another node
//! has replaced.

use std::ops::RangeInclusive;

use redis::Value;

use super::node_name::NodeName;
use super::slot::SLOTS;
use crate::resp::value;

/// Ranges of slots, each with its nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Slots {
    ranges: Vec<Range>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Range {
    first: u16,
    last: u16,
    /// `None`: the server does not know the master's host.
    master: Option<NodeName>,
    /// The replicas whose host is known.
    replicas: Vec<NodeName>,
}

impl Slots {
    /// The slots in a reply to CLUSTER SLOTS; `None`: it is not such a reply.
    /// <https://redis.io/docs/latest/commands/cluster-slots/>
    pub(crate) fn read(reply: &Value) -> Option<Self> {
        let ranges = value::list(reply)?.iter().map(Range::read).collect::<Option<_>>()?;
        Some(Self { ranges })
    }

    /// The ranges of slots that a node has. With overlaps, which no server sends, the last one counts.
    pub(crate) fn owned(&self) -> impl Iterator<Item = (RangeInclusive<u16>, &NodeName)> {
        self.ranges.iter().filter_map(|range| Some((range.first..=range.last, range.master.as_ref()?)))
    }

    /// Each replica with its master. A replica of several ranges occurs several times.
    pub(crate) fn followers(&self) -> impl Iterator<Item = (&NodeName, &NodeName)> {
        let masters = self.ranges.iter().filter_map(|range| Some((range, range.master.as_ref()?)));
        masters.flat_map(|(range, master)| range.replicas.iter().map(move |replica| (replica, master)))
    }

    /// Every node with a known host, masters first. A node with several ranges occurs several times.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &NodeName> {
        let masters = self.ranges.iter().filter_map(|range| range.master.as_ref());
        masters.chain(self.ranges.iter().flat_map(|range| &range.replicas))
    }
}

impl Range {
    fn read(row: &Value) -> Option<Self> {
        let [first, last, master, replicas @ ..] = value::list(row)? else { return None };
        let slot =
            |number| value::integer(number).and_then(|number| u16::try_from(number).ok()).filter(|slot| *slot < SLOTS);
        let (first, last) = (slot(first)?, slot(last)?);
        let replicas = replicas.iter().map(node).collect::<Result<Vec<_>, NoNode>>().ok()?;
        let master = node(master).ok()?;
        Some(Self { first, last, master, replicas: replicas.into_iter().flatten().collect() })
    }
}

/// A value that does not describe a node.
struct NoNode;

/// `[host, port, ID, metadata]`. `None`: a node whose host the server does not know.
fn node(node: &Value) -> Result<Option<NodeName>, NoNode> {
    let Some([host, port, rest @ ..]) = value::list(node) else { return Err(NoNode) };
    let port = value::integer(port).and_then(|port| u16::try_from(port).ok());
    let host = match host {
        Value::Nil => b"",
        Value::BulkString(host) if host == b"?" => {
            // The node announces a hostname that it does not have. Its address is as good.
            rest.get(1).and_then(|metadata| value::field(metadata, "ip")).and_then(value::bytes).unwrap_or(b"?")
        }
        host => value::bytes(host).ok_or(NoNode)?,
    };
    Ok(NodeName::new(host, port))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn range(first: i64, last: i64, nodes: Vec<Value>) -> Value {
        Value::Array([vec![Value::Int(first), Value::Int(last)], nodes].concat())
    }

    fn node(host: Value, port: i64, metadata: &[&str]) -> Value {
        let metadata = Value::Array(metadata.iter().map(|part| text(part)).collect());
        Value::Array(vec![host, Value::Int(port), text("id"), metadata])
    }

    #[test]
    fn the_owner_of_a_range_is_its_first_node() {
        let nodes = |port| vec![node(text("db1"), port, &[]), node(text("db2"), port + 1, &[])];
        let slots = Slots::read(&Value::Array(vec![range(0, 99, nodes(1)), range(200, 16_383, nodes(5))])).unwrap();
        let owned: Vec<_> = slots.owned().map(|(slots, owner)| (slots, owner.port)).collect();
        assert_eq!(owned, [(0..=99, 1), (200..=16_383, 5)]);
        let ports: Vec<_> = slots.nodes().map(|node| node.port).collect();
        assert_eq!(ports, [1, 5, 2, 6]);
        let followers: Vec<_> = slots.followers().map(|(replica, master)| (replica.port, master.port)).collect();
        assert_eq!(followers, [(2, 1), (6, 5)]);
        assert!(Slots::read(&Value::Array(Vec::new())).is_some());
    }

    /// `cluster-preferred-endpoint-type` ip, hostname (known or not), unknown-endpoint.
    #[test]
    fn missing_hosts_are_not_taken_from_a_replica() {
        let replica = || node(text("db2"), 2, &[]);
        let owner = |master| {
            let slots = Slots::read(&Value::Array(vec![range(0, 9, vec![master, replica()])])).unwrap();
            slots.owned().next().map(|(_, owner)| owner.clone())
        };
        let at = |host: Option<&str>| Some(NodeName { host: host.map(str::to_owned), port: 1 });
        assert_eq!(owner(node(text("db1"), 1, &["ip", "10.0.0.1"])), at(Some("db1")));
        assert_eq!(owner(node(text("?"), 1, &["ip", "10.0.0.1"])), at(Some("10.0.0.1")));
        assert_eq!(owner(node(text("?"), 1, &[])), None);
        assert_eq!(owner(node(Value::Nil, 1, &["ip", "10.0.0.1"])), at(None));
        assert_eq!(owner(node(text(""), 1, &[])), at(None));
        assert_eq!(owner(node(text("db1"), 0, &[])), None);
    }

    #[test]
    fn malformed_lists_of_slot_ranges_are_refused() {
        let good = || vec![node(text("db1"), 1, &[])];
        for reply in [
            Value::Nil,
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![range(0, 16_384, good())]),
            Value::Array(vec![range(-1, 9, good())]),
            Value::Array(vec![range(0, 9, Vec::new())]),
            Value::Array(vec![range(0, 9, vec![Value::Int(1)])]),
            Value::Array(vec![range(0, 9, vec![node(Value::Int(1), 1, &[])])]),
        ] {
            assert_eq!(Slots::read(&reply), None, "{reply:?}");
        }
    }
}
