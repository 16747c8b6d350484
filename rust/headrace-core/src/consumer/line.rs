//! The streams of a consumer that are read together: in a cluster, those of one slot.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::beginning::Beginning;
use super::client_name::ClientName;
use super::ledger::Ledger;
use super::session::Session;
use super::setup::{Identity, Setup};
use super::shared::lock;
use super::start::Start;
use crate::error::{Fault, Result};
use crate::keeper::clock;
use crate::keeper::sync::{Mutex, MutexGuard};
use crate::net::{Opening, Transport, Watch};
use crate::reading::{Attempted, Buffers, Channel, Exchange, Link, Prepare, Trouble};

/// How long a connection of the same name must stay listed to count: that of a process that has ended may stay until the server,
/// or whatever lies in between, notices.
pub(super) const LOOKS_FOR: Duration = Duration::from_millis(500);

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
        let mut setup = Setup { transport, silence, until, watch };
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
    start: Arc<Start>,
    beginning: Beginning,
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
        let beginning = Beginning::new(lock(&ledger).keys().to_vec(), Arc::clone(&start));
        Self {
            session,
            link,
            ledger,
            start,
            beginning,
            identity: None,
            may_come_late: false,
            lingers: None,
            reads: false,
        }
    }

    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.ledger)
    }

    /// Whether replies are on their way.
    pub(super) fn awaits_reply(&self) -> bool {
        self.exchange().awaits_reply()
    }

    /// What uses its connection now.
    pub(super) fn exchange(&self) -> &dyn Exchange {
        if self.has_begun() { &self.session } else { &self.beginning }
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
        self.beginning.is_done()
    }

    /// Writes what has to be asked once.
    pub(super) fn begin(&mut self, namesakes: &mut Namesakes, buffers: &mut Buffers) {
        let run_id = self.identity.as_ref().and_then(Identity::run_id);
        let knows_clients = self.beginning.asks_for_clients() && !namesakes.may_ask(run_id);
        self.beginning.request(knows_clients, buffers);
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
    pub(super) fn step(
        &mut self,
        channel: &mut Channel,
        namesakes: &mut Namesakes,
        watch: &mut dyn Watch,
    ) -> std::result::Result<bool, Trouble> {
        if self.has_begun() {
            self.session.now = clock::now();
            return self.link.step(channel, &mut self.session, watch).map_err(Trouble::Fault);
        }
        let moved = self.link.step(channel, &mut self.beginning, watch).map_err(Trouble::Fault)?;
        if let Some(error) = self.beginning.take_error() {
            return Err(error.into());
        }
        if self.beginning.take_namesake() == Some(true) && !namesakes.is_found {
            namesakes.is_found = true;
            // It may be the connection of a process that has ended.
            self.ledger().look_again_at(clock::now() + LOOKS_FOR, Arc::clone(&self.start.client_name));
        }
        Ok(moved)
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
    pub(super) fn disconnected(&mut self, namesakes: &mut Namesakes) {
        if !self.has_begun() {
            // Nothing was requested over this connection that the next one does not ask again.
            let run_id = self.identity.take().and_then(|identity| identity.run_id().map(str::to_owned));
            namesakes.forget(run_id.filter(|_| self.beginning.awaits_clients()).as_deref());
            self.beginning.disconnected();
        }
        self.session.now = clock::now();
        self.session.disconnected();
    }

    /// Queues a look for another consumer of this name.
    pub(super) fn look(&self) {
        self.ledger().look(clock::now(), Arc::clone(&self.start.client_name));
    }
}

impl Namesakes {
    /// Whether the server has yet to be asked. It counts as asked from now on.
    fn may_ask(&mut self, run_id: Option<&str>) -> bool {
        !self.is_found && run_id.is_none_or(|run_id| self.asked.insert(run_id.to_owned()))
    }

    /// Notes that the server was lost before it replied.
    fn forget(&mut self, run_id: Option<&str>) {
        if let Some(run_id) = run_id {
            self.asked.remove(run_id);
        }
    }
}

/// The time until the deadline.
pub(super) fn left(deadline: Option<Instant>) -> Duration {
    deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()))
}
