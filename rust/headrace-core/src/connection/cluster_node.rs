//! What a connection needs to know about the cluster node that it leads to: which slots it has. No I/O and no clock.
//!
//! A node that may not have a slot gets one command for it, and no further one until it has accepted the first. Otherwise,
//! commands that are in flight when it gets the slot would be written before those that it refused.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::in_flight::InFlight;
use crate::cluster::{Redirect, SlotSet};

/// The shortest time for which commands of a route go out after ASKING.
const ASKED_FOR: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct ClusterNode {
    /// The routes of which the node has accepted a command on this socket.
    proven: SlotSet,
    /// Other routes with a command that may go out.
    probed: Vec<u16>,
    /// How many commands may go out, counted from the first one ever added.
    cleared: u64,
    /// The offset after the last command that may go out.
    end: u64,
    /// The routes whose commands the node accepts only after ASKING, each with the time since when.
    asked: BTreeMap<u16, Instant>,
}

impl ClusterNode {
    /// Sets since when the node accepts commands of a route only after ASKING; `None`: also without.
    pub(super) fn ask(&mut self, route: u16, since: Option<Instant>) {
        match since {
            Some(since) => self.asked.insert(route, since),
            None => self.asked.remove(&route),
        };
    }

    /// Whether a command of this route goes out after ASKING.
    #[inline]
    pub(super) fn is_asked(&self, route: u16) -> bool {
        !self.asked.is_empty() && self.asked.contains_key(&route)
    }

    /// How many bytes may go out.
    pub(super) fn sendable(&mut self, window: &InFlight) -> usize {
        self.cleared = self.cleared.max(window.answered());
        let mut commands = 0;
        for queued in window.commands_from(self.cleared) {
            commands += 1;
            if queued.is_asking {
                // ASKING goes out with the command after it.
                continue;
            }
            if let Some(route) = queued.route.filter(|route| !self.proven.contains(*route)) {
                if self.probed.contains(&route) {
                    break;
                }
                self.probed.push(route);
            }
            self.cleared += std::mem::take(&mut commands);
            self.end = queued.end;
        }
        window.until(self.end)
    }

    /// Resets what was cleared: nothing is in flight any more, and offsets start again.
    pub(super) fn restart(&mut self) {
        (self.cleared, self.end) = (0, 0);
        self.probed.clear();
    }

    /// Marks a route as proven: the node has accepted a command of it.
    #[inline]
    pub(super) fn accept(&mut self, route: u16) {
        if !self.proven.contains(route) {
            self.proven.insert(route);
            self.probed.retain(|probed| *probed != route);
        }
    }

    /// Updates a route of which the node refused a command. A server checks the slot before anything else that a command may be
    /// refused for, except rights.
    pub(super) fn refuse(&mut self, route: u16, line: &[u8], redirect: Option<&Redirect>) {
        if redirect.is_some() {
            self.proven.remove(route);
            self.asked.remove(&route);
        } else if !line.starts_with(b"TRYAGAIN") && !line.starts_with(b"CLUSTERDOWN") {
            self.accept(route);
        }
        self.probed.retain(|probed| *probed != route);
    }

    /// Ends ASKING after a while, while nothing is in flight: only the node itself knows when a slot is its own.
    pub(super) fn rest(&mut self, now: Instant) {
        let proven = &mut self.proven;
        self.asked.retain(|route, since| {
            let is_kept = now.saturating_duration_since(*since) < ASKED_FOR;
            if !is_kept {
                proven.remove(*route);
            }
            is_kept
        });
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::command::Expect;
    use crate::connection::Owner;

    fn push(window: &mut InFlight, slot: u16) {
        window.set_route(slot);
        window.push(10, window.added(), 1, Expect::EntryId, Owner::Report);
    }

    #[test]
    fn one_command_of_each_slot_is_sent_until_it_is_accepted() {
        let (mut node, mut window) = (ClusterNode::default(), InFlight::default());
        assert_eq!(node.sendable(&window), 0);
        for slot in [1, 2, 1, 3, 2] {
            push(&mut window, slot);
        }
        assert_eq!((node.sendable(&window), node.sendable(&window)), (20, 20));
        window.hand_over(20);
        assert!(window.answer().is_some());
        assert_eq!(node.sendable(&window), 0);
        node.accept(1);
        assert_eq!(node.sendable(&window), 20, "up to the second command of slot 2");
        node.refuse(2, b"WRONGTYPE", None);
        assert_eq!(node.sendable(&window), 30, "it has the slot");
        window.hand_over(30);
        node.refuse(3, b"MOVED", Redirect::read(b"MOVED 3 a:1").as_ref());
        push(&mut window, 3);
        push(&mut window, 3);
        assert_eq!(node.sendable(&window), 10, "one more try");
    }

    #[test]
    fn asking_is_sent_with_the_command_after_it() {
        let (mut node, mut window) = (ClusterNode::default(), InFlight::default());
        push(&mut window, 1);
        window.push_control(7, Expect::Asking);
        push(&mut window, 1);
        assert_eq!(node.sendable(&window), 10);
        node.accept(1);
        assert_eq!(node.sendable(&window), 27);
    }

    #[test]
    fn asking_ends_after_a_while() {
        let (mut node, now) = (ClusterNode::default(), Instant::now());
        node.ask(1, Some(now));
        node.accept(1);
        assert!(node.is_asked(1) && !node.is_asked(2));
        node.rest(now + Duration::from_millis(900));
        assert!(node.is_asked(1));
        node.rest(now + ASKED_FOR);
        let mut window = InFlight::default();
        push(&mut window, 1);
        push(&mut window, 1);
        assert!(!node.is_asked(1));
        assert_eq!(node.sendable(&window), 10, "it may have given the slot back");
    }
}
