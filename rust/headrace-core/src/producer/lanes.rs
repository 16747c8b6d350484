//! The lanes of a producer: one to its server, or one to each node of a cluster that has a stream of its messages. No I/O.
//!
//! A message goes to the lane of its stream key's slot or, while the slot is moved key by key, to that of the stream itself. Each
//! command carries the number of its route: that of the slot or one of [`StreamRoutes`]. Where a route leads changes only while
//! nothing of its lane is in flight, and what waits there moves with it, in order.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Instant;

use super::lane::Lane;
use super::node_state::NodeState;
use super::stream_routes::StreamRoutes;
use crate::cluster::{Node, Routes, slot};
use crate::connection::{Connection, Detour, Limits};
use crate::counters::Counters;
use crate::durability::Durability;

/// How much is in the window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// Commands that have no reply, and those that wait to be sent again.
    pub(crate) entries: usize,
    pub(crate) bytes: u64,
}

impl Load {
    /// The load of one connection.
    #[inline]
    pub(crate) fn of(connection: &Connection) -> Self {
        let (waiting, bytes) = connection.retry.waiting();
        Self { entries: connection.in_flight.len() + waiting, bytes: connection.in_flight.bytes() + bytes }
    }

    /// Whether one more entry may be encoded if `others` take room in addition.
    pub(crate) fn has_room(self, limits: Limits, others: usize) -> bool {
        self.entries + others < limits.max_entries && self.bytes < limits.max_bytes
    }

    /// Whether a quarter of the window is free.
    pub(crate) fn has_ample_room(self, limits: Limits) -> bool {
        self.entries == 0
            || (self.until_ample_room(limits) == 0 && self.bytes <= limits.max_bytes - limits.max_bytes / 4)
    }

    /// How many commands must be answered before there is [ample room](Self::has_ample_room), as far as their number counts.
    pub(crate) fn until_ample_room(self, limits: Limits) -> usize {
        self.entries.saturating_sub(limits.max_entries - limits.max_entries / 4)
    }
}

/// The routes of a cluster, and what a connection to a node is built from.
#[derive(Debug)]
struct Cluster {
    routes: Routes,
    streams: StreamRoutes,
    /// The endpoint's stream, its slot and its route.
    home_key: Arc<[u8]>,
    home_slot: u16,
    home_route: u16,
    durability: Option<Durability>,
    counters: Arc<Counters>,
    /// Whether messages of other streams may follow.
    names_streams: bool,
    /// Whether messages may go to several nodes: the rows that are encoded name their streams, or all messages go to shards.
    is_routed: bool,
}

impl Cluster {
    /// The route of a stream key, and its lane.
    #[inline]
    fn of_key(&self, key: &[u8]) -> (u16, usize) {
        self.of_stream(key, slot(key))
    }

    /// The route of a stream key whose slot is known, and its lane. Streams that are ahead of their slots are found by their
    /// keys.
    #[inline]
    fn of_stream(&self, key: &[u8], slot: u16) -> (u16, usize) {
        if !self.streams.is_empty()
            && let Some(own) = self.streams.of_key(key)
        {
            return own;
        }
        (slot, self.routes.get(slot))
    }

    fn slot(&self, route: u16) -> u16 {
        self.streams.slot(route).unwrap_or(route)
    }

    /// The lane of a route.
    fn lane(&self, route: u16) -> usize {
        self.streams.lane(route).unwrap_or_else(|| self.routes.get(route))
    }

    fn set_lane(&mut self, route: u16, lane: usize) {
        if self.streams.lane(route).is_some() {
            self.streams.set_lane(route, lane);
        } else {
            self.routes.set(route, lane);
        }
    }

    /// The routes that lead to a lane.
    fn routes_to(&self, lane: usize) -> impl Iterator<Item = u16> {
        let streams = self.streams.all().filter(move |(_, _, to)| *to == lane);
        self.routes.slots(lane).chain(streams.map(|(route, _, _)| route))
    }

    /// The routes of one slot that lead to a lane.
    fn routes_of(&self, slot: u16, lane: usize) -> Vec<u16> {
        let own = Some(slot).filter(|slot| self.routes.get(*slot) == lane);
        let streams = self.streams.all().filter(|(_, of, to)| (*of, *to) == (slot, lane));
        own.into_iter().chain(streams.map(|(route, _, _)| route)).collect()
    }
}

#[derive(Debug)]
pub(crate) struct Lanes {
    all: Vec<Lane>,
    /// The lane of the endpoint's stream.
    home: usize,
    /// `None`: there is only one server.
    cluster: Option<Cluster>,
}

