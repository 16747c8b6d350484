//! The loop of a consumer: sends, receives and waits, until there is a batch, or until the server knows what the caller said.

use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::batch::ConsumerBatch;
use super::client_name::ClientName;
use super::clock;
use super::session::Session;
use super::setup::{Create, Identity, LOOKS_FOR, Setup, group_missing};
use super::shared::Shared;
use super::work::Names;
use crate::counters::ReadCounters;
use crate::endpoint::Endpoint;
use crate::error::{Error, Fault, Result};
use crate::net::{ServerChange, Watch};
use crate::reading::{Exchange, Link, Trouble, wait_for_more};
use crate::retry::{RetryEnd, RetryPolicy, RetryWait};

/// The socket of a session.
#[derive(Debug)]
pub(super) struct Drive {
    link: Link,
    shared: Arc<Shared>,
    keys: Vec<Arc<[u8]>>,
    names: Names,
    client_name: ClientName,
    /// Whether entries are acknowledged, and whether those of others are claimed.
    needs: (bool, bool),
    /// Where groups begin that are to be made: by the first connection only.
    create: Option<Create>,
    has_begun: bool,
    /// Whether another connection had this consumer's name when the first one was made.
    pub(super) has_namesake: bool,
    /// The connection before this one.
    identity: Option<Identity>,
    /// Whether a connection was lost that may not have ended: the server may get its last request at any time.
    pub(super) may_come_late: bool,
}

impl Drive {
    pub(super) fn new(
        endpoint: Endpoint,
        retry: Option<RetryPolicy>,
        counters: Arc<ReadCounters>,
        shared: Arc<Shared>,
        names: Names,
        needs: (bool, bool),
        create: Option<Create>,
    ) -> Self {
        let keys = shared.ledger().keys().to_vec();
        let link = Link::new(endpoint, retry, counters);
        Self {
            link,
            shared,
            keys,
            client_name: ClientName::new(&names),
            names,
            needs,
            create,
            has_begun: false,
            has_namesake: false,
            identity: None,
            may_come_late: false,
        }
    }

    /// Connects, and makes the groups.
    pub(super) fn until_open(&mut self, session: &mut Session, watch: &mut dyn Watch) -> Result<()> {
        while !self.link.is_open() {
            if self.link.may_connect(Duration::MAX, watch)? {
                self.open(session, watch)?;
            }
        }
        Ok(())
    }

    fn open(&mut self, session: &mut Session, watch: &mut dyn Watch) -> Result<()> {
        session.now = clock::now();
        let Self { link, keys, names, client_name, needs, create, has_begun, has_namesake, .. } = self;
        let (identity, may_come_late) = (&mut self.identity, &mut self.may_come_late);
        link.connect(session, watch, |transport, silence, watch| {
            let mut setup = Setup { transport, silence, watch };
            let new = setup.identity()?;
            let has_ended = match (&*identity, &new) {
                (Some(old), Some(new)) => setup.end(old, new)?,
                _ => !*has_begun,
            };
            *may_come_late |= !has_ended;
            *identity = new;
            if *has_begun {
                return setup.name(client_name);
            }
            begin(&mut setup, keys, names, *needs, create.as_ref())?;
            *has_namesake = setup.finds_namesake(client_name, LOOKS_FOR)?;
            setup.name(client_name)?;
            *has_begun = true;
            Ok(())
        })
    }

