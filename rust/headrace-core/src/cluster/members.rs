//! The masters that a node knows: the reply to CLUSTER NODES, which also lists those without slots.

use super::node_name::NodeName;

/// The names of masters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Members(Vec<NodeName>);

impl Members {
    /// The masters in a reply to CLUSTER NODES, except those that have failed and those that the cluster does not know as its own
    /// yet. <https://redis.io/docs/latest/commands/cluster-nodes/>
    pub(crate) fn read(reply: &[u8]) -> Self {
        let text = String::from_utf8_lossy(reply);
        Self(text.lines().filter_map(names).flatten().collect())
    }

    /// Whether a master has this name. A name without a host, which stands for the host of its sender, is compared by its port.
    pub(crate) fn contain(&self, name: &NodeName) -> bool {
        self.0.iter().any(|known| known.port == name.port && (name.host.is_none() || known.host == name.host))
    }
}

/// `id ip:port@bus[,hostname[,…]] flags …`: the names of a master.
fn names(line: &str) -> Option<Vec<NodeName>> {
    let mut words = line.split(' ');
    let (address, flags) = (words.nth(1)?, words.next()?);
    let has = |flag| flags.split(',').any(|has| has == flag);
    if !has("master") || ["fail", "handshake", "noaddr"].iter().any(|flag| has(flag)) {
        return None;
    }
    let mut parts = address.split(',');
    let (host, port) = parts.next()?.split('@').next()?.rsplit_once(':')?;
    let hosts = [Some(host), parts.next().filter(|name| !name.contains('='))];
    let named = hosts.into_iter().flatten().filter_map(|host| NodeName::new(host.as_bytes(), port.parse().ok()));
    Some(named.filter(|name| name.host.is_some()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Redis 6.2, 7.0 and 8.6 show them.
    const REPLY: &[u8] = b"\
        a 10.0.0.1:6379@16379 myself,master - 0 0 1 connected 0-16383 [3828->-b]\n\
        b 10.0.0.2:6379@16379,db2 master - 0 1 2 connected\n\
        c ::1:6380@16380,,shard-id=69bc master,fail? - 0 1 2 connected\n\
        d 10.0.0.4:6379@16379,db4,shard-id=69bc slave a 0 1 2 connected\n\
        e 10.0.0.5:6379@16379 handshake - 0 1 2 connected\n\
        f 10.0.0.6:6379@16379 master,fail - 0 1 2 disconnected\n\
        g :0@0 master,noaddr - 0 1 2 disconnected\n\
        h 10.0.0.7:6381@16381,shard-id=69bc master - 0 1 2 connected\n\
        i\n";

    #[test]
    fn masters_are_found_by_address_or_host_name() {
        let members = Members::read(REPLY);
        let contain = |host: Option<&str>, port| members.contain(&NodeName { host: host.map(str::to_owned), port });
        for (host, port) in [("10.0.0.1", 6379), ("10.0.0.2", 6379), ("db2", 6379), ("::1", 6380), ("10.0.0.7", 6381)] {
            assert!(contain(Some(host), port), "{host}");
        }
        for (host, port) in [
            ("10.0.0.1", 6380),
            ("10.0.0.4", 6379),
            ("db4", 6379),
            ("10.0.0.5", 6379),
            ("10.0.0.6", 6379),
            ("shard-id=69bc", 6381),
            ("", 0),
        ] {
            assert!(!contain(Some(host), port), "{host}");
        }
        assert!(contain(None, 6380) && !contain(None, 1));
        assert!(!Members::read(b"").contain(&NodeName { host: None, port: 6379 }));
    }
}
