//! Commands of routes that the node does not take for a while, with those that came after them, while others continue. No I/O and
//! no clock.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use super::pending_retry::PendingRetry;
use crate::error::Failure;

/// The commands of one route, and how far its retries have come.
#[derive(Debug)]
pub(super) struct ParkedRoute {
    pub(super) commands: VecDeque<PendingRetry>,
    /// When the first command failed, and how many times the commands were tried and sent again.
    pub(super) since: Instant,
    pub(super) attempts: u32,
    pub(super) resends: u32,
    /// When the commands are sent again.
    pub(super) next: Instant,
    /// Whether a caller knows that the commands wait.
    pub(super) is_reported: bool,
}

#[derive(Debug, Default)]
pub(super) struct ParkedRoutes {
    routes: BTreeMap<u16, ParkedRoute>,
    /// How many commands there are, and their bytes.
    load: (usize, u64),
}

impl ParkedRoutes {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.routes.is_empty()
    }

    pub(super) fn has(&self, route: u16) -> bool {
        self.routes.contains_key(&route)
    }

    /// How many commands there are, and their bytes.
    #[inline]
    pub(super) fn load(&self) -> (usize, u64) {
        self.load
    }

    pub(super) fn add(&mut self, route: u16, parked: ParkedRoute) {
        for command in &parked.commands {
            self.load.0 += 1;
            self.load.1 += command.bytes.len() as u64;
        }
        self.routes.insert(route, parked);
    }

    /// Adds a command after the others of its route, if there are any. Otherwise returns it.
    pub(super) fn push(&mut self, command: PendingRetry) -> Option<PendingRetry> {
        let Some(parked) = self.routes.get_mut(&command.route) else { return Some(command) };
        self.load.0 += 1;
        self.load.1 += command.bytes.len() as u64;
        parked.commands.push_back(command);
        None
    }

    /// The route whose commands are sent again first, and when.
    pub(super) fn first(&self) -> Option<(u16, Instant)> {
        self.routes.iter().map(|(route, parked)| (*route, parked.next)).min_by_key(|(_, next)| *next)
    }

    pub(super) fn take(&mut self, route: u16) -> Option<ParkedRoute> {
        let parked = self.routes.remove(&route)?;
        self.forget(&parked.commands);
        Some(parked)
    }

    /// Takes out some commands, in the order of each route. If a route has none left, also returns since when its commands have
    /// been tried, and whether a caller knows that they wait.
    pub(super) fn extract(
        &mut self,
        is_taken: impl Fn(&PendingRetry) -> bool,
    ) -> (Vec<PendingRetry>, Option<(Instant, bool)>) {
        let mut taken = Vec::new();
        for parked in self.routes.values_mut() {
            let (out, left): (Vec<_>, Vec<_>) = parked.commands.drain(..).partition(|command| is_taken(command));
            parked.commands = left.into();
            taken.extend(out);
        }
        let emptied = || self.routes.values().filter(|parked| parked.commands.is_empty());
        let is_reported = emptied().any(|parked| parked.is_reported);
        let ended = emptied().map(|parked| parked.since).min().map(|since| (since, is_reported));
        self.routes.retain(|_, parked| !parked.commands.is_empty());
        self.forget(&taken);
        (taken, ended)
    }

    fn forget<'a>(&mut self, commands: impl IntoIterator<Item = &'a PendingRetry>) {
        for command in commands {
            self.load.0 -= 1;
            self.load.1 -= command.bytes.len() as u64;
        }
    }

    pub(super) fn commands(&self) -> impl Iterator<Item = &PendingRetry> + Clone {
        self.routes.values().flat_map(|parked| &parked.commands)
    }

    /// The failure of the first command.
    pub(super) fn reason(&self) -> Option<Arc<Failure>> {
        self.commands().next().map(|command| Arc::clone(&command.failure))
    }

    /// Since when the commands of some routes have been tried, and how many times at most.
    pub(super) fn progress(&self, is_taken: impl Fn(u16) -> bool) -> (Option<Instant>, u32) {
        let taken = || self.routes.iter().filter(|(route, _)| is_taken(**route)).map(|(_, parked)| parked);
        (taken().map(|parked| parked.since).min(), taken().map(|parked| parked.attempts).max().unwrap_or(0))
    }
}