    /// Runs until there is a batch, the caller stops, or `timeout` is over.
    pub(super) fn until_batch(
        &mut self,
        session: &mut Session,
        timeout: Option<Duration>,
        watch: &mut dyn Watch,
    ) -> Result<Option<ConsumerBatch>> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let error = self.shared.ledger().take_error();
            if let Some(error) = error {
                return Err(error);
            }
            if self.shared.stops() {
                return Ok(None);
            }
            session.now = clock::now();
            if let Some(batch) = session.take() {
                // The server gets the next page ready while the caller works. A fault shows again in the next call.
                session.request(None);
                let _ = self.link.send(session);
                return batch.map(Some);
            }
            let shared = Arc::clone(&self.shared);
            match self.run(session, deadline, &mut Stopping { watch: &mut *watch, shared: &shared }) {
                Err(Error::Interrupted) if shared.stops() => return Ok(None),
                passed => passed?,
            }
            // Also without time to wait, what has come is taken.
            if !session.is_ready()
                && !session.is_suspended()
                && deadline.is_some_and(|deadline| deadline <= Instant::now())
            {
                return Ok(None);
            }
        }
    }

    /// Runs until the server knows what the caller said so far, or `deadline` is over; returns whether it knows.
    pub(super) fn until_settled(
        &mut self,
        session: &mut Session,
        deadline: Option<Instant>,
        watch: &mut dyn Watch,
    ) -> Result<bool> {
        loop {
            let error = self.shared.ledger().take_error();
            if let Some(error) = error {
                return Err(error);
            }
            if self.shared.ledger().is_settled() && !session.looks_back() {
                return Ok(true);
            }
            let left = left(deadline);
            if left.is_zero() {
                return Ok(false);
            }
            self.link.ask(watch)?;
            if !self.link.is_open() {
                if self.link.may_connect(left, watch)? {
                    self.open(session, watch)?;
                }
                continue;
            }
            session.now = clock::now();
            session.request_work();
            if !session.awaits_reply() {
                // The keeper has the rest.
                thread::sleep(Duration::from_millis(1).min(left));
                continue;
            }
            self.pass(session, left, watch)?;
        }
    }

    /// Whether another process has this consumer's name now: what is pending under it may be that process's work. Where `deadline`
    /// comes first, it may have it.
    pub(super) fn finds_namesake(
        &mut self,
        session: &mut Session,
        deadline: Instant,
        watch: &mut dyn Watch,
    ) -> Result<bool> {
        loop {
            self.drain(session, deadline, watch)?;
            let left = left(Some(deadline));
            if left.is_zero() {
                return Ok(true);
            }
            let name = &self.client_name;
            let found = self.link.consult(watch, |transport, silence, watch| {
                Setup { transport, silence: silence.min(left), watch }.finds_namesake(name, left.min(LOOKS_FOR))
            });
            match found {
                Some(Ok(found)) => return Ok(found),
                Some(Err(Trouble::Error(error))) => return Err(error),
                Some(Err(Trouble::Fault(fault))) => self.link.lose(session, fault, watch)?,
                None if self.link.may_connect(left, watch)? => self.open(session, watch)?,
                None => {}
            }
        }
    }

    /// Reads the replies that are on their way, so that no entry is delivered to a connection that is gone. `deadline`: for how long.
    pub(super) fn drain(&mut self, session: &mut Session, deadline: Instant, watch: &mut dyn Watch) -> Result<()> {
        while self.link.is_open() && session.awaits_reply() && !left(Some(deadline)).is_zero() {
            session.now = clock::now();
            self.pass(session, left(Some(deadline)), watch)?;
        }
        Ok(())
    }

    /// One pass: connects, asks, sends, receives or waits.
    fn run(&mut self, session: &mut Session, deadline: Option<Instant>, watch: &mut dyn Watch) -> Result<()> {
        self.link.ask(watch)?;
        if !self.link.is_open() {
            if self.link.may_connect(left(deadline), watch)? {
                self.open(session, watch)?;
            }
            return Ok(());
        }
        let pause = session.pause();
        if !pause.is_zero() {
            wait_for_more(pause.min(left(deadline)), watch)?;
            session.paused();
        }
        session.now = clock::now();
        session.request(Some(left(deadline)));
        self.pass(session, left(deadline), watch)
    }

    fn pass(&mut self, session: &mut Session, left: Duration, watch: &mut dyn Watch) -> Result<()> {
        let stepped = self.link.step(session, watch);
        session.looked();
        match stepped {
            Ok(true) => Ok(()),
            Ok(false) => self.link.wait(session, left, watch),
            Err(fault) => match self.missing(&fault) {
                Some(error) => {
                    self.link.close(session, false);
                    Err(error)
                }
                None => self.link.lose(session, fault, watch),
            },
        }
    }

    fn missing(&self, fault: &Fault) -> Option<Error> {
        // Redis before 7.2, where the stream was deleted while the server waited. Other texts with this code are no such thing.
        let is_deleted = fault.code == "UNBLOCKED" && fault.message.contains("no longer exists");
        let is_missing = fault.code == "NOGROUP" || is_deleted;
        let is_of = |key: &&Arc<[u8]>| fault.message.contains(&format!("'{}'", String::from_utf8_lossy(key)));
        let key = self.keys.iter().find(is_of).or(self.keys.first());
        is_missing.then(|| group_missing(key.map(AsRef::as_ref).unwrap_or_default(), &self.names))
    }

    /// Ends the connection.
    pub(super) fn close(&mut self, session: &mut Session) {
        session.now = clock::now();
        self.link.close(session, false);
    }

    /// The connection belongs to the process that this one was forked from.
    pub(super) fn forget(&mut self) {
        self.link.forget();
    }
}

/// Ends waits when the caller stops, too.
struct Stopping<'a> {
    watch: &'a mut dyn Watch,
    shared: &'a Shared,
}

impl Watch for Stopping<'_> {
    fn interrupted(&mut self) -> bool {
        self.watch.interrupted() || self.shared.stops()
    }

    fn retry_began(&mut self, wait: &RetryWait<'_>) {
        self.watch.retry_began(wait);
    }

    fn retry_ended(&mut self, end: &RetryEnd<'_>) {
        self.watch.retry_ended(end);
    }

    fn server_changed(&mut self, endpoint: &dyn fmt::Display, change: &ServerChange) {
        self.watch.server_changed(endpoint, change);
    }
}

/// What the first connection does.
fn begin(
    setup: &mut Setup<'_>,
    keys: &[Arc<[u8]>],
    names: &Names,
    (acks, claims): (bool, bool),
    create: Option<&Create>,
) -> std::result::Result<(), Trouble> {
    for key in keys {
        setup.check_rights(key, names, acks, claims)?;
        match create {
            Some(create) => setup.create(key, names, create)?,
            None if !setup.exists(key, names)? => return Err(group_missing(key, names).into()),
            None => {}
        }
    }
    Ok(())
}

fn left(deadline: Option<Instant>) -> Duration {
    deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()))
}
