//! The streams of a consumer that are read together: in a cluster, those of one slot.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::client_name::ClientName;
use super::clock;
use super::ledger::Ledger;
use super::session::Session;
use super::setup::{Create, Identity, LOOKS_FOR, Setup};
use super::shared::lock;
use super::sync::{Mutex, MutexGuard};
use super::work::Names;
use crate::endpoint::Endpoint;
use crate::error::{Fault, Result};
use crate::net::{Opening, Transport, Watch, block_on};
use crate::reading::{Attempted, Buffers, Channel, Exchange, Link, Prepare, Trouble};

/// What is done once for the streams of each line; the same for all.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) names: Names,
    pub(super) client_name: Arc<ClientName>,
    /// Whether entries are acknowledged, and whether those of other consumers are claimed.
    pub(super) needs: (bool, bool),
    /// Where new groups begin. Only the first connection of a line creates them.
    pub(super) create: Option<Create>,
    /// Whether streams may move to another node, and then appear deleted on this one.
    pub(super) is_of_cluster: bool,
}

impl Start {
    /// Does what has to be done once for the streams of a line.
    async fn run(&self, setup: &mut Setup<'_>, keys: &[Arc<[u8]>]) -> std::result::Result<(), Trouble> {
        let (acks, claims) = self.needs;
        setup.check_rights(keys, &self.names, acks, claims).await?;
        match &self.create {
            Some(create) => setup.create(keys, &self.names, create).await,
            None => setup.expect_groups(keys, &self.names).await,
        }
    }
}

/// What each connection of a consumer does first: it ends the previous connections, and names itself after the consumer.
struct Greeting {
    /// The previous connection of each line whose requests may still be executed.
    left_behind: Vec<(usize, Identity)>,
    client_name: Arc<ClientName>,
}

/// A new connection as its server knows it.
#[derive(Debug)]
pub(super) struct Greeted {
    identity: Identity,
    /// The lines whose previous connections were to be ended, and whether they have ended.
    ended: Vec<(usize, Identity, bool)>,
}

impl Prepare for Greeting {
    type Found = Greeted;

