//! The loop of a reader: sends, receives and waits, until there is a batch.

use std::thread;
use std::time::{Duration, Instant};

use crate::consumer::{ReadBatch, Session};
use crate::endpoint::Endpoint;
use crate::error::{Classifier, Error, Fault, Result, code};
use crate::net::{ConnectError, Transport, Watch, connect};

/// How long one wait may last before the caller is asked whether to go on: Ctrl-C must be noticed within 0.1 s.
const WATCH_EVERY: Duration = Duration::from_millis(50);

/// The socket of a session.
#[derive(Debug)]
pub(super) struct Drive {
    endpoint: Endpoint,
    link: Option<(Transport, Duration)>,
    /// Whether a lost connection is replaced, if it has brought a reply.
    reconnects: bool,
    is_proven: bool,
    /// When bytes last moved.
    used: Instant,
    /// When the watch was asked last.
    watched: Instant,
}

impl Drive {
    pub(super) fn new(endpoint: Endpoint, reconnects: bool) -> Self {
        let now = Instant::now();
        Self { endpoint, link: None, reconnects, is_proven: false, used: now, watched: now }
    }

    /// Runs until each stream has begun.
    pub(super) fn until_begun(&mut self, session: &mut Session, watch: &mut dyn Watch) -> Result<()> {
        while !session.has_begun() {
            self.run(session, None, watch)?;
        }
        Ok(())
    }

    /// Runs until there is a batch, everything was read, or `timeout` is over.
    pub(super) fn until_batch(
        &mut self,
        session: &mut Session,
        timeout: Option<Duration>,
        watch: &mut dyn Watch,
    ) -> Result<Option<ReadBatch>> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if let Some(batch) = session.take() {
                // The server gets the next page ready while the caller works.
                session.request(None);
                if self.link.is_some() && !session.unsent().is_empty() {
                    // A fault shows again in the next call.
                    let _ = self.send(session);
                }
                return batch.map(Some);
            }
            if session.is_finished() {
                return Ok(None);
            }
            self.run(session, deadline, watch)?;
            // Also without time to wait, what has come is taken.
            if !session.is_ready() && deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Ok(None);
            }
        }
    }

    /// One pass: connects, asks, sends, receives or waits.
    fn run(&mut self, session: &mut Session, deadline: Option<Instant>, watch: &mut dyn Watch) -> Result<()> {
        let now = Instant::now();
        if now.saturating_duration_since(self.watched) >= WATCH_EVERY {
            self.watched = now;
            if watch.interrupted() {
                return Err(Error::Interrupted);
            }
        }
        if self.link.is_none() {
            return self.open(session, watch);
        }
        let left = || deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
        let pause = session.pause();
        if !pause.is_zero() {
            wait_for_more(pause.min(left()), watch)?;
            session.paused();
        }
        session.request(Some(left()));
        match self.step(session) {
            Ok(true) => Ok(()),
            Ok(false) => self.wait(session, deadline, watch),
            Err(fault) => self.lose(session, &fault),
        }
    }

    fn open(&mut self, session: &mut Session, watch: &mut dyn Watch) -> Result<()> {
        let settings = self.endpoint.settings()?;
        match connect(&self.endpoint, &settings, watch) {
            Ok(transport) => {
                self.link = Some((transport, settings.command_timeout));
                self.is_proven = false;
                self.used = Instant::now();
                session.disconnected();
                Ok(())
            }
            Err(ConnectError::Interrupted) => Err(Error::Interrupted),
            Err(ConnectError::Fault(fault)) => Err(failed(&fault)),
        }
    }

    /// Receives what is there, then sends what the socket takes. Returns whether anything moved.
    fn step(&mut self, session: &mut Session) -> std::result::Result<bool, Fault> {
        let received = self.receive(session)?;
        match self.send(session) {
            Ok(sent) => Ok(received || sent),
            Err(fault) => {
                // The server's last words may be here already, and explain more than a broken pipe.
                while self.receive(session)? {}
                Err(fault)
            }
        }
    }

    fn receive(&mut self, session: &mut Session) -> std::result::Result<bool, Fault> {
        let Some((transport, _)) = &mut self.link else { return Ok(false) };
        let count = transport.receive(session.space())?;
        if count > 0 {
            let started = Instant::now();
            session.received(count)?;
            self.used = Instant::now();
            session.took(Duration::ZERO, self.used - started);
            self.is_proven = true;
        }
        Ok(count > 0)
    }

    fn send(&mut self, session: &mut Session) -> std::result::Result<bool, Fault> {
        let Some((transport, _)) = &mut self.link else { return Ok(false) };
        let mut moved = transport.push()? > 0;
        while !session.unsent().is_empty() {
            let count = transport.send(session.unsent())?;
            if count == 0 {
                break;
            }
            session.sent(count);
            moved = true;
        }
        if moved {
            self.used = Instant::now();
        }
        Ok(moved)
    }

    /// Waits until the socket is ready; gives up on a server that is silent for too long.
    fn wait(&mut self, session: &mut Session, deadline: Option<Instant>, watch: &mut dyn Watch) -> Result<()> {
        if !session.awaits_reply() {
            return Ok(());
        }
        let Some((transport, command_timeout)) = &mut self.link else { return Ok(()) };
        let now = Instant::now();
        let patience = *command_timeout + session.blocks_for();
        let silent = now.saturating_duration_since(self.used);
        if silent >= patience {
            let seconds = silent.as_secs_f64();
            let message = format!("{} was silent for {seconds:.3} s while a reply was expected", self.endpoint);
            return self.lose(session, &Fault::new(code::TIMEOUT, message));
        }
        let mut timeout = WATCH_EVERY.min(patience.saturating_sub(silent));
        if let Some(deadline) = deadline {
            timeout = timeout.min(deadline.saturating_duration_since(now));
        }
        let writable = !session.unsent().is_empty() || transport.wants_write();
        let ready = transport.wait(writable, timeout);
        session.took(now.elapsed(), Duration::ZERO);
        if ready.interrupted && watch.interrupted() {
            return Err(Error::Interrupted);
        }
        Ok(())
    }

    /// The connection is of no further use. What was not read is asked for again, on another one.
    fn lose(&mut self, session: &mut Session, fault: &Fault) -> Result<()> {
        self.close(session, false);
        if self.reconnects && self.is_proven && code::is_away(&fault.code) {
            self.is_proven = false;
            return Ok(());
        }
        Err(failed(fault))
    }

    /// Ends the connection; `is_parents`: it belongs to the process that this one was forked from.
    pub(super) fn close(&mut self, session: &mut Session, is_parents: bool) {
        match self.link.take() {
            Some((transport, _)) if is_parents => transport.forget(),
            // Nothing of the reply that is under way is of use.
            Some((transport, _)) if session.awaits_reply() => transport.abort(),
            Some((transport, _)) => transport.close(),
            None => {}
        }
        session.disconnected();
    }
}

/// Waits for more entries, which are not asked for meanwhile.
fn wait_for_more(pause: Duration, watch: &mut dyn Watch) -> Result<()> {
    let until = Instant::now() + pause;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(WATCH_EVERY));
        if watch.interrupted() {
            return Err(Error::Interrupted);
        }
    }
}

fn failed(fault: &Fault) -> Error {
    let message = fault.message.clone();
    if code::is_away(&fault.code) {
        return Error::Connection { message };
    }
    Error::Command { code: fault.code.to_string(), kind: Classifier::default().kind(fault), message }
}
