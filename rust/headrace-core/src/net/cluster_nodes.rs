//! The nodes of a cluster: which nodes exist, and what they say about the owners of slots.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Instant;

use redis::Value;

use super::deadline::{ConnectError, Deadline, Stage, Watch};
use super::handshake::Greeting;
use super::peer::Peer;
use super::stream::Transport;
use crate::cluster::{Members, NodeName, Redirect, Slots};
use crate::endpoint::{Address, Endpoint, Node, NodeMap, Settings};
use crate::error::{Fault, code};
use crate::resp::value;

/// The maximum number of nodes in a cluster: more than any real one. With more, the work for each of them would take too
/// long.
const MAX_NODES: usize = 4_000;

/// The nodes that the cluster has listed, the owners of slots first. Only these get credentials.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClusterNodes {
    listed: Vec<Node>,
    /// Where to connect for the addresses that the nodes show.
    map: NodeMap,
}

/// What a node said about the owners of slots.
#[derive(Debug)]
pub(crate) struct SlotMap {
    slots: Slots,
    sender: Node,
    map: NodeMap,
}

impl SlotMap {
    /// The node that has this slot, as far as the sender knows.
    pub(crate) fn owner(&self, slot: u16) -> Option<Node> {
        self.slots.owner(slot).map(|name| named(name, &self.sender, &self.map))
    }

    /// The ranges of slots and the node that owns each.
    pub(crate) fn owned(&self) -> Vec<(RangeInclusive<u16>, Node)> {
        self.slots.owned().map(|(slots, name)| (slots, named(name, &self.sender, &self.map))).collect()
    }

    /// Each replica, with its master.
    pub(crate) fn replicas(&self) -> Vec<(Node, Node)> {
        let named = |name| named(name, &self.sender, &self.map);
        let mut found: Vec<_> = Vec::new();
        for pair in self.slots.followers().map(|(replica, master)| (named(replica), named(master))) {
            if !found.contains(&pair) {
                found.push(pair);
            }
        }
        found
    }
}

impl ClusterNodes {
    /// `map` says where to connect for the addresses that the nodes show.
    pub(crate) fn new(map: NodeMap) -> Self {
        Self { map, ..Self::default() }
    }

    /// The nodes to ask, without duplicates. `first` is asked first, because it redirected a command; `last` is asked last,
    /// because it did not even answer.
    pub(super) fn candidates(&self, seeds: Vec<Node>, (first, last): (Option<&Node>, Option<&Node>)) -> Vec<Node> {
        let mut nodes: Vec<Node> = Vec::new();
        for node in self.listed.iter().cloned().chain(seeds) {
            if !nodes.contains(&node) {
                nodes.push(node);
            }
        }
        nodes.sort_by_key(|node| (Some(node) != first, Some(node) == last));
        nodes
    }

    /// Asks the nodes one after the other until one says who owns the slots. The remaining time is divided among the nodes
    /// still to be tried. `slot` is the slot that they are asked for. For `ends`, see [`candidates`](Self::candidates).
    pub(crate) async fn ask_any(
        &mut self,
        endpoint: &Endpoint,
        settings: &Settings,
        slot: u16,
        ends: (Option<&Node>, Option<&Node>),
        watch: &mut dyn Watch,
    ) -> Result<SlotMap, ConnectError> {
        let Some(cluster) = endpoint.cluster() else {
            return Err(Fault::new(code::CONFIG, "the endpoint does not name a cluster").into());
        };
        let now = Instant::now();
        let until = now.checked_add(settings.connect_timeout).unwrap_or(now);
        let mut patience = Deadline::new(until, watch);
        let candidates = self.candidates(cluster.seeds(settings.port), ends);
        let mut faults = Vec::new();
        for (tried, node) in candidates.iter().enumerate() {
            match self.ask(endpoint, settings, node, &mut patience.part(candidates.len() - tried)).await {
                Ok(map) => return Ok(map),
                Err(ConnectError::Fault(fault)) => faults.push(fault),
                Err(ConnectError::Interrupted) => return Err(ConnectError::Interrupted),
            }
        }
        Err(no_answer(slot, faults).into())
    }

