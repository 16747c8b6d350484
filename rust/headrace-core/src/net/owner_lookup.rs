//! Which node of a cluster has a slot: nodes are asked at the first connect and when the last answer is of no more use; redirects
//! correct it.

use std::time::Instant;

use redis::Value;

use super::deadline::{ConnectError, Deadline, Stage};
use super::handshake::Greeting;
use super::peer::Peer;
use super::stream::Transport;
use crate::cluster::{NodeName, Redirect, Slots, slot};
use crate::endpoint::{Address, Cluster, Endpoint, Node, Settings};
use crate::error::{Fault, code};

/// What the nodes say about one slot.
#[derive(Debug)]
pub(crate) struct OwnerLookup {
    slot: u16,
    /// The nodes that the cluster has listed, those that own slots first. No other one gets credentials.
    listed: Vec<Node>,
    /// Where the slot is, as far as is known.
    owner: Option<Node>,
    /// Where the last connection went.
    current: Option<Node>,
}

impl OwnerLookup {
    /// Of the slot of `key`.
    pub(super) fn new(key: &[u8]) -> Self {
        Self { slot: slot(key), listed: Vec::new(), owner: None, current: None }
    }

    /// Connects to the node that has the slot. The time there is, is shared by the nodes that have to be tried.
    pub(super) fn connect(
        &mut self,
        endpoint: &Endpoint,
        settings: &Settings,
        cluster: &Cluster,
        patience: &mut Deadline<'_>,
    ) -> Result<Transport, ConnectError> {
        let mut refused: Vec<(Node, Fault)> = Vec::new();
        if let Some(owner) = self.owner.take() {
            let mut part = patience.until(Instant::now() + patience.left() / 2);
            match self.open(endpoint, settings, owner.clone(), &mut part) {
                Err(ConnectError::Fault(fault)) => refused.push((owner, fault)),
                opened => return opened,
            }
        }
        let candidates = self.candidates(cluster.seeds(settings.port), refused.first().map(|(owner, _)| owner));
        let mut faults = Vec::new();
        for (tried, node) in candidates.iter().enumerate() {
            let share = patience.left() / u32::try_from(candidates.len() - tried).unwrap_or(u32::MAX);
            let mut part = patience.until(Instant::now() + share);
            let owner = match self.ask(endpoint, settings, node, &mut part) {
                Ok(Some(owner)) => owner,
                Ok(None) => {
                    faults.push(Fault::new(code::NO_SLOT, format!("{node} says that no node has slot {}", self.slot)));
                    continue;
                }
                Err(ConnectError::Fault(fault)) => {
                    faults.push(fault);
                    continue;
                }
                Err(ConnectError::Interrupted) => return Err(ConnectError::Interrupted),
            };
            if refused.iter().any(|(known, _)| *known == owner) {
                continue;
            }
            match self.open(endpoint, settings, owner.clone(), &mut part) {
                Err(ConnectError::Fault(fault)) => refused.push((owner, fault)),
                opened => return opened,
            }
        }
        Err(match refused.pop() {
            Some((_, fault)) if !is_redirect(&fault) => fault,
            Some((node, fault)) => {
                let message = format!("the nodes disagree about slot {}: {node} says {}", self.slot, fault.message);
                Fault::new(code::NO_SLOT, message)
            }
            None => no_owner(self.slot, faults),
        }
        .into())
    }

    /// The nodes to ask, each once: `last` is asked last, for it did not even answer.
    fn candidates(&self, seeds: Vec<Node>, last: Option<&Node>) -> Vec<Node> {
        let mut nodes: Vec<Node> = Vec::new();
        for node in self.listed.iter().cloned().chain(seeds) {
            if !nodes.contains(&node) {
                nodes.push(node);
            }
        }
        nodes.sort_by_key(|node| Some(node) == last);
        nodes
    }

