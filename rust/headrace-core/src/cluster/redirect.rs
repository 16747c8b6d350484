//! The reply of a node to a command for a slot that another node has.

use super::node_name::NodeName;
use super::slot::SLOTS;

/// A MOVED or ASK reply: the server refused a command, which was not written, and names the node to send it to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Redirect {
    pub(crate) slot: u16,
    /// `None`: the server does not know the host of the other node.
    pub(crate) node: Option<NodeName>,
    /// Whether only this command goes to the node, after ASKING: the slot is being moved.
    pub(crate) is_ask: bool,
}

impl Redirect {
    /// The redirect in an error reply without its `-`: `MOVED 3828 127.0.0.1:6381`, `ASK 3828 :6381`.
    pub(crate) fn read(line: &[u8]) -> Option<Self> {
        let (rest, is_ask) = match line.strip_prefix(b"MOVED ") {
            Some(rest) => (rest, false),
            None => (line.strip_prefix(b"ASK ")?, true),
        };
        let (slot, node) = std::str::from_utf8(rest).ok()?.split_once(' ')?;
        let slot = slot.parse().ok().filter(|slot| *slot < SLOTS)?;
        let (host, port) = node.rsplit_once(':')?;
        Some(Self { slot, node: NodeName::new(host.as_bytes(), port.parse().ok()), is_ask })
    }

    /// The redirect in a message that ends with such an error reply.
    pub(crate) fn within(message: &str) -> Option<Self> {
        let at = ["MOVED ", "ASK "].iter().filter_map(|start| message.find(start)).min()?;
        Self::read(message.get(at..)?.as_bytes())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn redirects_name_a_slot_and_a_node() {
        let name = |host: Option<&str>, port| NodeName { host: host.map(str::to_owned), port };
        for (line, slot, node, is_ask) in [
            ("MOVED 3828 127.0.0.1:17000", 3828, Some(name(Some("127.0.0.1"), 17_000)), false),
            ("ASK 0 db1.example:6379", 0, Some(name(Some("db1.example"), 6379)), true),
            ("MOVED 16383 ::1:6379", 16_383, Some(name(Some("::1"), 6379)), false),
            ("MOVED 1 :6379", 1, Some(name(None, 6379)), false),
            ("MOVED 1 ?:6379", 1, None, false),
            ("MOVED 1 db1:0", 1, None, false),
            ("MOVED 1 db1:70000", 1, None, false),
            ("MOVED 1 db 1:6379", 1, None, false),
        ] {
            assert_eq!(Redirect::read(line.as_bytes()).unwrap(), Redirect { slot, node, is_ask }, "{line}");
        }
        for line in
            ["MOVED 16384 a:1", "MOVED -1 a:1", "MOVED 1", "MOVED", "MOVED x a:1", "ASKING 1 a:1", "ERR MOVED 1 a:1"]
        {
            assert_eq!(Redirect::read(line.as_bytes()), None, "{line}");
        }
        assert_eq!(Redirect::read(b"MOVED 1 \xff:1"), None);
        assert_eq!(Redirect::within("XREAD was refused: MOVED 1 a:1"), Redirect::read(b"MOVED 1 a:1"));
        assert_eq!(Redirect::within("XREAD was refused: no"), None);
    }
}
