//! The connections of a producer: one to its server, or one to each node of a cluster that has a stream of its messages. No I/O.
//!
//! A message goes to the lane of the slot of its stream key. Where a slot goes changes only while nothing of its lane is in
//! flight, and what waits there moves with it, in order.

use std::ops::RangeInclusive;
use std::time::Instant;

use crate::cluster::{Redirect, Routes, slot};
use crate::connection::{Connection, Limits};
use crate::durability::Durability;
use crate::endpoint::Node;

/// How much is in the window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// Commands that have no reply, and those that wait to be sent again.
    pub(crate) entries: usize,
    pub(crate) bytes: u64,
}

impl Load {
    /// What one connection adds.
    #[inline]
    fn of(connection: &Connection) -> Self {
        let (waiting, bytes) = connection.retry.waiting();
        Self { entries: connection.in_flight.len() + waiting, bytes: connection.in_flight.bytes() + bytes }
    }

    /// Whether one more entry may be encoded, where `others` take room beside it.
    pub(crate) fn has_room(self, limits: Limits, others: usize) -> bool {
        self.entries + others < limits.max_entries && self.bytes < limits.max_bytes
    }

    /// Whether a quarter of the window is free.
    pub(crate) fn has_ample_room(self, limits: Limits) -> bool {
        self.entries == 0
            || (self.until_ample_room(limits) == 0 && self.bytes <= limits.max_bytes - limits.max_bytes / 4)
    }

    /// How many commands are to be answered before, as far as their number counts.
    pub(crate) fn until_ample_room(self, limits: Limits) -> usize {
        self.entries.saturating_sub(limits.max_entries - limits.max_entries / 4)
    }
}

/// A connection, and what it leads to.
#[derive(Debug)]
struct Lane {
    connection: Connection,
    /// `None`: the only server, or a node that is not known yet.
    node: Option<Node>,
}

/// What a connection to a node is made of.
#[derive(Debug)]
struct Cluster {
    routes: Routes,
    /// The slot of the endpoint's stream.
    home_slot: u16,
    durability: Option<Durability>,
}

#[derive(Debug)]
pub(crate) struct Lanes {
    all: Vec<Lane>,
    /// The lane of the endpoint's stream.
    home: usize,
    /// `None`: there is one server.
    cluster: Option<Cluster>,
}

impl Lanes {
    /// One connection to one server. `keeps`: see [`Connection::new`].
    pub(crate) fn of_server(keeps: bool, durability: Option<Durability>) -> Self {
        let lane = Lane { connection: Connection::new(keeps, false, durability), node: None };
        Self { all: vec![lane], home: 0, cluster: None }
    }

    /// Connections to the nodes of a cluster. `key`: of the endpoint's stream.
    pub(crate) fn of_cluster(key: &[u8], durability: Option<Durability>) -> Self {
        let lane = Lane { connection: Connection::new(true, true, durability.clone()), node: None };
        let cluster = Cluster { routes: Routes::default(), home_slot: slot(key), durability };
        Self { all: vec![lane], home: 0, cluster: Some(cluster) }
    }

