//! Asks the nodes of a cluster who owns which slots, and connects to them. What they say is in a [`ClusterMap`].

use std::net::SocketAddr;
use std::time::Instant;

use redis::Value;

use super::deadline::{ConnectError, Deadline, Stage, Watch};
use super::handshake::Greeting;
use super::peer::Peer;
use super::stream::Transport;
use crate::cluster::{ClusterMap, MAX_NODES, Members, Moved, Node, Redirect, Slots, TooManyNodes};
use crate::endpoint::{Address, Endpoint, Settings};
use crate::error::{Fault, code};
use crate::resp::value;

/// Asks the nodes one after the other until one says who owns the slots, and notes it in `map`. The remaining time is divided
/// among the nodes still to be tried. `slot` is the slot that they are asked for.
pub(crate) async fn ask_any(
    map: &mut ClusterMap,
    endpoint: &Endpoint,
    settings: &Settings,
    slot: u16,
    watch: &mut dyn Watch,
) -> Result<Vec<Moved>, ConnectError> {
    let Some(cluster) = endpoint.cluster() else {
        return Err(Fault::new(code::CONFIG, "the endpoint does not name a cluster").into());
    };
    let now = Instant::now();
    let until = now.checked_add(settings.connect_timeout).unwrap_or(now);
    let mut patience = Deadline::new(until, watch);
    let candidates = map.candidates(cluster.seeds(settings.port));
    let mut faults = Vec::new();
    for (tried, node) in candidates.iter().enumerate() {
        match ask(map, endpoint, settings, node, &mut patience.part(candidates.len() - tried)).await {
            Ok(moved) => return Ok(moved),
            Err(ConnectError::Fault(fault)) => faults.push(fault),
            Err(ConnectError::Interrupted) => return Err(ConnectError::Interrupted),
        }
    }
    Err(no_answer(slot, faults).into())
}

/// Asks `node` about the owners of slots. Several nodes may share its name: each of its addresses is asked in turn, and an
/// address that accepts connections but stays silent leaves time for the next.
async fn ask(
    map: &mut ClusterMap,
    endpoint: &Endpoint,
    settings: &Settings,
    node: &Node,
    patience: &mut Deadline<'_>,
) -> Result<Vec<Moved>, ConnectError> {
    let address = Address::Tcp { host: node.host.clone(), port: node.port };
    let title = format!("the node {node}");
    let (access, timeout) = (endpoint.access(), settings.connect_timeout);
    let mut peer = Peer { address: &address, dial: None, title, access, greeting: Greeting::Lookup, timeout };
    let addresses = peer.addresses(patience).await?;
    ask_each(map, &mut peer, &addresses, node, patience).await
}

pub(super) async fn ask_each(
    map: &mut ClusterMap,
    peer: &mut Peer<'_>,
    addresses: &[SocketAddr],
    node: &Node,
    patience: &mut Deadline<'_>,
) -> Result<Vec<Moved>, ConnectError> {
    let mut refusal = Fault::new(code::DNS, "the host name has no address");
    for (tried, address) in addresses.iter().enumerate() {
        peer.dial = Some(*address);
        match ask_peer(map, peer, node, &mut patience.part(addresses.len() - tried)).await {
            // A refusal that is not temporary is reported for all addresses.
            Err(ConnectError::Fault(fault)) if code::is_away(&refusal.code) => refusal = fault,
            Err(ConnectError::Fault(_)) => {}
            answered => return answered,
        }
    }
    Err(refusal.into())
}

async fn ask_peer(
    map: &mut ClusterMap,
    peer: &Peer<'_>,
    node: &Node,
    patience: &mut Deadline<'_>,
) -> Result<Vec<Moved>, ConnectError> {
    let mut transport = peer.connect(patience).await?;
    let fault = match ask_on(map, &mut transport, node, patience).await {
        Ok(Ok(moved)) => {
            transport.close();
            return Ok(moved);
        }
        Ok(Err(refusal)) => refusal,
        Err(ConnectError::Fault(fault)) => peer.explained(fault, patience.stage()),
        Err(ConnectError::Interrupted) => return Err(ConnectError::Interrupted),
    };
    transport.abort();
    Err(fault.into())
}