    fn open(
        &mut self,
        endpoint: &Endpoint,
        settings: &Settings,
        node: Node,
        patience: &mut Deadline<'_>,
    ) -> Result<Transport, ConnectError> {
        let address = Address::Tcp { host: node.host.clone(), port: node.port };
        let greeting = Greeting::Server { endpoint, settings };
        let (access, timeout) = (endpoint.access(), settings.connect_timeout);
        let transport =
            Peer { address: &address, title: node.to_string(), access, greeting, timeout }.connect(patience)?;
        self.owner = Some(node.clone());
        self.current = Some(node);
        Ok(transport)
    }

    /// The node that `node` names as the owner of the slot.
    fn ask(
        &mut self,
        endpoint: &Endpoint,
        settings: &Settings,
        node: &Node,
        patience: &mut Deadline<'_>,
    ) -> Result<Option<Node>, ConnectError> {
        let address = Address::Tcp { host: node.host.clone(), port: node.port };
        let title = format!("the node {node}");
        let (access, timeout) = (endpoint.access(), settings.connect_timeout);
        let peer = Peer { address: &address, title, access, greeting: Greeting::Lookup, timeout };
        let mut transport = peer.connect(patience)?;
        patience.enter(Stage::Request);
        let replied = transport.query(redis::cmd("CLUSTER").arg("SLOTS"), patience);
        let fault = match replied {
            Ok(Ok(reply)) => {
                transport.close();
                return self.note(&reply, node).map_err(ConnectError::Fault);
            }
            Ok(Err(refusal)) => refused(&peer.title, refusal),
            Err(ConnectError::Fault(fault)) => peer.explained(fault, patience.stage()),
            Err(ConnectError::Interrupted) => return Err(ConnectError::Interrupted),
        };
        transport.abort();
        Err(fault.into())
    }

    /// Notes which nodes there are; returns the owner of the slot.
    fn note(&mut self, reply: &Value, sender: &Node) -> Result<Option<Node>, Fault> {
        let Some(slots) = Slots::read(reply) else {
            let message = format!("the reply of {sender} to CLUSTER SLOTS is no list of slots");
            return Err(Fault::new(code::PROTOCOL, message));
        };
        self.listed.clear();
        for name in slots.nodes() {
            let node = named(name, sender);
            if !self.listed.contains(&node) {
                self.listed.push(node);
            }
        }
        Ok(slots.owner(self.slot).map(|name| named(name, sender)))
    }

    /// A node sent a command elsewhere: the next connection goes there, if the cluster has listed that node; otherwise nodes are
    /// asked again. Returns whether it goes there.
    pub(super) fn redirect(&mut self, redirect: &Redirect) -> bool {
        let target = match (&redirect.node, &self.current) {
            (Some(NodeName { host: Some(host), port }), _) => Some(Node { host: host.clone(), port: *port }),
            (Some(NodeName { host: None, port }), Some(current)) => {
                Some(Node { host: current.host.clone(), port: *port })
            }
            (Some(_) | None, _) => None,
        };
        self.owner = target.filter(|target| self.listed.contains(target));
        self.owner.is_some()
    }

    /// What is known of the slot is of no more use.
    pub(super) fn refresh(&mut self) {
        self.owner = None;
    }
}

fn named(name: &NodeName, sender: &Node) -> Node {
    Node { host: name.host.clone().unwrap_or_else(|| sender.host.clone()), port: name.port }
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
        let hint = "for a server that is no node of a cluster leave topology and nodes out, and give host";
        return Fault::new(code::UNSUPPORTED, format!("{said}; {hint}"));
    }
    Fault { message: Fault::new(code::UNSUPPORTED, said).message, ..refusal }
}

/// The fault for nodes none of which named an owner. A refusal that does not pass is that of all of them.
fn no_owner(slot: u16, mut faults: Vec<Fault>) -> Fault {
    if let Some(at) = faults.iter().position(|fault| !code::is_away(&fault.code)) {
        return faults.swap_remove(at);
    }
    let said: Vec<_> = faults.into_iter().map(|fault| fault.message).collect();
    Fault::new(code::NO_SLOT, format!("no node says which one has slot {slot}: {}", said.join("; ")))
}
