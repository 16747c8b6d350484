//! Connections that stay open between calls: a single one to the server of an endpoint, or one to each node of a cluster that
//! was asked.

use std::collections::BTreeMap;
use std::result;

use redis::Value;

use super::command::Command;
use super::session::{KeptConnection, Session, Target, connect_error};
use crate::cluster::{Redirect, slot};
use crate::endpoint::{Endpoint, Node};
use crate::error::{Error, Fault, Result, code};
use crate::net::{ClusterNodes, ConnectError, SlotMap, Watch, block_on, is_redirect};
use crate::resp::outline::WITHOUT_FIELDS;

/// The maximum number of commands in one round trip: a planner may ask for thousands of ranges.
const PIPELINE: usize = 1_000;

/// Sends commands about streams to the servers that have them.
pub(crate) struct KeptConnections {
    endpoint: Endpoint,
    /// The connection to the only server.
    one: KeptConnection,
    /// Whether all commands go to `one`, even those for a stream of another node.
    is_one: bool,
    /// How many levels of arrays in a reply are kept.
    depth: usize,
    nodes: ClusterNodes,
    /// The latest answer of the nodes about the owners of slots.
    map: Option<SlotMap>,
    /// The owners of slots that have moved since.
    moved: BTreeMap<u16, Node>,
    /// A node that was lost: it is asked after the others.
    lost: Option<Node>,
    open: Vec<(Node, KeptConnection)>,
}

/// A command that has no reply yet.
struct Pending {
    /// The index of the command.
    at: usize,
    /// The node that is taking over its stream; it gets the command after ASKING.
    taker: Option<Node>,
}

/// The index of a command, and a node's reply to it.
type Said = (usize, result::Result<Value, Fault>);

impl KeptConnections {
    /// Creates it without opening a connection. Its connections never create the endpoint's consumer group.
    pub(crate) fn new(endpoint: &Endpoint) -> Self {
        Self {
            endpoint: endpoint.without_consumer_group(),
            one: KeptConnection::new(endpoint),
            is_one: false,
            depth: WITHOUT_FIELDS,
            nodes: ClusterNodes::new(endpoint.node_map()),
            map: None,
            moved: BTreeMap::new(),
            lost: None,
            open: Vec::new(),
        }
    }

    /// Sets how many levels of arrays in replies are kept.
    pub(super) fn with_depth(self, depth: usize) -> Self {
        Self { depth, ..self }
    }

    /// Directs all commands to one server.
    pub(super) fn to(self, target: Target) -> Self {
        Self { one: KeptConnection::to(&self.endpoint, target), is_one: true, ..self }
    }

    /// Reconnects to the server that has the stream of the endpoint. The outer error is about the options.
    pub(super) fn connect(&mut self, watch: &mut dyn Watch) -> Result<result::Result<(), ConnectError>> {
        if self.is_one || self.endpoint.cluster().is_none() {
            return self.one.connect(watch);
        }
        self.close();
        self.forget_map();
        match self.look_up(slot(self.endpoint.stream_key()), watch)? {
            Ok(owner) => self.connection(&owner).connect(watch),
            Err(error) => Ok(Err(error)),
        }
    }

