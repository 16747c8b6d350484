//! Which node of a cluster had which slot when the cluster was last asked, and which slots have moved since. No I/O.

use std::ops::RangeInclusive;

use crate::endpoint::Node;

/// Slots of one node that another node has now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Moved {
    pub(super) slots: u64,
    pub(super) from: Node,
    pub(super) to: Node,
    /// Whether a replica of the node has taken over.
    pub(super) is_failover: bool,
}

#[derive(Debug, Default)]
pub(super) struct SlotOwners {
    /// Each node once. Places are never reused.
    nodes: Vec<Node>,
    /// For each slot, the place of its node, counted from 1. 0: no node has had it yet.
    owners: Vec<u16>,
    /// The places of replicas, each with that of its master.
    replicas: Vec<(u16, u16)>,
}

impl SlotOwners {
    /// Records which node has which slots, and which replica (first) belongs to which node, as the cluster reports them. Returns
    /// the moves, one for each pair of nodes. A slot without a node counts as its last node's.
    pub(super) fn see(&mut self, map: &[(RangeInclusive<u16>, Node)], replicas: &[(Node, Node)]) -> Vec<Moved> {
        let mut moved: Vec<(u16, u16, u64)> = Vec::new();
        let mut had_slots: Vec<u16> = self.owners.clone();
        had_slots.sort_unstable();
        had_slots.dedup();
        for (slots, node) in map {
            let to = self.place(node);
            for slot in slots.clone() {
                let Some(from) = self.set(slot, to) else { continue };
                match moved.iter_mut().find(|(old, new, _)| (*old, *new) == (from, to)) {
                    Some((_, _, count)) => *count += 1,
                    None => moved.push((from, to, 1)),
                }
            }
        }
        let replicas: Vec<_> =
            replicas.iter().map(|(replica, master)| (self.place(replica), self.place(master))).collect();
        // The replica may have joined its master after the cluster was last asked.
        let changed_places = |from, to| replicas.contains(&(from, to)) && had_slots.binary_search(&to).is_err();
        let moved = moved.into_iter().filter_map(|(from, to, slots)| {
            let moved = self.moved(from, to, slots)?;
            Some(Moved { is_failover: moved.is_failover || changed_places(from, to), ..moved })
        });
        let moved = moved.collect();
        self.replicas = replicas;
        moved
    }

    /// Records that a node reported another one as the owner of a slot. If that one is a replica of the slot's previous node, it
    /// has all of that node's slots.
    pub(super) fn redirected(&mut self, slot: u16, node: &Node) -> Option<Moved> {
        let to = self.place(node);
        let from = self.owners.get(usize::from(slot)).copied().filter(|from| *from > 0 && *from != to)?;
        if !self.replicas.contains(&(to, from)) {
            self.set(slot, to);
            return self.moved(from, to, 1);
        }
        let taken = self.owners.iter_mut().filter(|owner| **owner == from);
        let slots = taken.map(|owner| *owner = to).count() as u64;
        self.moved(from, to, slots)
    }

    /// The place of a node, or 0 if there were too many nodes.
    fn place(&mut self, node: &Node) -> u16 {
        let at = self.nodes.iter().position(|known| known == node).unwrap_or_else(|| {
            self.nodes.push(node.clone());
            self.nodes.len() - 1
        });
        u16::try_from(at + 1).unwrap_or_default()
    }

    /// Returns the node that had the slot before, if another one did.
    fn set(&mut self, slot: u16, to: u16) -> Option<u16> {
        let slot = usize::from(slot);
        if self.owners.len() <= slot {
            self.owners.resize(slot + 1, 0);
        }
        let from = std::mem::replace(self.owners.get_mut(slot)?, to);
        Some(from).filter(|from| *from > 0 && to > 0 && *from != to)
    }

    fn moved(&self, from: u16, to: u16, slots: u64) -> Option<Moved> {
        let node = |place: u16| self.nodes.get(usize::from(place).checked_sub(1)?).cloned();
        Some(Moved { slots, from: node(from)?, to: node(to)?, is_failover: self.replicas.contains(&(to, from)) })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn node(port: u16) -> Node {
        Node { host: "db".to_owned(), port }
    }

    fn moved(slots: u64, from: u16, to: u16, is_failover: bool) -> Moved {
        Moved { slots, from: node(from), to: node(to), is_failover }
    }

    /// Nodes 1 and 2 have half of the slots each; 3 and 4 are their replicas.
    fn half_each() -> SlotOwners {
        let mut owners = SlotOwners::default();
        let map = [(0..=8_191, node(1)), (8_192..=16_383, node(2))];
        assert_eq!(owners.see(&map, &[(node(3), node(1)), (node(4), node(2))]), []);
        owners
    }

    #[test]
    fn slots_that_moved_are_counted_for_each_pair_of_nodes() {
        let mut owners = half_each();
        let map = [(0..=8_000, node(1)), (8_001..=16_000, node(2)), (16_001..=16_383, node(5))];
        assert_eq!(owners.see(&map, &[]), [moved(191, 1, 2, false), moved(383, 2, 5, false)]);
        assert_eq!(owners.see(&map, &[]), []);
    }

    #[test]
    fn a_replica_that_takes_over_is_a_failover() {
        let mut owners = half_each();
        // Until then, no node has these slots.
        assert_eq!(owners.see(&[(8_192..=16_383, node(2))], &[(node(3), node(1)), (node(4), node(2))]), []);
        let map = [(0..=8_191, node(3)), (8_192..=16_383, node(2))];
        assert_eq!(owners.see(&map, &[(node(1), node(3))]), [moved(8_192, 1, 3, true)]);
        let map = [(0..=8_191, node(1)), (8_192..=16_383, node(2))];
        assert_eq!(owners.see(&map, &[]), [moved(8_192, 3, 1, true)], "back");
    }

    #[test]
    fn a_node_that_follows_the_new_owner_of_its_slots_was_replaced() {
        let mut owners = half_each();
        let map = [(0..=8_191, node(7)), (8_192..=16_383, node(2))];
        assert_eq!(owners.see(&map, &[(node(1), node(7))]), [moved(8_192, 1, 7, true)]);
        // A master that gave its slots away, and follows the node that has the last of them.
        assert_eq!(owners.see(&[(0..=16_383, node(2))], &[(node(7), node(2))]), [moved(8_192, 7, 2, false)]);
    }

    #[test]
    fn a_redirect_to_a_replica_moves_all_slots_of_its_master() {
        let mut owners = half_each();
        assert_eq!(owners.redirected(5, &node(1)), None);
        assert_eq!(owners.redirected(5, &node(2)), Some(moved(1, 1, 2, false)));
        assert_eq!(owners.redirected(6, &node(3)), Some(moved(8_191, 1, 3, true)));
        assert_eq!(owners.redirected(7, &node(3)), None);
        let map = [(0..=4, node(3)), (5..=5, node(2)), (6..=8_191, node(3)), (8_192..=16_383, node(2))];
        assert_eq!(owners.see(&map, &[]), []);
    }

    #[test]
    fn a_redirect_before_any_owner_is_known_is_not_a_move() {
        assert_eq!(SlotOwners::default().redirected(5, &node(1)), None);
    }
}
