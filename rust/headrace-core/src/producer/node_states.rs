//! The state of the nodes of a cluster, for counters and for the log: how much is in flight, which are down, which slots moved.
//! No I/O; the time is an argument.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Producer;
use super::lanes::{Lanes, Load};
use super::slot_owners::{Moved, SlotOwners};
use crate::connection::Limits;
use crate::counters::{Counters, NodeCounters};
use crate::endpoint::Node;
use crate::error::{Fault, code};
use crate::net::ServerChange;

/// The shortest time between two reports of moved slots during a call: moves between the same two nodes in between are one.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// The node of a lane.
#[derive(Debug)]
struct NodeState {
    node: Node,
    counters: Arc<NodeCounters>,
    /// Since when it has been unreachable.
    down: Option<Instant>,
}

/// The state of a lane.
#[derive(Debug, Default)]
struct LaneState {
    /// `None`: it leads to the only server, or to a node that is not known yet.
    node: Option<NodeState>,
    /// Whether the last socket was lost.
    was_lost: bool,
}

#[derive(Debug, Default)]
pub(super) struct NodeStates {
    /// One for each lane.
    lanes: Vec<LaneState>,
    owners: SlotOwners,
    /// What no call has reported yet.
    changes: VecDeque<ServerChange>,
    moves: Vec<Moved>,
    /// When moves were last reported.
    moves_reported: Option<Instant>,
}

impl NodeStates {
    /// Adds lanes that are not known yet, and the nodes of lanes that have become known.
    pub(super) fn add(&mut self, lanes: &Lanes, counters: &Counters) {
        self.lanes.resize_with(lanes.len().max(self.lanes.len()), LaneState::default);
        for (at, lane) in self.lanes.iter_mut().enumerate().filter(|(_, lane)| lane.node.is_none()) {
            lane.node = lanes.node(at).map(|node| {
                let state = NodeState {
                    node: node.clone(),
                    counters: Arc::new(NodeCounters::new(node.to_string())),
                    down: None,
                };
                counters.list(&state.counters);
                state
            });
        }
    }

    fn lane(&mut self, at: usize) -> &mut LaneState {
        self.lanes.resize_with(self.lanes.len().max(at + 1), LaneState::default);
        &mut self.lanes[at]
    }

    /// Notes that a lane has a socket.
    pub(super) fn opened(&mut self, at: usize, counters: &Counters, now: Instant) {
        counters.connections.add(1);
        let lane = self.lane(at);
        if std::mem::take(&mut lane.was_lost) {
            counters.reconnects.add(1);
        }
        if let Some(state) = &mut lane.node {
            counters.list(&state.counters);
            state.counters.connections.add(1);
            let change = state.back(now);
            self.changes.extend(change);
        }
    }

    /// Notes that the socket of a lane ended abnormally.
    pub(super) fn lost(&mut self, at: usize) {
        self.lane(at).was_lost = true;
    }

    /// Notes that a node cannot be reached or does not reply. `unix_ms`: the time of day.
    pub(super) fn failed(&mut self, at: usize, fault: &Fault, now: Instant, unix_ms: u64) {
        if let Some(state) = self.lane(at).node.as_mut().filter(|state| state.down.is_none())
            && code::is_away(&fault.code)
        {
            state.down = Some(now);
            state.counters.down_since.set(Some(unix_ms));
            let (node, code, message) = (state.node.to_string(), fault.code.clone(), fault.message.clone());
            self.changes.push_back(ServerChange::NodeDown { node, code, message });
        }
    }

    /// Notes that a node sent messages of this number of slots elsewhere.
    pub(super) fn redirected(&mut self, at: usize, slots: usize) {
        if let Some(state) = &self.lane(at).node {
            state.counters.redirects.add(slots as u64);
        }
    }

    /// Notes that a node reported another one as the owner of a slot.
    pub(super) fn slot_moved(&mut self, slot: u16, node: &Node) {
        if let Some(moved) = self.owners.redirected(slot, node) {
            self.note_moved(moved);
        }
    }

    /// Notes which node has which slots, and which replica (first) belongs to which node, as the cluster reports them.
    pub(super) fn located(&mut self, map: &[(RangeInclusive<u16>, Node)], replicas: &[(Node, Node)], now: Instant) {
        for moved in self.owners.see(map, replicas) {
            self.note_moved(moved);
        }
        // Nothing is sent to a replica, so only the cluster can say that it is reachable.
        for state in self.lanes.iter_mut().filter_map(|lane| lane.node.as_mut()) {
            let is_listed = replicas.iter().any(|(replica, _)| *replica == state.node);
            let is_master = map.iter().any(|(_, node)| *node == state.node);
            if is_listed && !is_master {
                self.changes.extend(state.back(now));
            }
        }
    }