impl Lanes {
    /// One connection to one server. `keeps`: see [`Connection::new`].
    pub(crate) fn of_server(keeps: bool, durability: Option<Durability>) -> Self {
        Self { all: vec![Lane::new(Connection::new(keeps, false, durability), None)], home: 0, cluster: None }
    }

    /// Connections to the nodes of a cluster, which are listed in `counters`. `key`: the key of the endpoint's stream.
    pub(crate) fn of_cluster(key: &[u8], durability: Option<Durability>, counters: Arc<Counters>) -> Self {
        let lane = Lane::new(Connection::new(true, true, durability.clone()), None);
        let home_slot = slot(key);
        let cluster = Cluster {
            routes: Routes::default(),
            streams: StreamRoutes::default(),
            home_key: key.into(),
            home_slot,
            home_route: home_slot,
            durability,
            counters,
            names_streams: false,
            is_routed: false,
        };
        Self { all: vec![lane], home: 0, cluster: Some(cluster) }
    }

    /// Drops the cluster: the server turned out to belong to none. Commands that wait have been handed to no socket. `keeps`: see
    /// [`Connection::new`].
    pub(crate) fn leave_cluster(&mut self, keeps: bool) {
        self.cluster = None;
        self.at_home().leave_cluster(keeps);
    }

    /// Whether the lanes lead to the nodes of a cluster.
    #[inline]
    pub(crate) fn is_of_cluster(&self) -> bool {
        self.cluster.is_some()
    }

    /// Sets whether the next messages may go to several nodes, if they are nodes of a cluster.
    pub(crate) fn set_routed(&mut self, is_routed: bool) {
        if let Some(cluster) = &mut self.cluster {
            cluster.is_routed = is_routed;
        }
    }

    /// Whether the next messages may go to several nodes.
    #[inline]
    pub(crate) fn is_routed(&self) -> bool {
        self.cluster.as_ref().is_some_and(|cluster| cluster.is_routed)
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
    pub(crate) fn home_slot(&self) -> u16 {
        self.cluster.as_ref().map_or(0, |cluster| cluster.home_slot)
    }

    /// The route of the endpoint's stream.
    #[inline]
    pub(crate) fn home_route(&self) -> u16 {
        self.cluster.as_ref().map_or(0, |cluster| cluster.home_route)
    }

    /// Names the stream of each held entry from now on: messages of other streams than the endpoint's may follow.
    pub(crate) fn name_streams(&mut self) {
        let Some(cluster) = self.cluster.as_mut().filter(|cluster| !cluster.names_streams) else { return };
        cluster.names_streams = true;
        for lane in &mut self.all {
            lane.connection.name_streams(&cluster.home_key);
        }
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
            connection.begin_command(cluster.home_route);
        }
        connection
    }

