//! The option `node_map`: where to connect for the addresses that nodes of a cluster show, for nodes behind NAT or forwarded
//! ports.

use serde_json::{Map, Value};

use super::given::Given;
use super::node::read_node;
use super::option::{OptionValue, quoted};
use super::server::DEFAULT_PORT;
use super::tls::Tls;
use crate::cluster::{Node, NodeMap};
use crate::error::{Error, Result};

const NAME: &str = "node_map";

/// The map that the option gives; empty without it.
pub(super) fn read_node_map(given: &mut Given, tls: Option<&Tls>) -> Result<NodeMap> {
    let Some(value) = given.value(NAME) else { return Ok(NodeMap::default()) };
    let pairs = match &value {
        OptionValue::Text(text) if text.trim_start().starts_with('{') => of_json(text),
        OptionValue::Text(text) => of_text(text),
        _ => None,
    };
    let pairs = pairs.filter(|pairs| !pairs.is_empty()).ok_or_else(|| given.refuse(NAME, &value))?;
    let read = |(shown, used): (String, String)| {
        let (shown, used) = (read_node(NAME, &shown, DEFAULT_PORT)?, read_node(NAME, &used, DEFAULT_PORT)?);
        if let Some(tls) = tls {
            tls.check_server_name(&used.host)?;
        }
        Ok((shown, used))
    };
    let pairs: Vec<(Node, Node)> = pairs.into_iter().map(read).collect::<Result<_>>()?;
    NodeMap::new(pairs).map_err(|twice| {
        Error::config(NAME, format!("{NAME} must map each address once, got {} twice", quoted(&twice.to_string())))
    })
}

/// The value of the option; `None` for an empty map.
pub(super) fn value_of(map: &NodeMap) -> Option<OptionValue> {
    let pairs: Vec<_> = map.pairs().iter().map(|(shown, used)| format!("{shown}={used}")).collect();
    (!pairs.is_empty()).then(|| OptionValue::text(&pairs.join(",")))
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
        read_node_map(&mut Given::collect(OPTIONS, options, Form::Text)?, None)
    }

    fn node(text: &str) -> Node {
        read_node("nodes", text, DEFAULT_PORT).unwrap()
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
        let Some(OptionValue::Text(text)) = value_of(&map) else { panic!("it has a value") };
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