    fn note_moved(&mut self, moved: Moved) {
        let is_down = self.lanes.iter().filter_map(|lane| lane.node.as_ref());
        let is_down = is_down.filter(|state| state.node == moved.from).any(|state| state.down.is_some());
        let is_failover = moved.is_failover || is_down;
        match self.moves.iter_mut().find(|known| (&known.from, &known.to) == (&moved.from, &moved.to)) {
            Some(known) => {
                known.slots += moved.slots;
                known.is_failover |= is_failover;
            }
            None => self.moves.push(Moved { is_failover, ..moved }),
        }
    }

    /// Whether there is something to report.
    pub(super) fn has_changes(&self) -> bool {
        !self.changes.is_empty() || !self.moves.is_empty()
    }

    /// Takes the next change to report. `is_last`: moves too, however recently others were reported.
    pub(super) fn next_change(&mut self, is_last: bool, now: Instant) -> Option<ServerChange> {
        if let Some(change) = self.changes.pop_front() {
            return Some(change);
        }
        if self.moves.is_empty() {
            return None;
        }
        let is_early = self.moves_reported.is_some_and(|last| now.saturating_duration_since(last) < REPORT_EVERY);
        if is_early && !is_last {
            return None;
        }
        self.moves_reported = Some(now);
        self.changes.extend(self.moves.drain(..).map(|moved| {
            let Moved { slots, from, to, is_failover } = moved;
            let (from, to) = (from.to_string(), to.to_string());
            if is_failover {
                ServerChange::FailedOver { slots, from, to }
            } else {
                ServerChange::SlotsMoved { slots, from, to }
            }
        }));
        self.changes.pop_front()
    }

    /// Forgets what was noted, in a forked child or after a panic. The nodes and their counters are kept.
    pub(super) fn forget(&mut self) {
        (self.changes, self.moves) = (VecDeque::new(), Vec::new());
        for lane in &mut self.lanes {
            lane.was_lost = false;
        }
    }
}

impl NodeState {
    /// Notes that it replies. Returns the change, if it was down.
    fn back(&mut self, now: Instant) -> Option<ServerChange> {
        let since = self.down.take()?;
        self.counters.down_since.set(None);
        let after = now.saturating_duration_since(since);
        Some(ServerChange::NodeBack { node: self.node.to_string(), after })
    }
}

impl Producer {
    /// The shard of the first message that waits for the node of a lane: for its reply, or else to be sent again.
    fn oldest_shard(&self, at: usize) -> Option<usize> {
        let (shards, connection) = (self.endpoint.shards()?, self.lanes.get(at));
        let route = connection.in_flight.commands_from(0).find_map(|command| command.route);
        let route = route.or_else(|| connection.retry.routes().first().copied())?;
        shards.only_in_slot(self.lanes.slot(route))
    }

    /// Writes to the counters what is in flight to each node, and which node the full window waits for.
    pub(super) fn publish_nodes(&self) {
        if !self.lanes.is_of_cluster() {
            return;
        }
        let is_full = !self.lanes.load().has_room(self.limits, self.outcomes.early() + self.open_runs());
        let share = |at: &usize| {
            let Load { entries, bytes } = self.lanes.load_of(*at);
            let Limits { max_entries, max_bytes } = self.limits;
            // Compared as shares of the limits, without fractions.
            (entries as u128 * u128::from(max_bytes)).max(u128::from(bytes) * max_entries as u128)
        };
        let fullest = (0..self.lanes.len()).max_by_key(share);
        for (at, lane) in self.node_states.lanes.iter().enumerate().take(self.lanes.len()) {
            let (Some(state), connection) = (&lane.node, self.lanes.get(at)) else { continue };
            let messages = connection.in_flight.messages() + connection.retry.messages();
            let bytes = self.lanes.load_of(at).bytes;
            state.counters.in_flight.set(messages);
            state.counters.in_flight_bytes.set(bytes);
            let fills_window = is_full && messages > 0 && fullest == Some(at);
            state.counters.fills_window.set(fills_window);
            let oldest_shard = fills_window.then(|| self.oldest_shard(at)).flatten();
            state.counters.waiting_shard.set(oldest_shard);
        }
    }
}
