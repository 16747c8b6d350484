//! One reading connection of a consumer, and the session of its streams.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::client_name::ClientName;
use super::clock;
use super::ledger::Ledger;
use super::session::Session;
use super::setup::{Create, Identity, LOOKS_FOR, Setup};
use super::shared::lock;
use super::work::Names;
use crate::endpoint::Endpoint;
use crate::error::{Fault, Result};
use crate::net::{Transport, Wanted, Watch};
use crate::reading::{Allowed, Exchange, Link, Pass, Trouble, wait_for_more};

/// What each connection of a consumer does first; the same for all.
#[derive(Debug)]
pub(super) struct Opening {
    pub(super) names: Names,
    pub(super) client_name: Arc<ClientName>,
    /// Whether entries are acknowledged, and whether those of other consumers are claimed.
    pub(super) needs: (bool, bool),
    /// Where new groups begin. Only the first connection of a line creates them.
    pub(super) create: Option<Create>,
    /// Whether streams may move to another node, and then appear deleted on this one.
    pub(super) is_of_cluster: bool,
}

impl Opening {
    /// Does what has to be done once for the streams of a line.
    fn begin(&self, setup: &mut Setup<'_>, keys: &[Arc<[u8]>]) -> std::result::Result<(), Trouble> {
        let (acks, claims) = self.needs;
        setup.check_rights(keys, &self.names, acks, claims)?;
        match &self.create {
            Some(create) => setup.create(keys, &self.names, create),
            None => setup.expect_groups(keys, &self.names),
        }
    }
}

/// Whether another consumer has the name of this one, according to the servers asked so far.
#[derive(Debug, Default)]
pub(super) struct Namesakes {
    pub(super) is_found: bool,
    /// The servers asked so far, by run ID: each lists the connections for all of its streams.
    asked: BTreeSet<String>,
}

/// Whether a line should ask for entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reads {
    No,
    /// For entries that are there already.
    Now,
    /// The server may wait for new entries.
    Waits,
}

#[derive(Debug)]
pub(super) struct Line {
    pub(super) session: Session,
    link: Link,
    ledger: Arc<Mutex<Ledger>>,
    keys: Vec<Arc<[u8]>>,
    opening: Arc<Opening>,
    has_begun: bool,
    /// Its current connection, or the previous one. `None`: no earlier connection has an unanswered request.
    identity: Option<Identity>,
    /// Whether a lost connection may still be open at the server, which can then execute its last request at any time.
    pub(super) may_come_late: bool,
    /// The time up to which entries that arrived wait for more, while other lines continue.
    lingers: Option<Instant>,
    reads: bool,
}

