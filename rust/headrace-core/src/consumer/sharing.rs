//! The lines of a consumer as members of the connections that they share.

use std::time::Instant;

use super::clock;
use super::line::{Line, Namesakes, Reads};
use super::turns::Turns;
use crate::error::{Error, Fault};
use crate::net::Watch;
use crate::reading::{Asked, Exchange, Link, Members, Trouble};

/// The goal of the passes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Aim<'a> {
    /// Each line has created its groups.
    Begun,
    /// The next batch, before this deadline.
    Batch(Option<Instant>),
    /// The caller's decisions on the entries of these lines are sent.
    Work(&'a [bool]),
}

/// All lines, for one or more passes.
pub(super) struct Sharing<'a> {
    pub(super) lines: &'a mut [Line],
    pub(super) turns: &'a mut Turns,
    pub(super) namesakes: &'a mut Namesakes,
    pub(super) aim: Aim<'a>,
}

impl Members for Sharing<'_> {
    fn link(&mut self, at: usize) -> &mut Link {
        self.lines[at].link()
    }

    fn pass_on(&mut self, from: usize, to: usize) {
        if let Ok([from, to]) = self.lines.get_disjoint_mut([from, to]) {
            from.pass_on(to);
        }
    }

    fn is_active(&self, at: usize) -> bool {
        match self.aim {
            Aim::Begun => !self.lines[at].has_begun(),
            Aim::Batch(_) => true,
            Aim::Work(wanted) => wanted[at],
        }
    }

    fn is_busy(&self, at: usize) -> bool {
        let session = &self.lines[at].session;
        session.awaits_reply() || session.is_suspended()
    }

    fn blocks(&self, at: usize) -> bool {
        self.lines[at].session.blocks()
    }

    fn takes_turns(&self) -> bool {
        matches!(self.aim, Aim::Batch(_))
    }

    fn request(&mut self, at: usize, is_shared: bool, rests: Option<Instant>) -> Asked {
        // An entry that must be alone is requested only while no other line has requested one.
        let may_isolate = self.lines.iter().enumerate().all(|(other, line)| other == at || !line.session.isolates());
        let line = &mut self.lines[at];
        if !line.has_begun() {
            return Asked::Yes;
        }
        let (reads, deadline) = match self.aim {
            Aim::Batch(deadline) if rests.is_none() => (self.turns.reads(at, Instant::now()), deadline),
            _ => (Reads::No, None),
        };
        let reads = if is_shared && reads == Reads::Waits { Reads::Now } else { reads };
        line.session.let_isolate(may_isolate);
        line.session.share(is_shared);
        let until = line.request(reads, deadline).or(rests);
        if self.is_busy(at) { Asked::Yes } else { until.map_or(Asked::No, Asked::At) }
    }

    fn request_ahead(&mut self, at: usize, is_shared: bool) -> bool {
        let line = &mut self.lines[at];
        line.session.now = clock::now();
        if !line.has_begun() || !line.session.may_read_ahead() {
            return false;
        }
        line.session.share(is_shared);
        line.session.request(None);
        self.is_busy(at)
    }

    fn connect(&mut self, at: usize, members: &[usize], watch: &mut dyn Watch) -> Result<(), Error> {
        Line::open_for(self.lines, at, members, watch)
    }

    fn step(&mut self, at: usize, watch: &mut dyn Watch) -> Result<bool, Trouble> {
        let line = &mut self.lines[at];
        if !line.has_begun() {
            return line.begin(self.namesakes, watch).map(|()| true);
        }
        line.session.now = clock::now();
        line.try_step(watch).map_err(Trouble::Fault)
    }

    fn send(&mut self, at: usize) {
        self.lines[at].send();
    }

    fn answered(&mut self, at: usize) -> Option<bool> {
        let line = &self.lines[at];
        if !line.reads() {
            return None;
        }
        let has_more = line.session.has_more();
        if !has_more {
            self.turns.had_nothing(at, Instant::now());
        }
        Some(has_more)
    }

    fn lose(&mut self, at: usize, fault: Fault, watch: &mut dyn Watch) -> Result<(), Error> {
        self.lines[at].lose(fault, watch)
    }

    fn close(&mut self, at: usize) {
        self.lines[at].close();
    }

    fn disconnected(&mut self, at: usize) {
        self.lines[at].disconnected();
    }
}
