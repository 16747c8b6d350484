//! A session of a member as `keeper/keeping.rs` moves it, with a connection to the model of a server in place of a socket.

use std::time::Duration;

use super::super::chance::Chance;
use super::super::wire::Wire;
use super::clock::Clock;
use super::facts::Wrong;
use super::lie::Lie;
use super::world::{Client, Late, World};
use crate::error::{Fault, code};
use crate::keeper::{Doze, Kept as _};
use crate::leases::LeaseSession;
use crate::reading::{Buffers, Exchange as _};

/// The pause before it connects again.
const PAUSE: Duration = Duration::from_millis(50);

/// How a connection behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weather {
    Calm,
    /// Bytes arrive in pieces, and it breaks.
    Rough,
}

#[derive(Debug)]
pub struct Line {
    pub node: usize,
    session: LeaseSession,
    buffers: Buffers,
    doze: Doze,
    /// Of each reply it says whether it is a refusal.
    wire: Wire<Client, bool>,
    /// When it connects again.
    connects_at: Duration,
    /// Whether the connection broke while it was waiting for replies.
    pub has_lost_replies: bool,
}

impl Line {
    pub fn new(node: usize, session: LeaseSession, client: Client) -> Self {
        Self {
            node,
            session,
            buffers: Buffers::default(),
            doze: Doze::new(),
            wire: Wire::new(false, client),
            connects_at: Duration::ZERO,
            has_lost_replies: false,
        }
    }

    pub fn disconnect(&mut self, world: &mut World) {
        if !self.wire.is_open {
            return;
        }
        self.has_lost_replies |= self.session.awaits_reply();
        self.session.disconnected();
        self.buffers = Buffers::default();
        let client = self.wire.server.clone();
        let ended = std::mem::replace(&mut self.wire, Wire::new(false, client.clone()));
        let late = |words| Late { node: self.node, client: client.clone(), words };
        world.lates.extend(ended.into_commands().into_iter().map(late));
    }

    fn connect(&mut self, now: Duration, world: &World, chance: &mut Chance) {
        if world.nodes[self.node].is_away {
            self.session.faulted(&Fault::new(code::CONNECT, "connection refused"), now);
            self.connects_at = world.now + *chance.pick(&[PAUSE, PAUSE.max(world.lease / 12)]);
        } else {
            self.wire.is_open = true;
        }
    }

    /// The time until it does something, on the clock of the world. `None`: it waits for replies. `clock`: that of its process.
    pub fn left(&mut self, clock: Clock, world: &World) -> Option<Duration> {
        if self.session.awaits_reply() {
            return None;
        }
        let (left, _) = self.session.left(&self.doze, clock.at(world.now));
        Some(clock.takes(left).max(self.connects_at.saturating_sub(world.now)))
    }

    /// One pass. Returns whether anything moved.
    pub fn keep(
        &mut self,
        now: Duration,
        weather: Weather,
        world: &mut World,
        chance: &mut Chance,
    ) -> Result<bool, Wrong> {
        let mut has_moved = false;
        if !self.session.awaits_reply() {
            let (left, _) = self.session.left(&self.doze, now);
            let is_due = left.is_zero() || world.liar.lies(Lie::LeftNothing);
            if !is_due || self.connects_at > world.now {
                return Ok(false);
            }
            if !self.wire.is_open {
                self.connect(now, world, chance);
                return Ok(self.wire.is_open);
            }
            self.session.request(now, &mut self.buffers);
            if !self.session.awaits_reply() {
                return Err(format!("p{} has something to send, and sends nothing", self.wire.server.process));
            }
            has_moved = true;
        }
        has_moved |= self.exchange(weather, world, chance)?;
        if weather == Weather::Rough && chance.one_in(12) {
            self.disconnect(world);
        }
        Ok(has_moved)
    }

    /// Lets the server answer, and reads the replies. Returns whether any bytes moved.
    fn exchange(&mut self, weather: Weather, world: &mut World, chance: &mut Chance) -> Result<bool, Wrong> {
        let is_rough = weather == Weather::Rough;
        let mut has_moved = self.send(is_rough, chance);
        // A server may answer nothing for a while.
        let answers = !is_rough || !chance.one_in(3);
        while answers && (!is_rough || chance.below(4) > 0) {
            let answer = |client: &mut Client, words: &[Vec<u8>]| {
                let reply = world.execute(self.node, client, words)?;
                let is_refusal = reply[0] == b'-';
                Some((reply, is_refusal))
            };
            if !self.wire.is_open || !self.wire.answer(answer) {
                break;
            }
            has_moved = true;
        }
        while self.wire.has_replies() && (!is_rough || chance.below(4) > 0) {
            let piece = if is_rough { self.wire.piece(chance) } else { usize::MAX };
            let (count, arrived) = self.wire.deliver(self.buffers.space(), piece);
            has_moved = true;
            if let Err(fault) = self.session.received(count, &mut self.buffers) {
                if !arrived.contains(&true) {
                    return Err(format!("p{}: {}: {}", self.wire.server.process, fault.code, fault.message));
                }
                self.connects_at = world.now + PAUSE;
                self.disconnect(world);
                break;
            }
        }
        Ok(has_moved)
    }

    fn send(&mut self, is_rough: bool, chance: &mut Chance) -> bool {
        let unsent = self.buffers.unsent().to_vec();
        let is_cut = is_rough && chance.one_in(3);
        let count = if is_cut { chance.below(unsent.len() + 1) } else { unsent.len() };
        self.buffers.sent(count);
        self.wire.send(&unsent[..count]);
        count > 0
    }
}
