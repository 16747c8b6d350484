//! The loop for a caller that has its own event loop: like [`drive`](super::drive), but it never waits.

use std::time::Instant;

use super::Producer;
use super::drive::{Goal, Pass};
use super::link::{Errand, Link};
use crate::net::{Interest, Watch};

/// How far a producer got without waiting.
#[derive(Debug)]
pub(crate) enum Advance {
    /// All that can be done now is done. The time when there is more to do if no [socket](Producer::interests) is ready before;
    /// `None`: only the sockets matter.
    Done(Option<Instant>),
    /// Servers must be asked first: [`run`](Producer::run) the errand of this lane, and advance again.
    Errand(usize, Errand),
}

impl Producer {
    /// Does what can be done now for every message that waits.
    pub(crate) fn advance(&mut self, watch: &mut dyn Watch) -> Advance {
        let advanced = self.advance_lanes(watch);
        self.report_waits(watch);
        let is_idle = self.is_idle();
        if is_idle {
            self.lanes.rest_asking(Instant::now());
        }
        self.report_changes(is_idle, watch);
        self.publish_nodes();
        advanced
    }

    fn advance_lanes(&mut self, watch: &mut dyn Watch) -> Advance {
        let mut renewed = Vec::new();
        loop {
            self.close_runs();
            let now = Instant::now();
            let (mut moved, mut until) = (false, None);
            let mut at = 0;
            // Lanes may be added meanwhile.
            while at < self.links.len() {
                match self.advance_lane(at, now, &mut renewed, watch) {
                    Pass::Moved => moved = true,
                    Pass::Idle => {}
                    Pass::Paused(pause) => until = Some(earlier(until, pause)),
                    Pass::Errand(errand) => return Advance::Errand(at, errand),
                }
                at += 1;
            }
            self.report_changes(false, watch);
            if !moved && let Ok(patience) = self.give_up_silent_lanes(&mut renewed) {
                let until = [patience, self.next_check(), self.next_opening()]
                    .into_iter()
                    .flatten()
                    .fold(until, |until, other| Some(earlier(until, other)));
                return Advance::Done(until);
            }
        }
    }

    fn advance_lane(&mut self, at: usize, now: Instant, renewed: &mut Vec<usize>, watch: &mut dyn Watch) -> Pass {
        let pass = if self.lanes.get(at).is_idle() {
            if matches!(self.links[at], Link::Opening(_)) {
                self.links[at] = Link::Closed;
            }
            Pass::Idle
        } else {
            self.drive_lane(at, Goal::Empty, now, renewed, watch)
        };
        // The caller watches this socket nevertheless, and a server that closes it would make it readable forever.
        if matches!(pass, Pass::Paused(_)) || (matches!(pass, Pass::Idle) && !self.lanes.get(at).awaits_answer()) {
            match self.receive(at) {
                Ok(false) => {}
                Ok(true) => return Pass::Moved,
                Err(broken) => {
                    self.disconnect_or_renew(at, &broken, renewed);
                    return Pass::Moved;
                }
            }
        }
        pass
    }

    /// Gives up on a server that has been silent for too long and returns `Err`, because something moved. Otherwise returns when
    /// the next server will have been silent for too long.
    fn give_up_silent_lanes(&mut self, renewed: &mut Vec<usize>) -> Result<Option<Instant>, ()> {
        let now = Instant::now();
        let mut until = None;
        for at in 0..self.links.len() {
            let connection = self.lanes.get(at);
            if !connection.awaits_answer() {
                continue;
            }
            let Some((silent, patience)) = connection.silence(None, now) else { continue };
            if silent >= patience {
                self.give_up_silent(at, silent, renewed);
                return Err(());
            }
            until = Some(earlier(until, now + patience.saturating_sub(silent)));
        }
        Ok(until)
    }

    /// When to ask the sentinels again. They are only asked while messages wait.
    fn next_check(&self) -> Option<Instant> {
        if self.lanes.get(0).awaits_answer() { self.servers.due() } else { None }
    }

    /// When to continue with a socket that is being opened.
    fn next_opening(&self) -> Option<Instant> {
        let wakes = |link: &Link| if let Link::Opening(opening) = link { Some(opening.wakes()) } else { None };
        self.links.iter().filter_map(wakes).min()
    }

    /// The sockets that are open and those that are being opened, prepared for a wait by the caller. Also returns whether
    /// received bytes of one are already waiting here, in which case the caller must not wait.
    pub(crate) fn interests(&mut self) -> (Vec<Interest>, bool) {
        let Self { links, lanes, numbers, .. } = self;
        let (mut interests, mut has_bytes) = (Vec::with_capacity(links.len()), false);
        for (at, (link, number)) in links.iter_mut().zip(numbers).enumerate() {
            let transport = match link {
                Link::Open(transport) => transport,
                Link::Opening(opening) => {
                    interests.extend(opening.interest());
                    continue;
                }
                Link::Closed | Link::Down(_) => continue,
            };
            has_bytes |= transport.prepare(1);
            let writable = lanes.get_mut(at).has_unsent() || transport.wants_write();
            interests.push(Interest { connection: *number, fd: transport.descriptor(), writable });
        }
        (interests, has_bytes)
    }
}

fn earlier(until: Option<Instant>, other: Instant) -> Instant {
    until.map_or(other, |until| until.min(other))
}
