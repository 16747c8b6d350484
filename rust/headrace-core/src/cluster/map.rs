//! The map of a cluster: its nodes, the owner of each slot, the nodes to ask, and the effect of a redirect. No I/O and no clock.
//!
//! A slot's owner is known from the last report of a node and the redirects since. Asking again is due for a slot whose owner
//! could not be reached, for one that was redirected to a node that the cluster has not listed, and for one that no node has:
//!
//! ```text
//!          learn                         lost(owner), or redirected to an unlisted node
//! unknown ───────▶ owner (same, or moved) ──────────────────────────────────────────────▶ doubted
//!                  ▲   │ redirected: MOVED to a listed node                                 │
//!                  └───┴────────────────────── learn ──────────────────────────────────────┘
//! ```
//!
//! Those who ask have a map each: the pool of a reader, a consumer or a keeper (`reading/pool.rs`), a producer
//! (`producer/sender/errands.rs`), the shard registry (`net/shard_registry.rs`) and the connections of one call
//! (`admin/kept_connections.rs`). How often they do, they decide.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use super::members::Members;
use super::moved::Moved;
use super::node::Node;
use super::node_map::NodeMap;
use super::redirect::Redirect;
use super::slot::SLOTS;
use super::slot_set::SlotSet;
use super::slots::Slots;

/// The maximum number of nodes in a cluster: more than any real one. With more, the work for all of them would take too long.
pub(crate) const MAX_NODES: usize = 4_000;

/// A report that names more than [`MAX_NODES`] nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooManyNodes;

/// The target of a redirect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Redirected {
    /// MOVED: the command, and all of its slot, goes to this node.
    Goes(Node),
    /// ASK: this command alone goes to this node, after ASKING.
    Asks(Node),
    /// The target cannot be read, or is a node that the cluster has not listed: the nodes must be asked, first the one that
    /// redirected.
    Unknown,
}

/// A node, and whether the cluster has listed it. Only listed nodes get credentials.
#[derive(Debug, Clone)]
struct Known {
    node: Node,
    is_listed: bool,
}

/// The nodes of a cluster and the owners of its slots.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClusterMap {
    /// The addresses to connect to for those that the nodes show.
    shown: NodeMap,
    /// Each node once: the listed ones, owners of slots first, then former owners.
    nodes: Vec<Known>,
    /// For each slot, the place of its last known owner in `nodes`, counted from 1. 0: no node has had it yet.
    owners: Vec<u16>,
    /// The slots that no node has, or that were redirected to an unlisted node.
    doubted: SlotSet,
    /// The places of replicas, each with that of its master.
    replicas: Vec<(u16, u16)>,
    /// The node that redirected to an unlisted one since the last report.
    sender: Option<Node>,
    /// The nodes that could not be reached since the last report.
    lost: Vec<Node>,
}

impl ClusterMap {
    /// Creates an empty map. `shown`: the addresses to connect to for those that the nodes show.
    pub(crate) fn new(shown: NodeMap) -> Self {
        Self { shown, ..Self::default() }
    }

    /// The node that has this slot. `None`: the nodes must be asked.
    pub(crate) fn owner(&self, slot: u16) -> Option<&Node> {
        let owner = self.last_owner(slot).filter(|_| !self.doubted.contains(slot))?;
        (!self.lost.contains(owner)).then_some(owner)
    }

    /// The ranges of slots that have an owner, in order.
    pub(crate) fn owned(&self) -> Vec<(RangeInclusive<u16>, Node)> {
        let mut owned: Vec<(RangeInclusive<u16>, u16)> = Vec::new();
        for slot in (0..SLOTS).filter(|slot| !self.doubted.contains(*slot)) {
            let place = self.place(slot);
            match owned.last_mut() {
                Some((slots, last)) if *last == place && *slots.end() + 1 == slot => *slots = *slots.start()..=slot,
                _ => owned.push((slot..=slot, place)),
            }
        }
        owned.into_iter().filter_map(|(slots, place)| Some((slots, self.node(place)?.clone()))).collect()
    }