    /// Returns the result of `read` for the reply to each command. Commands that were sent over a connection that was then
    /// lost are sent again over another one, unless one of the commands writes.
    pub(crate) fn ask_all<T>(
        &mut self,
        commands: &[Command],
        watch: &mut dyn Watch,
        read: impl Fn(&Command, result::Result<Value, Fault>) -> Result<T>,
    ) -> Result<Vec<T>> {
        if !self.is_one && self.endpoint.is_undecided() {
            self.endpoint = self.one.decided(watch)?.clone();
        }
        let cluster = self.endpoint.cluster().filter(|_| !self.is_one);
        let Some(max_redirects) = cluster.map(|cluster| cluster.max_redirects) else {
            let all: Vec<_> = commands.iter().collect();
            let said = ask_over(&mut self.one, &all, self.depth, watch)?;
            return commands.iter().zip(said).map(|(command, said)| read(command, said)).collect();
        };
        let mut answers: Vec<Option<T>> = commands.iter().map(|_| None).collect();
        let mut pending: Vec<_> = (0..commands.len()).map(|at| Pending { at, taker: None }).collect();
        let mut lost = BTreeMap::new();
        let mut redirects = 0;
        while !pending.is_empty() {
            let mut again = Vec::new();
            let mut is_redirected = false;
            for ((node, is_asking), asked) in self.by_node(commands, pending, watch)? {
                if let Some(error) = lost.remove(&node) {
                    // The other nodes still say that it has the streams.
                    return Err(error);
                }
                let said = match self.ask_node(&node, is_asking, commands, &asked, watch) {
                    Ok(said) => said,
                    Err(error @ Error::Connection { .. }) if !commands.iter().any(Command::writes) => {
                        self.forget_map();
                        self.lost = Some(node.clone());
                        again.extend(asked.into_iter().map(|at| Pending { at, taker: None }));
                        lost.insert(node, error);
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                for (at, said) in said {
                    let Some(command) = commands.get(at) else { continue };
                    match &said {
                        Err(fault) if redirects < max_redirects && is_redirect(fault) => {
                            is_redirected = true;
                            again.push(Pending { at, taker: self.follow(fault, &node) });
                        }
                        _ => {
                            if let Some(answer) = answers.get_mut(at) {
                                *answer = Some(read(command, said)?);
                            }
                        }
                    }
                }
            }
            redirects += u32::from(is_redirected);
            pending = again;
        }
        Ok(answers.into_iter().flatten().collect())
    }

    /// Closes all connections. The next call opens new ones.
    pub(crate) fn close(&mut self) {
        self.one.close();
        for (_, mut connection) in self.open.drain(..) {
            connection.close();
        }
    }

    /// Groups commands by the node that they go to, and by whether they need ASKING.
    fn by_node(
        &mut self,
        commands: &[Command],
        pending: Vec<Pending>,
        watch: &mut dyn Watch,
    ) -> Result<BTreeMap<(Node, bool), Vec<usize>>> {
        let mut by_node: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for Pending { at, taker } in pending {
            let Some(command) = commands.get(at) else { continue };
            let to = match taker {
                Some(taker) => (taker, true),
                None => (self.owner(command.slot().unwrap_or_else(|| slot(self.endpoint.stream_key())), watch)?, false),
            };
            by_node.entry(to).or_default().push(at);
        }
        Ok(by_node)
    }

    fn owner(&mut self, slot: u16, watch: &mut dyn Watch) -> Result<Node> {
        self.look_up(slot, watch)?.map_err(connect_error)
    }

    /// The node that has a slot. The outer error is about the options.
    fn look_up(&mut self, slot: u16, watch: &mut dyn Watch) -> Result<result::Result<Node, ConnectError>> {
        if let Some(node) = self.moved.get(&slot) {
            return Ok(Ok(node.clone()));
        }
        let map = if let Some(map) = self.map.take() {
            map
        } else {
            let settings = self.endpoint.settings()?;
            match block_on(self.nodes.ask_any(&self.endpoint, &settings, slot, (None, self.lost.as_ref()), watch)) {
                Ok(map) => map,
                Err(error) => return Ok(Err(error)),
            }
        };
        let owner = map.owner(slot);
        if owner.is_some() {
            self.map = Some(map);
        }
        Ok(owner.ok_or_else(|| Fault::new(code::NO_SLOT, format!("no node has slot {slot}")).into()))
    }

    /// The connection to a node, which may not be open yet.
    fn connection(&mut self, node: &Node) -> &mut KeptConnection {
        let at = self.open.iter().position(|(other, _)| other == node).unwrap_or_else(|| {
            self.open.push((node.clone(), KeptConnection::to(&self.endpoint, Target::Node(node.clone()))));
            self.open.len() - 1
        });
        &mut self.open[at].1
    }

    fn forget_map(&mut self) {
        self.map = None;
        self.moved.clear();
    }

    /// Records where a slot has moved. If it is still being moved, returns the node that is taking over a stream of it.
    fn follow(&mut self, fault: &Fault, sender: &Node) -> Option<Node> {
        let redirect = Redirect::within(&fault.message);
        let target = redirect.as_ref().and_then(|redirect| self.nodes.target(redirect, Some(sender)));
        match (redirect, target) {
            (Some(redirect), Some(target)) if redirect.is_ask => return Some(target),
            (Some(redirect), Some(target)) => {
                self.moved.insert(redirect.slot, target);
            }
            _ => self.forget_map(),
        }
        None
    }

    fn ask_node(
        &mut self,
        node: &Node,
        is_asking: bool,
        commands: &[Command],
        asked: &[usize],
        watch: &mut dyn Watch,
    ) -> Result<Vec<Said>> {
        let depth = self.depth;
        let connection = self.connection(node);
        let asking = Command::read("asking");
        let wanted = asked.iter().filter_map(|at| commands.get(*at));
        let sent: Vec<_> =
            wanted.flat_map(|command| is_asking.then_some(&asking).into_iter().chain([command])).collect();
        let said = ask_over(connection, &sent, depth, watch)?;
        let skipped = usize::from(is_asking);
        Ok(asked.iter().copied().zip(said.into_iter().skip(skipped).step_by(1 + skipped)).collect())
    }
}

/// The replies to commands, in order. Commands that only read are sent again if the server had closed the connection.
fn ask_over(
    connection: &mut KeptConnection,
    commands: &[&Command],
    depth: usize,
    watch: &mut dyn Watch,
) -> Result<Vec<result::Result<Value, Fault>>> {
    if commands.iter().any(|command| command.writes()) {
        connection.once(watch, |session| ask(session, commands, depth))
    } else {
        connection.with(watch, |session| ask(session, commands, depth))
    }
}

/// The replies to commands, in order.
fn ask(session: &mut Session<'_>, commands: &[&Command], depth: usize) -> Result<Vec<result::Result<Value, Fault>>> {
    let mut said = Vec::with_capacity(commands.len());
    for commands in commands.chunks(PIPELINE) {
        session.query(commands, depth, |_, reply| said.push(reply))?;
    }
    Ok(said)
}