    async fn run(
        self,
        transport: &mut Transport,
        silence: Duration,
        until: Instant,
        watch: &mut dyn Watch,
    ) -> std::result::Result<Greeted, Trouble> {
        let mut setup = Setup { transport, silence, until: Some(until), watch };
        let identity = setup.identity().await?;
        let mut ended = Vec::new();
        for (line, old) in self.left_behind {
            let has_ended = setup.end(&old, &identity).await?;
            ended.push((line, old, has_ended));
        }
        setup.name(&self.client_name).await?;
        Ok(Greeted { identity, ended })
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
    pub(super) link: Link,
    ledger: Arc<Mutex<Ledger>>,
    keys: Vec<Arc<[u8]>>,
    start: Arc<Start>,
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
    pub(super) fn new(session: Session, link: Link, ledger: Arc<Mutex<Ledger>>, start: Arc<Start>) -> Self {
        let keys = lock(&ledger).keys().to_vec();
        Self {
            session,
            link,
            ledger,
            keys,
            start,
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

    /// Whether replies are on their way.
    pub(super) fn awaits_reply(&self) -> bool {
        self.session.awaits_reply()
    }

    /// Whether the server has all decisions of the caller, and nothing is left to give back.
    pub(super) fn is_settled(&self) -> bool {
        self.ledger().is_settled() && !self.session.looks_back()
    }

    /// Begins to connect line `at` for all `members`, which share the connection.
    pub(super) fn open_for(lines: &mut [Self], at: usize, members: &[usize]) -> Opening<Attempted<Greeted>> {
        let left_behind = |member: &usize| lines[*member].identity.clone().map(|identity| (*member, identity));
        let left_behind = members.iter().filter_map(left_behind).collect();
        let Self { session, link, start, lingers, .. } = &mut lines[at];
        *lingers = None;
        session.now = clock::now();
        link.open(Greeting { left_behind, client_name: Arc::clone(&start.client_name) })
    }

    /// The connection that line `at` has opened. `None`: this failed and must be repeated.
    pub(super) fn opened(
        lines: &mut [Self],
        at: usize,
        attempted: Attempted<Greeted>,
        watch: &mut dyn Watch,
    ) -> Result<Option<Channel>> {
        let Some((channel, Greeted { identity, ended })) = lines[at].link.opened(attempted, watch)? else {
            return Ok(None);
        };
        for (member, old, has_ended) in ended {
            let line = &mut lines[member];
            // Since then it may have got another connection.
            if line.identity.as_ref() == Some(&old) {
                line.identity = None;
                line.may_come_late |= !has_ended;
            }
        }
        lines[at].identity = Some(identity);
        Ok(Some(channel))
    }

    /// Notes that another line uses the connection now.
    pub(super) fn hand_over(&mut self, other: &mut Self) {
        let new = self.identity.take();
        if let (Some(old), Some(new)) = (&other.identity, &new) {
            other.may_come_late |= !old.is_of_another_server(new);
        }
        other.identity = new;
    }

    pub(super) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Checks the rights and creates the groups, over its connection.
    pub(super) fn begin(
        &mut self,
        channel: &mut Channel,
        namesakes: &mut Namesakes,
        watch: &mut dyn Watch,
    ) -> std::result::Result<(), Trouble> {
        let Self { link, ledger, keys, start, identity, .. } = self;
        let Some(identity) = identity else { return Ok(()) };
        let begun = channel.consult(watch, |transport, silence, watch| {
            let mut setup = Setup { transport, silence, until: None, watch };
            block_on(async {
                start.run(&mut setup, keys).await?;
                namesakes.glance(&mut setup, identity, &start.client_name, ledger).await
            })
        });
        begun.map_err(|trouble| trouble.naming(link.endpoint()))?;
        self.has_begun = true;
        Ok(())
    }

    /// Writes the caller's decisions, and asks for entries if `reads` says so. Returns the time up to which entries that arrived
    /// wait for more.
    pub(super) fn request(
        &mut self,
        reads: Reads,
        deadline: Option<Instant>,
        buffers: &mut Buffers,
    ) -> Option<Instant> {
        let now = Instant::now();
        let pause = self.session.pause();
        let until = if pause.is_zero() { now } else { *self.lingers.get_or_insert(now + pause.min(left(deadline))) };
        self.session.now = clock::now();
        self.reads = reads != Reads::No && now >= until;
        if !self.reads {
            self.session.request_work(buffers);
            return Some(until).filter(|_| reads != Reads::No);
        }
        self.lingers = None;
        if !pause.is_zero() {
            self.session.paused();
        }
        self.session.request(Some(if reads == Reads::Waits { left(deadline) } else { Duration::ZERO }), buffers);
        None
    }

    /// Whether the last request was one for entries.
    pub(super) fn reads(&self) -> bool {
        self.reads
    }

    /// Receives what has arrived, and sends what the socket accepts. Returns whether any bytes moved.
    pub(super) fn step(&mut self, channel: &mut Channel, watch: &mut dyn Watch) -> std::result::Result<bool, Fault> {
        self.link.step(channel, &mut self.session, watch)
    }

    /// Notes that the connection was lost. Its requests are repeated on the next one, or the caller gets the error.
    pub(super) fn lose(&mut self, fault: Fault, watch: &mut dyn Watch) -> Result<()> {
        if self.session.blocks() && self.start.is_of_cluster && fault.code == "ASK" {
            // To a client that waits for the entries of a stream that moves, the server names the other node, possibly before the
            // stream has arrived there. The next command shows whether it has.
            return Ok(());
        }
        self.link.lose(fault, watch)
    }

    /// Notes that the connection has ended.
    pub(super) fn disconnected(&mut self) {
        // Nothing was requested over a connection on which the line has not begun.
        self.identity.take_if(|_| !self.has_begun);
        self.session.now = clock::now();
        self.session.disconnected();
    }

    /// Whether another process has this consumer's name now: what is pending under the name may be that process's work. Takes up to
    /// the time `left`.
    pub(super) fn finds_namesake(
        &self,
        channel: &mut Channel,
        namesakes: &mut Namesakes,
        left: Duration,
        watch: &mut dyn Watch,
    ) -> std::result::Result<bool, Trouble> {
        let Self { identity: Some(identity), start, .. } = self else { return Ok(true) };
        channel.consult(watch, |transport, silence, watch| {
            let mut setup = Setup { transport, silence, until: None, watch };
            block_on(namesakes.look(&mut setup, identity, &start.client_name, left.min(LOOKS_FOR)))
        })?;
        Ok(namesakes.is_found)
    }
}

impl Namesakes {
    /// Asks a server once, unless it was asked before. The first time that a namesake is listed, the ledger looks again later.
    async fn glance(
        &mut self,
        setup: &mut Setup<'_>,
        identity: &Identity,
        name: &Arc<ClientName>,
        ledger: &Mutex<Ledger>,
    ) -> std::result::Result<(), Trouble> {
        let was_found = self.is_found;
        self.look(setup, identity, name, Duration::ZERO).await?;
        if self.is_found && !was_found {
            lock(ledger).look_again_at(clock::now() + LOOKS_FOR, Arc::clone(name));
        }
        Ok(())
    }

    /// Watches a server for up to `time`, unless it was asked before.
    async fn look(
        &mut self,
        setup: &mut Setup<'_>,
        identity: &Identity,
        name: &ClientName,
        time: Duration,
    ) -> std::result::Result<(), Trouble> {
        let is_asked = identity.run_id().is_some_and(|run_id| self.asked.contains(run_id));
        if !self.is_found && !is_asked {
            self.is_found = setup.finds_namesake(name, time).await?;
            self.asked.extend(identity.run_id().map(str::to_owned));
        }
        Ok(())
    }
}

/// The time until the deadline.
pub(super) fn left(deadline: Option<Instant>) -> Duration {
    deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()))
}
