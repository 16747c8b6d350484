//! The lines of a keeper as members of the connections that they share.

use std::time::Instant;

use super::clock;
use super::kept::Kept;
use super::line::Line;
use crate::error::{Error, Fault, Result, code};
use crate::net::{Opening, Watch};
use crate::reading::{Asked, Attempted, Buffers, Channel, Exchange, Link, Members, Trouble};

/// The lines as members of the connections that they share, for one pass.
pub(super) struct KeeperMembers<'a, K> {
    pub(super) lines: &'a mut [Line<K>],
    /// See `Turn::due`.
    pub(super) due: &'a [bool],
}

impl<K: Kept> Members<()> for KeeperMembers<'_, K> {
    fn link(&mut self, at: usize) -> &mut Link {
        &mut self.lines[at].link
    }

    fn session(&self, at: usize) -> &dyn Exchange {
        &self.lines[at].session
    }

    fn is_active(&self, at: usize) -> bool {
        self.due.get(at).is_some_and(|due| *due)
    }

    fn request(&mut self, at: usize, _: bool, _: Option<Instant>, buffers: &mut Buffers) -> Asked {
        let session = &mut self.lines[at].session;
        session.request(clock::now(), buffers);
        if session.awaits_reply() { Asked::Yes } else { Asked::No }
    }

    fn open(&mut self, at: usize, _: &[usize]) -> Opening<Attempted<()>> {
        self.lines[at].link.open(())
    }

    fn opened(&mut self, at: usize, attempted: Attempted<()>, watch: &mut dyn Watch) -> Result<Option<Channel>> {
        let Line { link, session } = &mut self.lines[at];
        if let Some(fault) = attempted.fault() {
            session.faulted(fault, clock::now());
        }
        match link.opened(attempted, watch) {
            Ok(opened) => Ok(opened.map(|(channel, ())| channel)),
            Err(Error::Interrupted) => Err(Error::Interrupted),
            Err(error) => link.schedule_retry(Fault::new(code::CONFIG, error.to_string()), watch).map(|()| None),
        }
    }

    fn step(&mut self, at: usize, channel: &mut Channel, watch: &mut dyn Watch) -> std::result::Result<bool, Trouble> {
        let line = &mut self.lines[at];
        line.link.step(channel, &mut line.session, watch).map_err(Trouble::Fault)
    }

    fn answered(&mut self, _: usize) -> Option<bool> {
        None
    }

    fn disconnected(&mut self, at: usize) {
        self.lines[at].session.disconnected();
    }
}