    /// Each replica, with its master.
    pub(crate) fn replicas(&self) -> Vec<(Node, Node)> {
        let pair = |(replica, master): &(u16, u16)| Some((self.node(*replica)?.clone(), self.node(*master)?.clone()));
        self.replicas.iter().filter_map(pair).collect()
    }

    /// How many replicas a node has. `None`: it has no slot.
    pub(crate) fn replicas_of(&self, node: &Node) -> Option<u64> {
        let place = self.place_of(node).filter(|place| self.owners.contains(place))?;
        Some(self.replicas.iter().filter(|(_, master)| *master == place).count() as u64)
    }

    /// The nodes to ask, without duplicates: a node that redirected to an unlisted one first, lost nodes last.
    pub(crate) fn candidates(&self, seeds: Vec<Node>) -> Vec<Node> {
        let mut nodes: Vec<Node> =
            self.nodes.iter().filter(|known| known.is_listed).map(|known| known.node.clone()).collect();
        for seed in seeds {
            if !nodes.contains(&seed) {
                nodes.push(seed);
            }
        }
        nodes.sort_by_key(|node| (self.lost.contains(node), Some(node) != self.sender.as_ref()));
        nodes
    }

    /// Replaces the map by a node's reply to CLUSTER SLOTS. Returns the slots that have moved since: one item for each pair of
    /// nodes. A slot without a node counts as its last node's.
    pub(crate) fn learn(&mut self, slots: &Slots, sender: &Node) -> Result<Vec<Moved>, TooManyNodes> {
        let mut new = Self { owners: vec![0; SLOTS.into()], ..Self::new(self.shown.clone()) };
        for name in slots.nodes() {
            new.list(&self.shown.named(name, sender));
            if new.nodes.len() > MAX_NODES {
                return Err(TooManyNodes);
            }
        }
        for (range, name) in slots.owned() {
            let place = new.place_of(&self.shown.named(name, sender)).unwrap_or_default();
            range.for_each(|slot| new.set(slot, place));
        }
        for (replica, master) in slots.followers() {
            let pair = [replica, master].map(|name| new.place_of(&self.shown.named(name, sender)));
            if let [Some(replica), Some(master)] = pair
                && !new.replicas.contains(&(replica, master))
            {
                new.replicas.push((replica, master));
            }
        }
        let moved = new.since(self);
        *self = new;
        Ok(moved)
    }

    /// Returns the slots that have moved since `old`, and takes over the last owners of slots without a node.
    fn since(&mut self, old: &Self) -> Vec<Moved> {
        // The places of the old nodes here. Former owners need one.
        let mut places: BTreeMap<u16, u16> = BTreeMap::new();
        for place in old.owners.iter().copied().filter(|place| *place > 0) {
            places.entry(place).or_insert_with(|| old.node(place).map(|node| self.add(node)).unwrap_or_default());
        }
        let had_slots: Vec<u16> = places.values().copied().collect();
        let here = |place: u16| old.node(place).and_then(|node| self.place_of(node));
        let followed: Vec<_> =
            old.replicas.iter().filter_map(|(replica, master)| Some((here(*replica)?, here(*master)?))).collect();
        let mut moved: BTreeMap<(u16, u16), u64> = BTreeMap::new();
        for slot in 0..SLOTS {
            let from = places.get(&old.place(slot)).copied().unwrap_or_default();
            match self.place(slot) {
                0 => {
                    self.set(slot, from);
                    self.doubted.insert(slot);
                }
                to if from > 0 && from != to => *moved.entry((from, to)).or_default() += 1,
                _ => {}
            }
        }
        // The replica may have joined its master after the cluster was last asked.
        let took_over = |from, to| self.replicas.contains(&(from, to)) && !had_slots.contains(&to);
        let moved = moved.into_iter().filter_map(|((from, to), slots)| {
            let is_failover = followed.contains(&(to, from)) || took_over(from, to);
            Some(Moved { slots, from: self.node(from)?.clone(), to: self.node(to)?.clone(), is_failover })
        });
        moved.collect()
    }

