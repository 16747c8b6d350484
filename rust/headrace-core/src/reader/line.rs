//! The socket of one session of a reader.

use std::time::{Duration, Instant};

use super::sessions::Sessions;
use crate::error::Result;
use crate::net::Watch;
use crate::reading::{Link, Pass, wait_for_more};

/// The socket of a session.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) link: Link,
    /// The time up to which entries that arrived wait for more, while other sessions continue.
    lingers: Option<Instant>,
    /// When to connect again: after an attempt, the other sessions get as much time as the attempt took.
    rests: Option<Instant>,
}

impl Line {
    pub(super) fn new(link: Link) -> Self {
        Self { link, lingers: None, rests: None }
    }

    /// One pass over the only session.
    pub(super) fn run(
        &mut self,
        sessions: &mut Sessions,
        deadline: Option<Instant>,
        watch: &mut dyn Watch,
    ) -> Result<()> {
        let link = &mut self.link;
        link.ask(watch)?;
        sessions.with(0, |session| {
            if !link.is_open() {
                if link.may_connect(left(deadline), watch)? {
                    link.connect(session, watch, |_, _, _| Ok(()))?;
                }
                return Ok(());
            }
            let pause = session.pause();
            if !pause.is_zero() {
                wait_for_more(pause.min(left(deadline)), watch)?;
                session.paused();
            }
            session.request(Some(left(deadline)));
            match link.step(session, watch) {
                Ok(true) => Ok(()),
                Ok(false) => link.wait(session, left(deadline), watch),
                Err(fault) => link.lose(session, fault, watch),
            }
        })
    }

    /// Does what is possible for one of several sessions without waiting, except for connecting.
    pub(super) fn pass(
        &mut self,
        at: usize,
        sessions: &mut Sessions,
        deadline: Option<Instant>,
        watch: &mut dyn Watch,
    ) -> Result<Pass> {
        let Self { link, lingers, rests } = self;
        let now = Instant::now();
        if !link.is_open() {
            *lingers = None;
            if let Some(next) = link.next_try().max(*rests).filter(|next| *next > now) {
                return Ok(Pass::Paused(next));
            }
            let connected = sessions.with(at, |session| link.connect(session, watch, |_, _, _| Ok(())));
            *rests = (!link.is_open()).then(|| Instant::now() + now.elapsed());
            return connected.map(|()| Pass::Moved);
        }
        if let Some(until) = self.lingers(at, sessions, deadline) {
            return Ok(Pass::Paused(until));
        }
        let link = &mut self.link;
        sessions.with(at, |session| {
            session.request(Some(left(deadline)));
            match link.step(session, watch) {
                Ok(true) => Ok(Pass::Moved),
                Ok(false) => Ok(Pass::Idle),
                Err(fault) => link.lose(session, fault, watch).map(|()| Pass::Moved),
            }
        })
    }

    /// The time up to which entries that arrived wait for more, while other sessions continue. `None`: they do not wait.
    pub(super) fn lingers(&mut self, at: usize, sessions: &mut Sessions, deadline: Option<Instant>) -> Option<Instant> {
        let pause = sessions.get(at).pause();
        if !pause.is_zero() {
            let now = Instant::now();
            let until = *self.lingers.get_or_insert(now + pause.min(left(deadline)));
            if now < until {
                return Some(until);
            }
            sessions.with(at, |session| session.paused());
        }
        self.lingers = None;
        None
    }
}

/// The time until the deadline.
pub(super) fn left(deadline: Option<Instant>) -> Duration {
    deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()))
}
