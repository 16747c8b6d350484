//! The sessions of a reader as members of the connections that they share.

use std::time::{Duration, Instant};

use super::line::{Line, left};
use super::sessions::Sessions;
use crate::error::Error;
use crate::net::{Opening, Watch};
use crate::reading::{Asked, Attempted, Buffers, Channel, Exchange, Link, Members, Trouble};

/// All sessions and their sockets, for one or more passes.
pub(super) struct ReaderMembers<'a> {
    lines: &'a mut [Line],
    sessions: &'a mut Sessions,
    deadline: Option<Instant>,
    /// Whether only sessions that have not begun yet take part.
    begins: bool,
}

impl<'a> ReaderMembers<'a> {
    pub(super) fn new(lines: &'a mut [Line], sessions: &'a mut Sessions, deadline: Option<Instant>) -> Self {
        Self { begins: !sessions.has_begun(), lines, sessions, deadline }
    }

    /// Lets a session write its next request. Returns whether it did.
    fn ask(&mut self, at: usize, is_shared: bool, waits: Option<Duration>, buffers: &mut Buffers) -> bool {
        self.sessions.with(at, |session| {
            session.share(is_shared);
            session.request(waits, buffers);
            session.awaits_reply()
        })
    }
}

impl Members<()> for ReaderMembers<'_> {
    fn link(&mut self, at: usize) -> &mut Link {
        &mut self.lines[at].link
    }

    fn session(&self, at: usize) -> &dyn Exchange {
        self.sessions.get(at)
    }

    fn is_active(&self, at: usize) -> bool {
        self.sessions.is_active(at) && !(self.begins && self.sessions.get(at).has_begun())
    }

    fn is_over(&self, at: usize) -> bool {
        self.sessions.is_over(at)
    }

    fn waits(&self, at: usize) -> bool {
        self.sessions.is_active(at) && self.sessions.get(at).awaits_reply()
    }

    fn request(&mut self, at: usize, is_shared: bool, rests: Option<Instant>, buffers: &mut Buffers) -> Asked {
        let put_off = rests.or_else(|| self.lines[at].lingers(at, self.sessions, self.deadline));
        if let Some(until) = put_off {
            return Asked::At(until);
        }
        let waits = if is_shared { Duration::ZERO } else { left(self.deadline) };
        if self.ask(at, is_shared, Some(waits), buffers) { Asked::Yes } else { Asked::No }
    }

    fn want(&mut self, at: usize, buffers: &mut Buffers) {
        let waits = left(self.deadline);
        self.sessions.with(at, |session| session.request(Some(waits), buffers));
    }

    fn request_ahead(&mut self, at: usize, is_shared: bool, buffers: &mut Buffers) -> bool {
        !self.sessions.get(at).is_ready() && self.ask(at, is_shared, None, buffers)
    }

    fn open(&mut self, at: usize, _: &[usize]) -> Opening<Attempted<()>> {
        let Line { link, lingers } = &mut self.lines[at];
        *lingers = None;
        link.open(())
    }

    fn opened(&mut self, at: usize, attempted: Attempted<()>, watch: &mut dyn Watch) -> Result<Option<Channel>, Error> {
        let opened = self.lines[at].link.opened(attempted, watch)?;
        Ok(opened.map(|(channel, ())| channel))
    }

    fn step(&mut self, at: usize, channel: &mut Channel, watch: &mut dyn Watch) -> Result<bool, Trouble> {
        let link = &mut self.lines[at].link;
        self.sessions.with(at, |session| link.step(channel, session, watch)).map_err(Trouble::Fault)
    }

    fn answered(&mut self, at: usize) -> Option<bool> {
        Some(self.sessions.get(at).has_more())
    }

    fn disconnected(&mut self, at: usize) {
        self.sessions.with(at, |session| session.disconnected());
    }
}
