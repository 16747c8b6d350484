//! Connections that stay open between calls: a single one to the server of an endpoint, or one to each node of a cluster that
//! was asked.

use std::collections::BTreeMap;
use std::{result, slice};

use redis::Value;

use super::command::Command;
use super::session::{KeptConnection, Target, connect_error};
use crate::cluster::{ClusterMap, Node, Redirect, Redirected, slot};
use crate::endpoint::Endpoint;
use crate::error::{Error, Fault, Result, code};
use crate::net::{ConnectError, Watch, ask_any, block_on, is_redirect};
use crate::resp::outline::WITHOUT_FIELDS;

/// Does `work` over connections that are closed afterwards. `depth`: how many levels of arrays in replies are kept.
pub(crate) fn with_connections<T>(
    endpoint: &Endpoint,
    depth: usize,
    work: impl FnOnce(&mut KeptConnections) -> Result<T>,
) -> Result<T> {
    let mut connections = KeptConnections::new(endpoint).with_depth(depth);
    let done = work(&mut connections);
    connections.close();
    done
}

/// Sends commands about streams to the servers that have them.
pub(crate) struct KeptConnections {
    endpoint: Endpoint,
    /// The connection to the only server.
    one: KeptConnection,
    /// Whether all commands go to `one`, even those for a stream of another node.
    is_one: bool,
    /// How many levels of arrays in a reply are kept.
    depth: usize,
    map: ClusterMap,
    open: Vec<(Node, KeptConnection)>,
}

/// A command that has no reply yet.
struct Pending {
    /// The index of the command.
    at: usize,
    /// The node to which another one redirected it, and whether it needs ASKING there. `None`: it goes to the owner of its slot.
    to: Option<(Node, bool)>,
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
            map: ClusterMap::new(endpoint.node_map()),
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
        block_on(async {
            if self.is_one || self.endpoint.cluster().is_none() {
                return self.one.connect(watch).await;
            }
            self.close();
            self.map = ClusterMap::new(self.endpoint.node_map());
            match self.look_up(slot(self.endpoint.stream_key()), watch).await? {
                Ok(owner) => self.connection(&owner).connect(watch).await,
                Err(error) => Ok(Err(error)),
            }
        })
    }

    /// The endpoint, after its server has said whether it belongs to a cluster.
    pub(crate) async fn decided(&mut self, watch: &mut dyn Watch) -> Result<&Endpoint> {
        if !self.is_one && self.endpoint.is_undecided() {
            self.endpoint = self.one.decided(watch).await?.clone();
        }
        Ok(&self.endpoint)
    }

    /// The reply to one command; see [`ask_all`](Self::ask_all).
    pub(crate) fn ask(&mut self, command: &Command, watch: &mut dyn Watch) -> Result<result::Result<Value, Fault>> {
        let said = self.ask_all(slice::from_ref(command), watch, |_, said| Ok(said))?;
        Ok(said.into_iter().next().unwrap_or(Ok(Value::Nil)))
    }

    /// Blocks until [`asked`](Self::asked) is done.
    pub(crate) fn ask_all<T>(
        &mut self,
        commands: &[Command],
        watch: &mut dyn Watch,
        read: impl Fn(&Command, result::Result<Value, Fault>) -> Result<T>,
    ) -> Result<Vec<T>> {
        block_on(self.asked(commands, watch, read))
    }

    /// Returns the result of `read` for the reply to each command. Commands that were sent over a connection that was then
    /// lost are sent again over another one, unless one of the commands writes.
    pub(crate) async fn asked<T>(
        &mut self,
        commands: &[Command],
        watch: &mut dyn Watch,
        read: impl Fn(&Command, result::Result<Value, Fault>) -> Result<T>,
    ) -> Result<Vec<T>> {
        self.decided(watch).await?;
        let cluster = self.endpoint.cluster().filter(|_| !self.is_one);
        let Some(max_redirects) = cluster.map(|cluster| cluster.max_redirects) else {
            let all: Vec<_> = commands.iter().collect();
            let said = self.one.ask(&all, self.depth, watch).await?;
            return commands.iter().zip(said).map(|(command, said)| read(command, said)).collect();
        };
        let mut answers: Vec<Option<T>> = commands.iter().map(|_| None).collect();
        let mut pending: Vec<_> = (0..commands.len()).map(|at| Pending { at, to: None }).collect();
        let mut lost = BTreeMap::new();
        let mut redirects = 0;
        while !pending.is_empty() {
            let mut again = Vec::new();
            let mut is_redirected = false;
            for ((node, is_asking), asked) in self.by_node(commands, pending, watch).await? {
                if let Some(error) = lost.remove(&node) {
                    // The other nodes still say that it has the streams.
                    return Err(error);
                }
                let opened = self.connection(&node).open(watch).await;
                let is_repeatable = opened.is_err() || !commands.iter().any(Command::writes);
                let said = match opened {
                    Ok(()) => self.ask_node(&node, is_asking, commands, &asked, watch).await,
                    Err(error) => Err(error),
                };
                let said = match said {
                    Ok(said) => said,
                    Err(error @ Error::Connection { .. }) if is_repeatable => {
                        self.map.lost(&node);
                        again.extend(asked.into_iter().map(|at| Pending { at, to: None }));
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
                            again.push(Pending { at, to: self.redirected(command, fault, &node) });
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
    async fn by_node(
        &mut self,
        commands: &[Command],
        pending: Vec<Pending>,
        watch: &mut dyn Watch,
    ) -> Result<BTreeMap<(Node, bool), Vec<usize>>> {
        let mut by_node: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for Pending { at, to } in pending {
            let Some(command) = commands.get(at) else { continue };
            let to = match to {
                Some(to) => to,
                None => (self.look_up(self.slot(command), watch).await?.map_err(connect_error)?, false),
            };
            by_node.entry(to).or_default().push(at);
        }
        Ok(by_node)
    }

    /// The slot of a command: that of the endpoint's stream if it has none of its own.
    fn slot(&self, command: &Command) -> u16 {
        command.slot().unwrap_or_else(|| slot(self.endpoint.stream_key()))
    }

    /// The node that has a slot. The outer error is about the options.
    async fn look_up(&mut self, slot: u16, watch: &mut dyn Watch) -> Result<result::Result<Node, ConnectError>> {
        if self.map.owner(slot).is_none() {
            let settings = self.endpoint.settings()?;
            if let Err(error) = ask_any(&mut self.map, &self.endpoint, &settings, slot, watch).await {
                return Ok(Err(error));
            }
        }
        let owner = self.map.owner(slot).cloned();
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

    /// Where a node redirected a command, and whether it needs ASKING there. `None`: the nodes must be asked.
    fn redirected(&mut self, command: &Command, fault: &Fault, sender: &Node) -> Option<(Node, bool)> {
        let redirect = Redirect::within(&fault.message);
        match self.map.redirected(self.slot(command), redirect.as_ref(), sender) {
            Redirected::Goes(node) => Some((node, false)),
            Redirected::Asks(node) => Some((node, true)),
            Redirected::Unknown => None,
        }
    }

    async fn ask_node(
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
        let said = connection.ask(&sent, depth, watch).await?;
        let skipped = usize::from(is_asking);
        Ok(asked.iter().copied().zip(said.into_iter().skip(skipped).step_by(1 + skipped)).collect())
    }
}