impl Line {
    pub(super) fn new(session: Session, link: Link, ledger: Arc<Mutex<Ledger>>, opening: Arc<Opening>) -> Self {
        let keys = lock(&ledger).keys().to_vec();
        Self {
            session,
            link,
            ledger,
            keys,
            opening,
            has_begun: false,
            identity: None,
            may_come_late: false,
            lingers: None,
            reads: false,
        }
    }

    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.ledger)
    }

    /// The endpoint as its server describes it.
    pub(super) fn decided(&mut self, watch: &mut dyn Watch) -> Result<Endpoint> {
        self.link.decided(watch).cloned()
    }

    pub(super) fn is_open(&self) -> bool {
        self.link.is_open()
    }

    /// Whether replies are on their way.
    pub(super) fn awaits_reply(&self) -> bool {
        self.link.is_open() && self.session.awaits_reply()
    }

    /// Whether the server has all decisions of the caller, and nothing is left to give back.
    pub(super) fn is_settled(&self) -> bool {
        self.ledger().is_settled() && !self.session.looks_back()
    }

    /// Asks the watch, unless it was asked recently.
    pub(super) fn ask(&mut self, watch: &mut dyn Watch) -> Result<()> {
        self.link.ask(watch)
    }

    /// Connects. If it is too early, waits instead, at most for `most`.
    pub(super) fn open_in_time(
        &mut self,
        most: Duration,
        namesakes: &mut Namesakes,
        watch: &mut dyn Watch,
    ) -> Result<()> {
        if self.link.may_connect(most, watch)? { self.open(namesakes, watch) } else { Ok(()) }
    }

    /// When to connect, if connecting is put off; `None`: immediately.
    pub(super) fn next_try(&mut self) -> Option<Instant> {
        self.link.next_try()
    }

    /// Connects, and creates the groups.
    pub(super) fn open(&mut self, namesakes: &mut Namesakes, watch: &mut dyn Watch) -> Result<()> {
        self.session.now = clock::now();
        let Self { session, link, ledger, keys, opening, has_begun, identity, may_come_late, lingers, .. } = self;
        *lingers = None;
        link.connect(session, watch, |transport, allowed, watch| {
            let Allowed { silence, until } = allowed;
            // The first connection has more to ask the more streams there are.
            let mut setup = Setup { transport, silence, until: has_begun.then_some(until), watch };
            let new = setup.identity()?;
            let has_ended = identity.as_ref().map_or(Ok(true), |old| setup.end(old, &new))?;
            *may_come_late |= *has_begun && !has_ended;
            *identity = Some(new.clone());
            if !*has_begun {
                opening.begin(&mut setup, keys)?;
                namesakes.glance(&mut setup, &new, &opening.client_name, ledger)?;
            }
            setup.name(&opening.client_name)?;
            *has_begun = true;
            Ok(())
        })
    }

    /// Connects line `at` for all `members`, which share the connection.
    pub(super) fn open_for(lines: &mut [Self], at: usize, members: &[usize], watch: &mut dyn Watch) -> Result<()> {
        let left_behind = |member: &usize| lines[*member].identity.clone().map(|identity| (*member, identity));
        let left_behind: Vec<(usize, Identity)> = members.iter().filter_map(left_behind).collect();
        let Self { session, link, opening, .. } = &mut lines[at];
        session.now = clock::now();
        let mut opened = None;
        link.connect(session, watch, |transport, allowed, watch| {
            let Allowed { silence, until } = allowed;
            let mut setup = Setup { transport, silence, until: Some(until), watch };
            let new = setup.identity()?;
            let mut unended = Vec::new();
            for (member, old) in &left_behind {
                if !setup.end(old, &new)? {
                    unended.push(*member);
                }
            }
            setup.name(&opening.client_name)?;
            opened = Some((new, unended));
            Ok(())
        })?;
        if let Some((new, unended)) = opened {
            for member in members {
                lines[*member].identity = None;
            }
            for member in unended {
                lines[member].may_come_late = true;
            }
            lines[at].identity = Some(new);
        }
        Ok(())
    }

    /// Gives the connection to another line. No reply may be due on it.
    pub(super) fn pass_on(&mut self, other: &mut Self) {
        self.link.pass_on(&mut other.link);
        let new = self.identity.take();
        if let (Some(old), Some(new)) = (&other.identity, &new) {
            other.may_come_late |= !old.is_of_another_server(new);
        }
        other.identity = new;
    }

    pub(super) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Creates the groups, over a connection that other lines use too.
    pub(super) fn begin(
        &mut self,
        namesakes: &mut Namesakes,
        watch: &mut dyn Watch,
    ) -> std::result::Result<(), Trouble> {
        let Self { link, ledger, keys, opening, identity, .. } = self;
        let Some(identity) = identity else { return Ok(()) };
        let begun = link.consult(watch, |transport, silence, watch| {
            let mut setup = Setup { transport, silence, until: None, watch };
            opening.begin(&mut setup, keys)?;
            namesakes.glance(&mut setup, identity, &opening.client_name, ledger)
        });
        self.has_begun = matches!(begun, Some(Ok(())));
        begun.unwrap_or(Ok(()))
    }

    /// One pass over the only line: connects, asks, sends, receives or waits.
    pub(super) fn run(
        &mut self,
        deadline: Option<Instant>,
        namesakes: &mut Namesakes,
        watch: &mut dyn Watch,
    ) -> Result<()> {
        self.link.ask(watch)?;
        if !self.link.is_open() {
            return self.open_in_time(left(deadline), namesakes, watch);
        }
        let pause = self.session.pause();
        if !pause.is_zero() {
            wait_for_more(pause.min(left(deadline)), watch)?;
            self.session.paused();
        }
        self.session.now = clock::now();
        self.session.request(Some(left(deadline)));
        if !self.step(watch)? {
            self.link.wait(&mut self.session, left(deadline), watch)?;
        }
        Ok(())
    }

    /// Asks for entries, if `reads` says so, and moves bytes, without waiting. The line must be connected.
    pub(super) fn pass(&mut self, reads: Reads, deadline: Option<Instant>, watch: &mut dyn Watch) -> Result<Pass> {
        let until = self.request(reads, deadline);
        let has_moved = self.step(watch)?;
        Ok(if has_moved { Pass::Moved } else { until.map_or(Pass::Idle, Pass::Paused) })
    }

    /// Sends the caller's decisions, and asks for entries if `reads` says so. Returns the time up to which entries that arrived
    /// wait for more.
    pub(super) fn request(&mut self, reads: Reads, deadline: Option<Instant>) -> Option<Instant> {
        let now = Instant::now();
        let pause = self.session.pause();
        let until = if pause.is_zero() { now } else { *self.lingers.get_or_insert(now + pause.min(left(deadline))) };
        self.session.now = clock::now();
        self.reads = reads != Reads::No && now >= until;
        if !self.reads {
            self.session.request_work();
            return Some(until).filter(|_| reads != Reads::No);
        }
        self.lingers = None;
        if !pause.is_zero() {
            self.session.paused();
        }
        self.session.request(Some(if reads == Reads::Waits { left(deadline) } else { Duration::ZERO }));
        None
    }

    /// Whether the last request was one for entries.
    pub(super) fn reads(&self) -> bool {
        self.reads
    }

    /// Receives what has arrived, and sends what the socket accepts. Returns whether any bytes moved.
    pub(super) fn step(&mut self, watch: &mut dyn Watch) -> Result<bool> {
        match self.try_step(watch) {
            Ok(moved) => Ok(moved),
            Err(fault) => self.lose(fault, watch).map(|()| true),
        }
    }

    /// The same, but returns a fault, which the caller passes to [`lose`](Self::lose).
    pub(super) fn try_step(&mut self, watch: &mut dyn Watch) -> std::result::Result<bool, Fault> {
        let stepped = self.link.step(&mut self.session, watch);
        self.session.looked();
        stepped
    }

    /// Gives up the connection. Its requests are repeated on the next one, or the caller gets the error.
    pub(super) fn lose(&mut self, fault: Fault, watch: &mut dyn Watch) -> Result<()> {
        if self.session.blocks() && self.opening.is_of_cluster && fault.code == "ASK" {
            // To a client that waits for the entries of a stream that moves, the server names the other node, possibly before the
            // stream has arrived there. The next command shows whether it has.
            self.link.close(&mut self.session, false);
            return Ok(());
        }
        self.link.lose(&mut self.session, fault, watch)
    }

    /// The link, for lines that share connections.
    pub(super) fn link(&mut self) -> &mut Link {
        &mut self.link
    }

    /// Sends what the socket accepts. A fault shows again in the next call.
    pub(super) fn send(&mut self) {
        let _ = self.link.send(&mut self.session);
    }

    /// Ends the session's use of a shared connection that was lost.
    pub(super) fn disconnected(&mut self) {
        self.session.now = clock::now();
        self.session.disconnected();
    }

    /// Requests the next page, so that the server prepares it while the caller works. A fault shows again in the next call.
    pub(super) fn read_ahead(&mut self) {
        self.session.request(None);
        self.send();
    }

    /// How long the server may stay silent. `None`: no reply is due. A connection that was silent for too long is given up.
    pub(super) fn patience(&mut self, now: Instant, watch: &mut dyn Watch) -> Result<Option<Duration>> {
        match self.link.patience(&self.session, now) {
            None => Ok(None),
            Some(Ok(patience)) => Ok(Some(patience)),
            Some(Err(fault)) => self.link.lose(&mut self.session, fault, watch).map(|()| Some(Duration::ZERO)),
        }
    }

    /// The socket, and the events to wait for.
    pub(super) fn socket(&mut self) -> Option<(&mut Transport, Wanted)> {
        self.link.socket(&self.session)
    }

    /// Whether another process has this consumer's name now: what is pending under the name may be that process's work. If
    /// `deadline` comes first, returns true to be safe.
    pub(super) fn finds_namesake(
        &mut self,
        namesakes: &mut Namesakes,
        deadline: Option<Instant>,
        watch: &mut dyn Watch,
    ) -> Result<bool> {
        loop {
            self.drain(deadline, watch)?;
            let left = left(deadline);
            if left.is_zero() {
                return Ok(true);
            }
            match self.look_for_namesake(namesakes, left, watch)? {
                Some(is_found) => return Ok(is_found),
                None if self.link.is_open() => {}
                None => self.open_in_time(left, &mut Namesakes::default(), watch)?,
            }
        }
    }

    /// The same over the current connection, within the time `left`. `None`: there is no connection.
    pub(super) fn look_for_namesake(
        &mut self,
        namesakes: &mut Namesakes,
        left: Duration,
        watch: &mut dyn Watch,
    ) -> Result<Option<bool>> {
        let Self { link, identity: Some(identity), opening, .. } = self else { return Ok(None) };
        let found = link.consult(watch, |transport, silence, watch| {
            let mut setup = Setup { transport, silence, until: None, watch };
            namesakes.look(&mut setup, identity, &opening.client_name, left.min(LOOKS_FOR))
        });
        match found {
            Some(Ok(())) => Ok(Some(namesakes.is_found)),
            Some(Err(Trouble::Error(error))) => Err(error),
            Some(Err(Trouble::Fault(fault))) => self.link.lose(&mut self.session, fault, watch).map(|()| None),
            None => Ok(None),
        }
    }

    /// Reads the replies that are on their way, until `deadline`.
    fn drain(&mut self, deadline: Option<Instant>, watch: &mut dyn Watch) -> Result<()> {
        while self.awaits_reply() && !left(deadline).is_zero() {
            self.session.now = clock::now();
            if !self.step(watch)? {
                self.link.wait(&mut self.session, left(deadline), watch)?;
            }
        }
        Ok(())
    }

    /// Ends the connection.
    pub(super) fn close(&mut self) {
        self.session.now = clock::now();
        self.link.close(&mut self.session, false);
    }

    /// The connection belongs to the process that this one was forked from.
    pub(super) fn forget(&mut self) {
        self.link.forget();
    }
}