    #[inline]
    pub(crate) fn get(&self, at: usize) -> &Lane {
        &self.all[at]
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, at: usize) -> &mut Lane {
        &mut self.all[at]
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Lane> {
        self.all.iter()
    }

    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut Lane> {
        self.all.iter_mut()
    }

    /// The connections of all lanes.
    pub(crate) fn connections(&self) -> impl Iterator<Item = &Connection> {
        self.all.iter().map(|lane| &lane.connection)
    }

    /// The connections of all lanes, to change them.
    pub(crate) fn connections_mut(&mut self) -> impl Iterator<Item = &mut Connection> {
        self.all.iter_mut().map(|lane| &mut lane.connection)
    }

    /// The route of a stream key, and its lane.
    #[inline]
    pub(crate) fn of_key(&self, key: &[u8]) -> (u16, usize) {
        self.cluster.as_ref().map_or((0, 0), |cluster| cluster.of_key(key))
    }

    /// The route of a stream key whose slot is known, and its lane.
    #[inline]
    pub(crate) fn of_stream(&self, key: &[u8], slot: u16) -> (u16, usize) {
        self.cluster.as_ref().map_or((0, 0), |cluster| cluster.of_stream(key, slot))
    }

    /// The slot that a route is for.
    pub(crate) fn slot(&self, route: u16) -> u16 {
        self.cluster.as_ref().map_or(route, |cluster| cluster.slot(route))
    }

    /// Finds the lane and the route of the endpoint's stream, which may have changed.
    fn find_home(&mut self) {
        if let Some(cluster) = &mut self.cluster {
            (cluster.home_route, self.home) = cluster.of_key(&cluster.home_key);
        }
    }

    /// Whether nothing waits for a reply, a confirmation or another try.
    pub(crate) fn is_idle(&self) -> bool {
        self.connections().all(Connection::is_idle)
    }

    pub(crate) fn load(&self) -> Load {
        self.connections().map(Load::of).fold(Load::default(), |load, one| Load {
            entries: load.entries + one.entries,
            bytes: load.bytes + one.bytes,
        })
    }

    /// The window left for the lane of the endpoint's stream.
    pub(crate) fn limits_at_home(&self, limits: Limits) -> Limits {
        if self.cluster.is_none() {
            return limits;
        }
        let (load, own) = (self.load(), &self.all[self.home].connection.in_flight);
        let (others, bytes) = (load.entries - own.len(), load.bytes - own.bytes());
        Limits {
            max_entries: limits.max_entries.saturating_sub(others),
            max_bytes: limits.max_bytes.saturating_sub(bytes),
        }
    }

    /// The lane that leads to this node, added if there is none.
    fn lane_of(&mut self, node: &Node) -> usize {
        if let Some(at) = self.all.iter().position(|lane| lane.node() == Some(node)) {
            return at;
        }
        let Some(cluster) = &self.cluster else { return self.home };
        let mut connection = Connection::new(true, true, cluster.durability.clone());
        if cluster.names_streams {
            connection.name_streams(&cluster.home_key);
        }
        self.all.push(Lane::new(connection, Some(NodeState::new(node.clone(), &cluster.counters))));
        self.all.len() - 1
    }

    /// Whether a relocation would move commands of a lane that were never sent: those must be taken back first.
    pub(crate) fn moves_unsent(&mut self, at: usize, map: &[(RangeInclusive<u16>, Node)]) -> bool {
        let wanted = self.wanted(at, map);
        let queued = self.all[at].connection.in_flight.commands_from(0).filter_map(|queued| queued.route);
        queued.into_iter().any(|route| self.wanted_lane(at, &wanted, route) != at)
    }

    /// Where a route of a lane must lead. A stream that has moved before its slot stays where it is, as long as it is accepted
    /// there.
    fn wanted_lane(&self, at: usize, wanted: &Routes, route: u16) -> usize {
        let slot = self.slot(route);
        let connection = &self.all[at].connection;
        if slot != route && connection.is_open() && connection.is_asking(route) {
            return at;
        }
        wanted.get(slot)
    }

    /// Where the slots of a lane must go. The first lane gets the node of the endpoint's stream.
    fn wanted(&mut self, at: usize, map: &[(RangeInclusive<u16>, Node)]) -> Routes {
        let Some(cluster) = &self.cluster else { return Routes::default() };
        if self.all[at].node().is_none()
            && let Some((_, home)) = map.iter().rev().find(|(slots, _)| slots.contains(&cluster.home_slot))
            && self.all.iter().all(|lane| lane.node() != Some(home))
        {
            self.all[at].state = Some(NodeState::new(home.clone(), &cluster.counters));
        }
        let routes = cluster.routes.clone();
        let mut wanted = routes.clone();
        for (slots, node) in map {
            let to = self.lane_of(node);
            for slot in slots.clone().filter(|slot| routes.get(*slot) == at) {
                wanted.set(slot, to);
            }
        }
        wanted
    }

    /// Moves the routes of a lane, and the commands that wait for them, to the nodes that have their slots in `map`. Nothing is
    /// in flight there.
    pub(crate) fn relocate(&mut self, at: usize, map: &[(RangeInclusive<u16>, Node)], now: Instant) {
        let wanted = self.wanted(at, map);
        let waiting = self.all[at].connection.retry.routes();
        let routes: Vec<u16> = self.cluster.iter().flat_map(|cluster| cluster.routes_to(at)).collect();
        let mut targets = BTreeSet::new();
        for route in routes {
            let to = self.wanted_lane(at, &wanted, route);
            if to != at && !self.is_bound(at, route, &waiting) {
                targets.extend(self.lead(route, to));
            }
        }
        self.hand_over(at, &targets, now);
    }

    /// Whether a route stays at its lane. Unconfirmed entries move only with a later write.
    fn is_bound(&self, at: usize, route: u16, waiting: &BTreeSet<u16>) -> bool {
        self.all[at].connection.holds_unconfirmed(route) && !waiting.contains(&route)
    }

    /// Makes a route lead to this lane. Returns the lane.
    fn lead(&mut self, route: u16, to: usize) -> Option<usize> {
        let cluster = self.cluster.as_mut()?;
        cluster.set_lane(route, to);
        Some(to)
    }

    /// Hands over the commands that wait for a lane to the lanes to which its routes lead now.
    fn hand_over(&mut self, at: usize, targets: &BTreeSet<usize>, now: Instant) {
        let Self { all, cluster: Some(cluster), .. } = self else { return };
        for to in targets.iter().copied().filter(|to| *to != at) {
            let moved = all[at].connection.extract(|route| cluster.lane(route) == to);
            all[to].connection.adopt(moved, now);
        }
        self.find_home();
    }

    /// Follows redirects: redirected commands that wait go to the other node, unless they have moved already. Nothing of the lane
    /// is in flight.
    pub(crate) fn redirect(&mut self, at: usize, detours: &[(&Detour, Node)], now: Instant) {
        let detours: Vec<_> = detours.iter().map(|(detour, node)| (*detour, self.lane_of(node))).collect();
        let waiting = self.all[at].connection.retry.routes();
        let is_here = |lanes: &Self, route| lanes.cluster.as_ref().is_some_and(|cluster| cluster.lane(route) == at);
        let mut targets = BTreeSet::new();
        // Whole slots, with their streams that are on the same node.
        for (detour, to) in detours.iter().copied().filter(|(detour, _)| detour.asked.is_none()) {
            if !is_here(self, detour.route) {
                continue;
            }
            let slot = self.slot(detour.route);
            let routes = self.cluster.as_ref().map_or_else(Vec::new, |cluster| cluster.routes_of(slot, at));
            for route in routes {
                if route == detour.route || !self.is_bound(at, route, &waiting) {
                    targets.extend(self.lead(route, to));
                    self.all[to].connection.ask(route, false, now);
                }
            }
        }
        // Single streams.
        let mut streams: BTreeMap<u16, BTreeMap<&[u8], u16>> = BTreeMap::new();
        let mut new = BTreeSet::new();
        for (detour, to) in detours {
            let Some(key) = detour.asked.as_deref().filter(|_| is_here(self, detour.route)) else { continue };
            let Some(own) = self.own_route(detour.route, key, to, &new) else {
                self.all[at].connection.retry.strand(detour.clone());
                continue;
            };
            new.insert(own);
            if own != detour.route {
                streams.entry(detour.route).or_default().insert(key, own);
            }
            targets.extend(self.lead(own, to));
            self.all[to].connection.ask(own, true, now);
        }
        for (route, streams) in &streams {
            self.all[at].connection.reroute(*route, streams);
        }
        self.hand_over(at, &targets, now);
    }

    /// The route of one stream alone. `None`: there are too many. `new`: the routes of this round, which no command has yet.
    fn own_route(&mut self, route: u16, key: &[u8], to: usize, new: &BTreeSet<u16>) -> Option<u16> {
        if self.slot(route) != route {
            return Some(route);
        }
        if !self.cluster.as_ref()?.streams.has_room(key) {
            self.reclaim(new);
        }
        self.cluster.as_mut()?.streams.add(key, route, to)
    }

    /// Removes the routes of streams of which nothing is under way: the node of their slot will send them there again.
    fn reclaim(&mut self, new: &BTreeSet<u16>) {
        let Self { all, cluster: Some(cluster), .. } = self else { return };
        let mut used = new.clone();
        for connection in all.iter().map(|lane| &lane.connection) {
            used.extend(connection.routes());
        }
        cluster.streams.retain(|route, _| used.contains(&route));
        self.find_home();
    }

    /// Stops sending ASKING after a while, where nothing is under way.
    pub(crate) fn rest_asking(&mut self, now: Instant) {
        let Self { all, cluster: Some(cluster), .. } = self else { return };
        for lane in all.iter_mut() {
            lane.connection.rest_asking(now);
        }
        if !cluster.streams.is_empty() {
            cluster.streams.retain(|route, at| {
                let connection = &all[at].connection;
                !connection.is_idle() || connection.is_asking(route)
            });
            self.find_home();
        }
    }

    /// Whether nothing leads to a lane.
    pub(crate) fn is_deserted(&self, at: usize) -> bool {
        self.cluster.as_ref().is_some_and(|cluster| cluster.routes_to(at).next().is_none())
    }

    /// Sets how many streams may have routes of their own.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn set_max_streams(&mut self, max: usize) {
        if let Some(cluster) = &mut self.cluster {
            cluster.streams = StreamRoutes::with_max(max);
        }
    }
}