    /// What `node` says about the owners of slots. Several nodes may share its name: each of its addresses is asked in turn,
    /// and an address that accepts connections but stays silent leaves time for the next.
    pub(super) async fn ask(
        &mut self,
        endpoint: &Endpoint,
        settings: &Settings,
        node: &Node,
        patience: &mut Deadline<'_>,
    ) -> Result<SlotMap, ConnectError> {
        let address = Address::Tcp { host: node.host.clone(), port: node.port };
        let title = format!("the node {node}");
        let (access, timeout) = (endpoint.access(), settings.connect_timeout);
        let mut peer = Peer { address: &address, dial: None, title, access, greeting: Greeting::Lookup, timeout };
        let addresses = peer.addresses(patience).await?;
        self.ask_each(&mut peer, &addresses, node, patience).await
    }

    pub(super) async fn ask_each(
        &mut self,
        peer: &mut Peer<'_>,
        addresses: &[SocketAddr],
        node: &Node,
        patience: &mut Deadline<'_>,
    ) -> Result<SlotMap, ConnectError> {
        let mut refusal = Fault::new(code::DNS, "the host name has no address");
        for (tried, address) in addresses.iter().enumerate() {
            peer.dial = Some(*address);
            match self.ask_peer(peer, node, &mut patience.part(addresses.len() - tried)).await {
                // A refusal that is not temporary is reported for all addresses.
                Err(ConnectError::Fault(fault)) if code::is_away(&refusal.code) => refusal = fault,
                Err(ConnectError::Fault(_)) => {}
                answered => return answered,
            }
        }
        Err(refusal.into())
    }

    async fn ask_peer(
        &mut self,
        peer: &Peer<'_>,
        node: &Node,
        patience: &mut Deadline<'_>,
    ) -> Result<SlotMap, ConnectError> {
        let mut transport = peer.connect(patience).await?;
        let fault = match self.ask_on(&mut transport, node, patience).await {
            Ok(Ok(map)) => {
                transport.close();
                return Ok(map);
            }
            Ok(Err(refusal)) => refusal,
            Err(ConnectError::Fault(fault)) => peer.explained(fault, patience.stage()),
            Err(ConnectError::Interrupted) => return Err(ConnectError::Interrupted),
        };
        transport.abort();
        Err(fault.into())
    }

    /// What the node at the other end says about the owners of slots, or why it does not say. Nothing may be in flight on the
    /// connection.
    async fn ask_on(
        &mut self,
        transport: &mut Transport,
        node: &Node,
        patience: &mut Deadline<'_>,
    ) -> Result<Result<SlotMap, Fault>, ConnectError> {
        patience.enter(Stage::Request);
        Ok(match transport.query(redis::cmd("CLUSTER").arg("SLOTS"), patience).await? {
            Ok(reply) => self.note(&reply, node),
            Err(refusal) => Err(refused(&format!("the node {node}"), refusal)),
        })
    }

    /// Asks the node at the other end of a connection. `None` if it refuses to say. After a fault the connection is unusable.
    pub(crate) async fn ask_connected(
        &mut self,
        transport: &mut Transport,
        settings: &Settings,
        node: &Node,
        watch: &mut dyn Watch,
    ) -> Result<Option<SlotMap>, ConnectError> {
        let now = Instant::now();
        let until = now.checked_add(settings.connect_timeout).unwrap_or(now);
        Ok(self.ask_on(transport, node, &mut Deadline::new(until, watch)).await?.ok())
    }

    /// The number of replicas of the node at the other end of a connection, or why it does not say. `None` if it has no
    /// slots.
    pub(crate) async fn replicas_of(
        &mut self,
        transport: &mut Transport,
        node: &Node,
        patience: &mut Deadline<'_>,
    ) -> Result<Result<Option<u64>, Fault>, ConnectError> {
        let map = self.ask_on(transport, node, patience).await?;
        let is_own = |name: &NodeName| named(name, node, &self.map) == *node;
        Ok(map.map(|map| map.slots.replicas(is_own).map(|count| count as u64)))
    }

    /// Asks `sender`, the node at the other end of a connection, whether the node to which it redirected a command is in the
    /// cluster, and lists that node if so. CLUSTER SLOTS does not list a node that takes over its first slot; CLUSTER NODES
    /// does, from the same knowledge. Nothing is listed if the user may not ask, or if the sender does not know the node.
    /// After a fault the connection is unusable.
    pub(crate) async fn confirm(
        &mut self,
        transport: &mut Transport,
        settings: &Settings,
        redirect: &Redirect,
        sender: &Node,
        watch: &mut dyn Watch,
    ) -> Result<(), ConnectError> {
        let Some(name) = &redirect.node else { return Ok(()) };
        let now = Instant::now();
        let until = now.checked_add(settings.connect_timeout).unwrap_or(now);
        let reply = transport.query(redis::cmd("CLUSTER").arg("NODES"), &mut Deadline::new(until, watch)).await?;
        let members = reply.ok().as_ref().and_then(value::bytes).map(Members::read);
        if members.is_some_and(|members| members.contain(name)) {
            self.listed.push(named(name, sender, &self.map));
        }
        Ok(())
    }

