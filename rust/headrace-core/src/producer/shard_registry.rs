//! Checks whether a stream has as many shards as the endpoint says, before the first message and at each connect to the node of
//! the registry.

use std::time::Instant;

use redis::{Cmd, Value};

use super::preparation::{Groups, Preparation, Registry};
use crate::cluster::{ClusterMap, Node, Redirect, Redirected, slot};
use crate::endpoint::{Endpoint, Settings};
use crate::error::{Fault, code};
use crate::net::{
    ConnectError, Deadline, ShardRegistry, Transport, Watch, ask_any, connect_to_node, create_group, is_redirect,
    make_groups,
};

/// The time for connecting, divided by this, is how long creating the groups of other nodes' shards may take.
const SHARE_OF_GROUPS: u32 = 4;

impl Preparation {
    /// Checks the shard registry if the stream has shards, and creates the consumer group in those that the node has; the first
    /// time also in the others.
    pub(super) async fn check_shards(
        &mut self,
        transport: &mut Transport,
        until: Instant,
        watch: &mut dyn Watch,
    ) -> Result<(), ConnectError> {
        let Some(shards) = self.endpoint.shards().cloned() else { return Ok(()) };
        let endpoint = self.endpoint.clone();
        let registry = ShardRegistry { name: endpoint.stream_key(), shards: &shards };
        self.check_registry(registry, transport, until, watch).await?;
        make_groups(transport, &endpoint, &self.shards.0, &mut Deadline::new(until, watch)).await?;
        match endpoint.consumer_group() {
            Some(group) if self.groups == Groups::Unknown => self.make_other_groups(group, until, watch).await,
            Some(_) | None => Ok(()),
        }
    }

    /// Creates the consumer group in shards of other nodes: a shard may move to a node that already has a socket by then, and
    /// takes its group along. What fails is tried again, and reported, when there is a socket to its node.
    async fn make_other_groups(
        &mut self,
        group: &[u8],
        until: Instant,
        watch: &mut dyn Watch,
    ) -> Result<(), ConnectError> {
        self.groups = Groups::Created;
        let now = Instant::now();
        let connect_timeout = until.saturating_duration_since(now) / SHARE_OF_GROUPS;
        let settings = &Settings { connect_timeout, ..self.settings };
        let (Self { endpoint, map, shards, .. }, until) = (self, now + connect_timeout);
        let mut owners = Owners { endpoint, settings, map, server: None, open: Vec::new(), until, watch };
        for shard in &shards.1 {
            match owners.ask(shard, &create_group(group, shard)).await {
                Err(ConnectError::Interrupted) => {
                    owners.close();
                    return Err(ConnectError::Interrupted);
                }
                Err(ConnectError::Fault(_)) if Instant::now() >= until => break,
                Ok(_) | Err(ConnectError::Fault(_)) => {}
            }
        }
        owners.close();
        Ok(())
    }

    /// Checks the registry on a new socket to its node; on a socket to another node only if nothing is known yet. Writes it if
    /// neither a registry nor a shard exists.
    async fn check_registry(
        &mut self,
        registry: ShardRegistry<'_>,
        transport: &mut Transport,
        until: Instant,
        watch: &mut dyn Watch,
    ) -> Result<(), ConnectError> {
        if !self.is_home && self.registry == Registry::Seen {
            return Ok(());
        }
        let is_of_cluster = self.endpoint.cluster().is_some();
        let is_complete = self.is_home
            && match transport.query(&registry.asking(), &mut Deadline::new(until, watch)).await? {
                Err(refusal) if is_redirect(&refusal) && is_of_cluster => false,
                answer => registry.missing(answer)?.is_none(),
            };
        if !is_complete {
            let is_known = self.registry == Registry::Seen;
            let Self { endpoint, settings, map, .. } = self;
            let server = if is_of_cluster { None } else { Some(transport) };
            let mut owners = Owners { endpoint, settings, map, server, open: Vec::new(), until, watch };
            let completed = owners.complete(registry, is_known).await;
            owners.close();
            completed?;
        }
        self.registry = Registry::Seen;
        Ok(())
    }
}