    /// Whether messages may go to several nodes.
    #[inline]
    pub(crate) fn is_of_cluster(&self) -> bool {
        self.cluster.is_some()
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// The lane of the endpoint's stream.
    #[inline]
    pub(crate) fn home(&self) -> usize {
        self.home
    }

    /// The slot of the endpoint's stream.
    #[inline]
    pub(crate) fn home_slot(&self) -> u16 {
        self.cluster.as_ref().map_or(0, |cluster| cluster.home_slot)
    }

    #[inline]
    pub(crate) fn at_home(&mut self) -> &mut Connection {
        &mut self.all[self.home].connection
    }

    /// The connection of the endpoint's stream, to which a command is about to be appended.
    #[inline]
    pub(crate) fn begin_at_home(&mut self) -> &mut Connection {
        let Self { all, home, cluster } = self;
        let connection = &mut all[*home].connection;
        if let Some(cluster) = cluster {
            connection.begin_command(cluster.home_slot);
        }
        connection
    }

    #[inline]
    pub(crate) fn get(&self, at: usize) -> &Connection {
        &self.all[at].connection
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, at: usize) -> &mut Connection {
        &mut self.all[at].connection
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Connection> {
        self.all.iter().map(|lane| &lane.connection)
    }

    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut Connection> {
        self.all.iter_mut().map(|lane| &mut lane.connection)
    }

    /// The node that a lane leads to, where there are several.
    pub(crate) fn node(&self, at: usize) -> Option<&Node> {
        self.all[at].node.as_ref()
    }

    /// The slot of a stream key, and its lane.
    #[inline]
    pub(crate) fn of_key(&self, key: &[u8]) -> (u16, usize) {
        self.cluster.as_ref().map_or((0, 0), |cluster| {
            let slot = slot(key);
            (slot, cluster.routes.get(slot))
        })
    }

    /// Whether nothing waits for a reply, a confirmation or another try.
    pub(crate) fn is_idle(&self) -> bool {
        self.all().all(Connection::is_idle)
    }

    pub(crate) fn load(&self) -> Load {
        self.all().map(Load::of).fold(Load::default(), |load, one| Load {
            entries: load.entries + one.entries,
            bytes: load.bytes + one.bytes,
        })
    }

    /// How much of it is for one lane.
    pub(crate) fn load_of(&self, at: usize) -> Load {
        Load::of(self.get(at))
    }

    /// What is left of the window for the lane of the endpoint's stream.
    pub(crate) fn limits_at_home(&self, limits: Limits) -> Limits {
        if self.cluster.is_none() {
            return limits;
        }
        let (load, own) = (self.load(), &self.get(self.home).in_flight);
        let (others, bytes) = (load.entries - own.len(), load.bytes - own.bytes());
        Limits {
            max_entries: limits.max_entries.saturating_sub(others),
            max_bytes: limits.max_bytes.saturating_sub(bytes),
        }
    }

    /// The lane that leads to this node: a new one, if there is none.
    fn lane_of(&mut self, node: &Node) -> usize {
        if let Some(at) = self.all.iter().position(|lane| lane.node.as_ref() == Some(node)) {
            return at;
        }
        let durability = self.cluster.as_ref().and_then(|cluster| cluster.durability.clone());
        self.all.push(Lane { connection: Connection::new(true, true, durability), node: Some(node.clone()) });
        self.all.len() - 1
    }

    /// Whether a relocation would move commands of a lane that were never sent: those are to be taken back before.
    pub(crate) fn moves_unsent(&mut self, at: usize, map: &[(RangeInclusive<u16>, Node)]) -> bool {
        let wanted = self.wanted(at, map);
        let queued = self.all[at].connection.in_flight.commands_from(0).filter_map(|queued| queued.hash_slot);
        queued.into_iter().any(|slot| wanted.get(slot) != at)
    }

    /// Where slots of a lane are to go. The first lane gets the node of the endpoint's stream.
    fn wanted(&mut self, at: usize, map: &[(RangeInclusive<u16>, Node)]) -> Routes {
        let home_slot = self.home_slot();
        if self.all[at].node.is_none() {
            let home = map.iter().rev().find(|(slots, _)| slots.contains(&home_slot)).map(|(_, node)| node.clone());
            self.all[at].node = home.filter(|home| self.all.iter().all(|lane| lane.node.as_ref() != Some(home)));
        }
        let routes = self.cluster.as_ref().map(|cluster| cluster.routes.clone()).unwrap_or_default();
        let mut wanted = routes.clone();
        for (slots, node) in map {
            let to = self.lane_of(node);
            for slot in slots.clone().filter(|slot| routes.get(*slot) == at) {
                wanted.set(slot, to);
            }
        }
        wanted
    }

    /// The slots of a lane go where the cluster says that they are, with what waits for them. Nothing is in flight there.
    pub(crate) fn relocate(&mut self, at: usize, map: &[(RangeInclusive<u16>, Node)], now: Instant) {
        let wanted = self.wanted(at, map);
        let waiting = self.all[at].connection.retry.slots();
        let Some(cluster) = &mut self.cluster else { return };
        let mut targets = vec![false; self.all.len()];
        for slot in cluster.routes.slots(at).collect::<Vec<_>>() {
            let to = wanted.get(slot);
            let connection = &self.all[at].connection;
            // What a WAIT is to confirm moves only with a write behind it.
            let stays = connection.holds_unconfirmed(slot) && waiting.binary_search(&slot).is_err();
            if to != at && !stays {
                cluster.routes.set(slot, to);
                targets[to] = true;
            }
        }
        let routes = cluster.routes.clone();
        for to in (0..targets.len()).filter(|to| targets[*to]) {
            let moved = self.all[at].connection.extract(|slot| routes.get(slot) == to);
            self.all[to].connection.adopt(moved, now);
        }
        self.home = routes.get(self.home_slot());
    }

    /// A node sent commands of a slot to `node`: what waits of them goes there, unless it has moved already. Nothing of the lane is in
    /// flight.
    pub(crate) fn redirect(&mut self, at: usize, redirect: &Redirect, node: &Node, now: Instant) {
        let to = self.lane_of(node);
        let Some(cluster) = self.cluster.as_mut().filter(|cluster| cluster.routes.get(redirect.slot) == at) else {
            return;
        };
        cluster.routes.set(redirect.slot, to);
        self.home = cluster.routes.get(cluster.home_slot);
        if to != at {
            let moved = self.all[at].connection.extract(|slot| slot == redirect.slot);
            self.all[to].connection.adopt(moved, now);
        }
        self.all[to].connection.ask(redirect.slot, redirect.is_ask, now);
    }

    /// Whether no slot goes to a lane.
    pub(crate) fn is_deserted(&self, at: usize) -> bool {
        self.cluster.as_ref().is_some_and(|cluster| cluster.routes.slots(at).next().is_none())
    }
}
