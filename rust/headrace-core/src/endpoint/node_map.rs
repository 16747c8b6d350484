//! The option `node_map`: where to connect for the addresses that nodes of a cluster show, for nodes behind NAT or forwarded
//! ports.

use std::net::IpAddr;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::given::Given;
use super::node::Node;
use super::option::{OptionValue, quoted};
use super::server::DEFAULT_PORT;
use super::tls::Tls;
use crate::error::{Error, Result};

const NAME: &str = "node_map";

/// Pairs of addresses: the one that a node shows, and the one to connect to. The shown addresses are unique and sorted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct NodeMap(Arc<[(Node, Node)]>);

impl NodeMap {
    pub(super) fn read(given: &mut Given, tls: Option<&Tls>) -> Result<Self> {
        let Some(value) = given.value(NAME) else { return Ok(Self::default()) };
        let pairs = match &value {
            OptionValue::Text(text) if text.trim_start().starts_with('{') => of_json(text),
            OptionValue::Text(text) => of_text(text),
            _ => None,
        };
        let pairs = pairs.filter(|pairs| !pairs.is_empty()).ok_or_else(|| given.refuse(NAME, &value))?;
        let mut map: Vec<(Node, Node)> = Vec::with_capacity(pairs.len());
        for (shown, used) in pairs {
            let shown = normal(&Node::read(NAME, &shown, DEFAULT_PORT)?);
            let used = Node::read(NAME, &used, DEFAULT_PORT)?;
            if let Some(tls) = tls {
                tls.check_server_name(&used.host)?;
            }
            if map.iter().any(|(known, _)| *known == shown) {
                let message = format!("{NAME} must map each address once, got {} twice", quoted(&shown.to_string()));
                return Err(Error::config(NAME, message));
            }
            map.push((shown, used));
        }
        map.sort_by(|(one, _), (other, _)| (&one.host, one.port).cmp(&(&other.host, other.port)));
        Ok(Self(map.into()))
    }

    /// The address to connect to for an address that a node has shown.
    pub(crate) fn to_use(&self, shown: Node) -> Node {
        if self.0.is_empty() {
            return shown;
        }
        let wanted = normal(&shown);
        self.0.iter().find(|(known, _)| *known == wanted).map_or(shown, |(_, used)| used.clone())
    }

    pub(super) fn value(&self) -> Option<OptionValue> {
        let pairs: Vec<_> = self.0.iter().map(|(shown, used)| format!("{shown}={used}")).collect();
        (!pairs.is_empty()).then(|| OptionValue::text(&pairs.join(",")))
    }
}

/// The normalised form of an address, for comparison.
fn normal(node: &Node) -> Node {
    let host = node.host.parse::<IpAddr>().map_or_else(|_| node.host.to_ascii_lowercase(), |ip| ip.to_string());
    Node { host, port: node.port }
}

/// Parses `{"10.0.0.1:6379": "proxy:7001"}`.
fn of_json(text: &str) -> Option<Vec<(String, String)>> {
    let map: Map<String, Value> = serde_json::from_str(text).ok()?;
    map.into_iter().map(|(shown, used)| Some((shown, used.as_str()?.to_owned()))).collect()
}

/// Parses `10.0.0.1:6379=proxy:7001,10.0.0.2:6379=proxy:7002`.
fn of_text(text: &str) -> Option<Vec<(String, String)>> {
    text.split(',')
        .map(|pair| pair.split_once('=').map(|(shown, used)| (shown.trim().to_owned(), used.trim().to_owned())))
        .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::super::option::Form;
    use super::super::options::OPTIONS;
    use super::*;

    fn read(text: &str) -> Result<NodeMap> {
        let options = [(NAME.to_owned(), OptionValue::text(text))];
        NodeMap::read(&mut Given::collect(OPTIONS, options, Form::Text)?, None)
    }

    fn node(text: &str) -> Node {
        Node::read("nodes", text, DEFAULT_PORT).unwrap()
    }

    #[test]
    fn both_forms_give_the_same_map() {
        let map = read("10.0.0.1:6379=proxy:7001, [::1]:1 = [fe80::1]:2").unwrap();
        assert_eq!(map, read(r#"{"10.0.0.1": "proxy:7001", "[0:0:0:0:0:0:0:1]:1": "[fe80::1]:2"}"#).unwrap());
        for (shown, used) in [
            ("10.0.0.1:6379", "proxy:7001"),
            ("10.0.0.1:6380", "10.0.0.1:6380"),
            ("[::1]:1", "[fe80::1]:2"),
            ("proxy:7001", "proxy:7001"),
        ] {
            assert_eq!(map.to_use(node(shown)).to_string(), used);
        }
        assert_eq!(read("DB1:1=a:1").unwrap().to_use(node("db1:1")).host, "a");
        assert_eq!(NodeMap::default().to_use(node("a:1")), node("a:1"));
        let Some(OptionValue::Text(text)) = map.value() else { panic!("it has a value") };
        assert_eq!(read(&text).unwrap(), map);
    }

    #[test]
    fn bad_entries_are_refused() {
        let pairs = "node_map must be a mapping from ";
        for (text, start) in [
            ("", pairs),
            ("{}", pairs),
            ("a:1", pairs),
            ("a:1=b:1,", pairs),
            (r#"{"a:1": 7}"#, pairs),
            (r#"{"a:1": "b:1""#, pairs),
            ("a:0=b:1", "node_map must be hosts with or without a port ('host:6379'), got 'a:0'"),
            ("a:1=b:x", "node_map must be hosts with or without a port ('host:6379'), got 'b:x'"),
            ("a:1=", "node_map must be hosts with or without a port ('host:6379'), got ''"),
            ("a=b,A:6379=c", "node_map must map each address once, got 'a:6379' twice"),
        ] {
            let refused = read(text).unwrap_err().to_string();
            assert!(refused.starts_with(start), "{text}: {refused}");
        }
    }
}