/// Sockets to the servers that have the registry and the shards.
struct Owners<'a> {
    endpoint: &'a Endpoint,
    settings: &'a Settings,
    map: &'a mut ClusterMap,
    /// The only server, if there is no cluster.
    server: Option<&'a mut Transport>,
    /// The nodes of a cluster that were asked, each once.
    open: Vec<(Node, Transport)>,
    until: Instant,
    watch: &'a mut dyn Watch,
}

impl Owners<'_> {
    /// Reads the registry, and writes what it lacks. `is_known`: whether it existed before.
    async fn complete(&mut self, registry: ShardRegistry<'_>, is_known: bool) -> Result<(), ConnectError> {
        let read = registry.asking();
        let mut lacks = registry.missing(self.ask(registry.name, &read).await?)?;
        if is_known && lacks.is_some() {
            return Err(registry.lost().into());
        }
        for shard in registry.shards.keys() {
            if lacks.is_none() {
                return Ok(());
            }
            if registry.is_used(self.ask(shard, &ShardRegistry::asking_about(shard)).await?)? {
                // Another producer may have written both since: the registry first.
                return match registry.missing(self.ask(registry.name, &read).await?)? {
                    None => Ok(()),
                    Some(_) => Err(registry.lost().into()),
                };
            }
        }
        while let Some(field) = lacks {
            registry.set(self.ask(registry.name, &registry.setting(&field)).await?)?;
            lacks = registry.missing(self.ask(registry.name, &read).await?)?;
        }
        Ok(())
    }

    /// The answer of the server that has the slot of a key, or why it refuses.
    async fn ask(&mut self, key: &[u8], command: &Cmd) -> Result<Result<Value, Fault>, ConnectError> {
        if let Some(server) = &mut self.server {
            return server.query(command, &mut Deadline::new(self.until, self.watch)).await;
        }
        let (slot, mut redirects) = (slot(key), self.endpoint.cluster().map_or(0, |cluster| cluster.max_redirects));
        let mut lost = Vec::new();
        let mut redirected = None;
        loop {
            let (node, is_asking) = match redirected.take() {
                Some(to) => to,
                None => (self.owner(slot).await?, false),
            };
            let at = match self.position(&node).await {
                Ok(at) => at,
                // Another node may have its slots by now.
                Err(ConnectError::Fault(_)) if !lost.contains(&node) && Instant::now() < self.until => {
                    self.map.lost(&node);
                    lost.push(node);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let patience = &mut Deadline::new(self.until, self.watch);
            let (_, transport) = &mut self.open[at];
            if is_asking {
                transport.query(&redis::cmd("ASKING"), patience).await??;
            }
            let refusal = match transport.query(command, patience).await? {
                Err(refusal) if is_redirect(&refusal) => refusal,
                answer => return Ok(answer),
            };
            if redirects == 0 {
                let message = format!("the nodes disagree about slot {slot}: {node} says {}", refusal.message);
                return Err(Fault::new(code::NO_SLOT, message).into());
            }
            redirects -= 1;
            redirected = match self.map.redirected(slot, Redirect::within(&refusal.message).as_ref(), &node) {
                Redirected::Goes(node) => Some((node, false)),
                Redirected::Asks(node) => Some((node, true)),
                Redirected::Unknown => None,
            };
        }
    }

    /// The node that has a slot, as the nodes say.
    async fn owner(&mut self, slot: u16) -> Result<Node, ConnectError> {
        if self.map.owner(slot).is_none() {
            let now = Instant::now();
            let connect_timeout = self.settings.connect_timeout.min(self.until.saturating_duration_since(now));
            let settings = Settings { connect_timeout, ..*self.settings };
            ask_any(self.map, self.endpoint, &settings, slot, self.watch).await?;
        }
        let owner = self.map.owner(slot).cloned();
        owner.ok_or_else(|| Fault::new(code::NO_SLOT, format!("no node has slot {slot}")).into())
    }

    /// The position of the socket to a node among the open ones. Opens it if there is none.
    async fn position(&mut self, node: &Node) -> Result<usize, ConnectError> {
        if let Some(at) = self.open.iter().position(|(known, _)| known == node) {
            return Ok(at);
        }
        let transport = connect_to_node(self.endpoint, self.settings, node, &[], self.watch).await?;
        self.open.push((node.clone(), transport));
        Ok(self.open.len() - 1)
    }

    fn close(self) {
        self.open.into_iter().for_each(|(_, transport)| transport.close());
    }
}