/// Asks the node at the other end about the owners of slots. Returns which have moved, or why it does not say. Nothing may be in
/// flight on the connection.
async fn ask_on(
    map: &mut ClusterMap,
    transport: &mut Transport,
    node: &Node,
    patience: &mut Deadline<'_>,
) -> Result<Result<Vec<Moved>, Fault>, ConnectError> {
    patience.enter(Stage::Request);
    Ok(match transport.query(redis::cmd("CLUSTER").arg("SLOTS"), patience).await? {
        Ok(reply) => note(map, &reply, node),
        Err(refusal) => Err(refused(&format!("the node {node}"), refusal)),
    })
}

/// Asks the node at the other end of a connection. `None` if it refuses to say. After a fault the connection is unusable.
pub(crate) async fn ask_connected(
    map: &mut ClusterMap,
    transport: &mut Transport,
    settings: &Settings,
    node: &Node,
    watch: &mut dyn Watch,
) -> Result<Option<Vec<Moved>>, ConnectError> {
    let now = Instant::now();
    let until = now.checked_add(settings.connect_timeout).unwrap_or(now);
    Ok(ask_on(map, transport, node, &mut Deadline::new(until, watch)).await?.ok())
}

/// The number of replicas of the node at the other end of a connection, or why it does not say. `None` if it has no slots.
pub(crate) async fn replicas_of(
    map: &mut ClusterMap,
    transport: &mut Transport,
    node: &Node,
    patience: &mut Deadline<'_>,
) -> Result<Result<Option<u64>, Fault>, ConnectError> {
    let asked = ask_on(map, transport, node, patience).await?;
    Ok(asked.map(|_| map.replicas_of(node)))
}

/// Asks `sender`, the node at the other end of a connection, whether the node to which it redirected a command is in the cluster,
/// and lists that node if so. CLUSTER SLOTS does not list a node that takes over its first slot; CLUSTER NODES does, from the
/// same knowledge. Nothing is listed if the user may not ask, or if the sender does not know the node. After a fault the
/// connection is unusable.
pub(crate) async fn confirm(
    map: &mut ClusterMap,
    transport: &mut Transport,
    settings: &Settings,
    redirect: &Redirect,
    sender: &Node,
    watch: &mut dyn Watch,
) -> Result<(), ConnectError> {
    let now = Instant::now();
    let until = now.checked_add(settings.connect_timeout).unwrap_or(now);
    let reply = transport.query(redis::cmd("CLUSTER").arg("NODES"), &mut Deadline::new(until, watch)).await?;
    if let Some(members) = reply.ok().as_ref().and_then(value::bytes).map(Members::read) {
        map.confirm(redirect, sender, &members);
    }
    Ok(())
}

/// Notes a reply to CLUSTER SLOTS.
fn note(map: &mut ClusterMap, reply: &Value, sender: &Node) -> Result<Vec<Moved>, Fault> {
    let Some(slots) = Slots::read(reply) else {
        let message = format!("the reply of {sender} to CLUSTER SLOTS is not a list of slots");
        return Err(Fault::new(code::PROTOCOL, message));
    };
    map.learn(&slots, sender).map_err(|TooManyNodes| {
        let message = format!("the reply of {sender} to CLUSTER SLOTS has more than {MAX_NODES} nodes");
        Fault::new(code::PROTOCOL, message)
    })
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
    let address = Address::Tcp { host: node.host.clone(), port: node.port };
    let greeting = Greeting::Server { endpoint, settings, streams };
    let (access, timeout) = (endpoint.access(), settings.connect_timeout);
    let peer = Peer { address: &address, dial: None, title: node.to_string(), access, greeting, timeout };
    peer.connect(&mut Deadline::new(deadline, watch)).await
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
fn no_answer(slot: u16, mut faults: Vec<Fault>) -> Fault {
    if let Some(at) = faults.iter().position(|fault| !code::is_away(&fault.code)) {
        return faults.swap_remove(at);
    }
    let said: Vec<_> = faults.into_iter().map(|fault| fault.message).collect();
    Fault::new(code::NO_SLOT, format!("no node says which node has slot {slot}: {}", said.join("; ")))
}