impl Namesakes {
    /// Asks a server once, unless it was asked before. The first time that a namesake is listed, the ledger looks again later.
    fn glance(
        &mut self,
        setup: &mut Setup<'_>,
        identity: &Identity,
        name: &Arc<ClientName>,
        ledger: &Mutex<Ledger>,
    ) -> std::result::Result<(), Trouble> {
        let was_found = self.is_found;
        self.look(setup, identity, name, Duration::ZERO)?;
        if self.is_found && !was_found {
            lock(ledger).look_again_at(clock::now() + LOOKS_FOR, Arc::clone(name));
        }
        Ok(())
    }

    /// Watches a server for up to `time`, unless it was asked before.
    fn look(
        &mut self,
        setup: &mut Setup<'_>,
        identity: &Identity,
        name: &ClientName,
        time: Duration,
    ) -> std::result::Result<(), Trouble> {
        let is_asked = identity.run_id().is_some_and(|run_id| self.asked.contains(run_id));
        if !self.is_found && !is_asked {
            self.is_found = setup.finds_namesake(name, time)?;
            self.asked.extend(identity.run_id().map(str::to_owned));
        }
        Ok(())
    }
}

/// The time until the deadline.
pub(super) fn left(deadline: Option<Instant>) -> Duration {
    deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()))
}
