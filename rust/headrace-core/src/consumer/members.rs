//! The lines of a consumer as members of the connections that they share.

use std::time::Instant;

use super::line::{Greeted, Line, Namesakes, Reads};
use super::turns::Turns;
use crate::error::{Error, Fault};
use crate::keeper::clock;
use crate::net::{Opening, Watch};
use crate::reading::{Asked, Attempted, Buffers, Channel, Exchange, Link, Members, Trouble};

/// The goal of the passes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Goal<'a> {
    /// Each line has created its groups.
    Begun,
    /// The next batch, before this deadline.
    Batch(Option<Instant>),
    /// The caller's decisions on the entries of these lines are sent.
    Work(&'a [bool]),
}

/// All lines, for one or more passes.
pub(super) struct ConsumerMembers<'a> {
    pub(super) lines: &'a mut [Line],
    pub(super) turns: &'a mut Turns,
    pub(super) namesakes: &'a mut Namesakes,
    pub(super) goal: Goal<'a>,
}

impl Members<Greeted> for ConsumerMembers<'_> {
    fn link(&mut self, at: usize) -> &mut Link {
        &mut self.lines[at].link
    }

    fn session(&self, at: usize) -> &dyn Exchange {
        self.lines[at].exchange()
    }

    fn is_active(&self, at: usize) -> bool {
        match self.goal {
            Goal::Begun => !self.lines[at].has_begun(),
            Goal::Batch(_) => true,
            Goal::Work(wanted) => wanted[at],
        }
    }

    fn takes_turns(&self) -> bool {
        matches!(self.goal, Goal::Batch(_))
    }

    fn request(&mut self, at: usize, is_shared: bool, rests: Option<Instant>, buffers: &mut Buffers) -> Asked {
        // An entry that must be alone is requested only while no other line has requested one.
        let may_isolate = self.lines.iter().enumerate().all(|(other, line)| other == at || !line.session.isolates());
        let line = &mut self.lines[at];
        if !line.has_begun() {
            line.begin(self.namesakes, buffers);
            return if line.awaits_reply() { Asked::Yes } else { Asked::No };
        }
        let (reads, deadline) = match self.goal {
            Goal::Batch(deadline) if rests.is_none() => (self.turns.reads(at, Instant::now()), deadline),
            _ => (Reads::No, None),
        };
        let reads = if is_shared && reads == Reads::Waits { Reads::Now } else { reads };
        line.session.let_isolate(may_isolate);
        line.session.share(is_shared);
        let until = line.request(reads, deadline, buffers).or(rests);
        if line.awaits_reply() { Asked::Yes } else { until.map_or(Asked::No, Asked::At) }
    }

    fn want(&mut self, at: usize, buffers: &mut Buffers) {
        if let Goal::Batch(deadline) = self.goal {
            let line = &mut self.lines[at];
            if line.has_begun() {
                line.request(self.turns.reads(at, Instant::now()), deadline, buffers);
            }
        }
    }

    fn request_ahead(&mut self, at: usize, is_shared: bool, buffers: &mut Buffers) -> bool {
        let line = &mut self.lines[at];
        line.session.now = clock::now();
        if !line.has_begun() || (is_shared && !line.session.may_read_ahead()) {
            return false;
        }
        line.session.share(is_shared);
        line.session.request(None, buffers);
        line.awaits_reply()
    }

    fn open(&mut self, at: usize, members: &[usize]) -> Opening<Attempted<Greeted>> {
        Line::open_for(self.lines, at, members)
    }

    fn opened(
        &mut self,
        at: usize,
        attempted: Attempted<Greeted>,
        watch: &mut dyn Watch,
    ) -> Result<Option<Channel>, Error> {
        Line::opened(self.lines, at, attempted, watch)
    }

    fn hand_over(&mut self, from: usize, to: usize) {
        if let Ok([from, to]) = self.lines.get_disjoint_mut([from, to]) {
            from.hand_over(to);
        }
    }

    fn step(&mut self, at: usize, channel: &mut Channel, watch: &mut dyn Watch) -> Result<bool, Trouble> {
        self.lines[at].step(channel, self.namesakes, watch)
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

    fn disconnected(&mut self, at: usize) {
        self.lines[at].disconnected(self.namesakes);
    }
}