    /// Records the nodes in a reply to CLUSTER SLOTS.
    fn note(&mut self, reply: &Value, sender: &Node) -> Result<SlotMap, Fault> {
        let Some(slots) = Slots::read(reply) else {
            let message = format!("the reply of {sender} to CLUSTER SLOTS is not a list of slots");
            return Err(Fault::new(code::PROTOCOL, message));
        };
        let mut listed = Vec::new();
        for name in slots.nodes() {
            let node = named(name, sender, &self.map);
            if !listed.contains(&node) {
                listed.push(node);
            }
            if listed.len() > MAX_NODES {
                let message = format!("the reply of {sender} to CLUSTER SLOTS has more than {MAX_NODES} nodes");
                return Err(Fault::new(code::PROTOCOL, message));
            }
        }
        self.listed = listed;
        Ok(SlotMap { slots, sender: sender.clone(), map: self.map.clone() })
    }

    /// The node to which `sender` redirected a command, if the cluster has listed it.
    pub(crate) fn target(&self, redirect: &Redirect, sender: Option<&Node>) -> Option<Node> {
        let target = named(redirect.node.as_ref()?, sender?, &self.map);
        self.listed.contains(&target).then_some(target)
    }
}

/// Connects to a node, with the handshake for a server that gets messages. `streams` are the streams that the node has.
pub(crate) async fn connect_to_node(
    endpoint: &Endpoint,
    settings: &Settings,
    node: &Node,
    streams: &[Vec<u8>],
    watch: &mut dyn Watch,
) -> Result<Transport, ConnectError> {
    let now = Instant::now();
    let deadline = now.checked_add(settings.connect_timeout).unwrap_or(now);
    open(endpoint, settings, node, streams, &mut Deadline::new(deadline, watch)).await
}

pub(super) async fn open(
    endpoint: &Endpoint,
    settings: &Settings,
    node: &Node,
    streams: &[Vec<u8>],
    patience: &mut Deadline<'_>,
) -> Result<Transport, ConnectError> {
    let address = Address::Tcp { host: node.host.clone(), port: node.port };
    let greeting = Greeting::Server { endpoint, settings, streams };
    let (access, timeout) = (endpoint.access(), settings.connect_timeout);
    Peer { address: &address, dial: None, title: node.to_string(), access, greeting, timeout }.connect(patience).await
}

/// Where to connect for a name that `sender` has shown.
fn named(name: &NodeName, sender: &Node, map: &NodeMap) -> Node {
    map.to_use(Node { host: name.host.clone().unwrap_or_else(|| sender.host.clone()), port: name.port })
}

/// Whether a server refused a command because another node has the slot.
pub(crate) fn is_redirect(fault: &Fault) -> bool {
    ["MOVED", "ASK"].contains(&&*fault.code)
}

/// The fault for a node that refuses CLUSTER SLOTS.
fn refused(title: &str, refusal: Fault) -> Fault {
    let said = format!("{title} refused CLUSTER SLOTS, which says where a stream is: {}", refusal.message);
    if refusal.code == "ERR" {
        // Cluster support is off, or it is a sentinel or a proxy.
        let hint = "for a server that is not a cluster node, give host and topology='single'";
        return Fault::new(code::UNSUPPORTED, format!("{said}; {hint}"));
    }
    let hint = match &*refusal.code {
        "NOPERM" => {
            "; the user needs the right +cluster|slots, or give host and topology='single' to use this node alone"
        }
        _ => "",
    };
    Fault { message: Fault::new(code::UNSUPPORTED, format!("{said}{hint}")).message, ..refusal }
}

/// The fault if no node gave an answer. A refusal that is not temporary is reported for all of them.
pub(super) fn no_answer(slot: u16, mut faults: Vec<Fault>) -> Fault {
    if let Some(at) = faults.iter().position(|fault| !code::is_away(&fault.code)) {
        return faults.swap_remove(at);
    }
    let said: Vec<_> = faults.into_iter().map(|fault| fault.message).collect();
    Fault::new(code::NO_SLOT, format!("no node says which node has slot {slot}: {}", said.join("; ")))
}