    /// Records that `sender` redirected a command for this slot. `redirect`: `None` if it cannot be read.
    pub(crate) fn redirected(&mut self, slot: u16, redirect: Option<&Redirect>, sender: &Node) -> Redirected {
        self.lost.retain(|lost| lost != sender);
        let target = redirect.and_then(|redirect| Some((redirect, self.target(redirect, sender)?)));
        match target {
            Some((redirect, target)) if redirect.is_ask => Redirected::Asks(target),
            Some((redirect, target)) => {
                self.moved_to(redirect.slot, &target);
                Redirected::Goes(target)
            }
            None => {
                self.doubt(slot, sender);
                Redirected::Unknown
            }
        }
    }

    /// The node to which `sender` redirected a command, if the cluster has listed it.
    pub(crate) fn target(&self, redirect: &Redirect, sender: &Node) -> Option<Node> {
        let target = self.shown.named(redirect.node.as_ref()?, sender);
        self.nodes.iter().any(|known| known.is_listed && known.node == target).then_some(target)
    }

    /// Makes a listed node the owner of a slot, as a node reported. Returns the slots that have moved: all those of the previous
    /// owner if the node is its replica.
    pub(crate) fn moved_to(&mut self, slot: u16, node: &Node) -> Option<Moved> {
        let to = self.place_of(node)?;
        let from = self.place(slot);
        if from == 0 || from == to || !self.replicas.contains(&(to, from)) {
            self.doubted.remove(slot);
            self.set(slot, to);
            let from = self.node(from).filter(|from| *from != node)?.clone();
            return Some(Moved { slots: 1, from, to: node.clone(), is_failover: false });
        }
        let mut slots = 0;
        for slot in 0..SLOTS {
            if self.place(slot) == from {
                self.doubted.remove(slot);
                self.set(slot, to);
                slots += 1;
            }
        }
        Some(Moved { slots, from: self.node(from)?.clone(), to: node.clone(), is_failover: true })
    }

    /// Marks the owner of a slot as doubted: the nodes must be asked, first `sender`, which does not have the slot.
    pub(crate) fn doubt(&mut self, slot: u16, sender: &Node) {
        self.doubted.insert(slot);
        self.sender = Some(sender.clone());
    }

    /// Marks a node as lost: it could not be reached, or did not report the owners of the slots. Other nodes may have its slots.
    pub(crate) fn lost(&mut self, node: &Node) {
        if !self.lost.contains(node) {
            self.lost.push(node.clone());
        }
    }

    /// Lists the node to which `sender` redirected a command, if it is one of the members that the sender knows.
    pub(crate) fn confirm(&mut self, redirect: &Redirect, sender: &Node, members: &Members) {
        if let Some(name) = redirect.node.as_ref().filter(|name| members.contain(name)) {
            self.list(&self.shown.named(name, sender));
        }
    }

    fn last_owner(&self, slot: u16) -> Option<&Node> {
        self.node(self.place(slot))
    }

    /// The place of the last known owner of a slot.
    fn place(&self, slot: u16) -> u16 {
        self.owners.get(usize::from(slot)).copied().unwrap_or_default()
    }

    fn set(&mut self, slot: u16, place: u16) {
        let slot = usize::from(slot);
        if self.owners.len() <= slot {
            self.owners.resize(SLOTS.into(), 0);
        }
        if let Some(owner) = self.owners.get_mut(slot) {
            *owner = place;
        }
    }

    fn node(&self, place: u16) -> Option<&Node> {
        self.nodes.get(usize::from(place).checked_sub(1)?).map(|known| &known.node)
    }

    /// The place of a known node.
    fn place_of(&self, node: &Node) -> Option<u16> {
        let at = self.nodes.iter().position(|known| known.node == *node)?;
        u16::try_from(at + 1).ok()
    }

    /// The place of a node, which is added if it is not known.
    fn add(&mut self, node: &Node) -> u16 {
        self.place_of(node).unwrap_or_else(|| {
            self.nodes.push(Known { node: node.clone(), is_listed: false });
            u16::try_from(self.nodes.len()).unwrap_or_default()
        })
    }

    fn list(&mut self, node: &Node) {
        let place = self.add(node);
        if let Some(known) = usize::from(place).checked_sub(1).and_then(|at| self.nodes.get_mut(at)) {
            known.is_listed = true;
        }
    }
}
