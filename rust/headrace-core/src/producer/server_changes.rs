//! Changes of the nodes of a cluster that no call has reported yet: which are down, and which slots moved. No I/O; the time is an
//! argument.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use super::lanes::Lanes;
use super::node_state::NodeState;
use crate::cluster::{Moved, Node};
use crate::net::ServerChange;

/// The shortest time between two reports of moved slots during a call: moves between the same two nodes in between are one.
const REPORT_EVERY: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub(super) struct ServerChanges {
    changes: VecDeque<ServerChange>,
    moves: Vec<Moved>,
    /// When moves were last reported.
    moves_reported: Option<Instant>,
}

impl ServerChanges {
    /// Adds a change, if there is one.
    pub(super) fn note(&mut self, change: Option<ServerChange>) {
        self.changes.extend(change);
    }

    /// Sets what the cluster reports: which slots `moved`, which node has which slots, and which replica (first) belongs to which
    /// node.
    pub(super) fn located(
        &mut self,
        moved: Vec<Moved>,
        map: &[(RangeInclusive<u16>, Node)],
        replicas: &[(Node, Node)],
        lanes: &mut Lanes,
        now: Instant,
    ) {
        for moved in moved {
            self.slots_moved(moved, lanes);
        }
        // Nothing is sent to a replica, so only the cluster can say that it is reachable.
        for state in lanes.all_mut().filter_map(|lane| lane.state.as_mut()) {
            let is_listed = replicas.iter().any(|(replica, _)| *replica == state.node);
            let is_master = map.iter().any(|(_, node)| *node == state.node);
            if is_listed && !is_master {
                self.changes.extend(state.back(now));
            }
        }
    }

    /// Notes that slots have moved.
    pub(super) fn slots_moved(&mut self, moved: Moved, lanes: &Lanes) {
        let mut from = lanes.all().filter_map(|lane| lane.state.as_ref()).filter(|state| state.node == moved.from);
        let is_failover = moved.is_failover || from.any(NodeState::is_down);
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

    /// Forgets all changes, in a forked child or after a panic.
    pub(super) fn forget(&mut self) {
        (self.changes, self.moves) = (VecDeque::new(), Vec::new());
    }
}
