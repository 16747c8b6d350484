//! One connection of a producer, with all that belongs to it alone: its socket, its node, and its waits for a retry.
//!
//! [`Connection`] decides what replies and losses mean. A lane moves the bytes, and ends the socket. Its socket:
//!
//! ```text
//!          in a cluster           connected
//! Closed ────────────────▶ Opening ───────▶ Open ◀── the only server: a call opens it and does nothing else meanwhile
//!  ▲ ▲ ▲                      │              │
//!  │ │ └───── it failed ──────┤              │
//!  │ └─────── it ended ───────┼──────────────┤
//!  │                          ▼              ▼
//!  └── the next batch ── Down: no other try, or the retries are used up
//! ```

use std::io::IoSlice;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use super::node_state::NodeState;
use super::outcome_queue::OutcomeQueue;
use super::preparation::{Ended, Opened};
use super::retry_waits::RetryWaits;
use crate::cluster::Node;
use crate::connection::{Connection, Context, Disconnect, MAX_SLICES, RetryStep};
use crate::counters::Counters;
use crate::error::{Failure, Fault};
use crate::net::{Interest, Opening, ServerChange, Transport, Watch};
use crate::random;

/// The socket of a lane.
#[derive(Debug)]
pub(super) enum Link {
    /// There is no socket; it is opened when it is needed.
    Closed,
    /// The socket is being opened, while the other lanes continue.
    Opening(Box<Opening<Ended>>),
    Open(Box<Transport>),
    /// Connecting failed: the rest of the batch fails with it, without another try.
    Down(Arc<Failure>),
}

#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) connection: Connection,
    pub(super) link: Link,
    /// `None`: it leads to the only server, or to a node that is not known yet.
    pub(super) state: Option<NodeState>,
    pub(super) retry_waits: RetryWaits,
    /// The number of the lane's socket among all that the producer opened.
    number: u64,
    /// Whether the lane's last socket was lost.
    was_lost: bool,
    /// Whether this call has replaced the lane's socket, which had ended between commands.
    was_renewed: bool,
}

impl Lane {
    pub(super) fn new(connection: Connection, state: Option<NodeState>) -> Self {
        let (link, retry_waits) = (Link::Closed, RetryWaits::default());
        Self { connection, link, state, retry_waits, number: 0, was_lost: false, was_renewed: false }
    }

    /// The node that the lane leads to, if there are several.
    pub(crate) fn node(&self) -> Option<&Node> {
        self.state.as_ref().map(|state| &state.node)
    }

    /// The open socket to that node.
    pub(super) fn socket_to_node(&mut self) -> Option<(&mut Transport, &Node)> {
        let (Link::Open(transport), Some(state)) = (&mut self.link, &self.state) else { return None };
        Some((transport.as_mut(), &state.node))
    }

    /// The failure of every message of the lane in this batch, if connecting failed.
    #[inline]
    pub(super) fn down(&self) -> Option<&Arc<Failure>> {
        match &self.link {
            Link::Down(failure) => Some(failure),
            Link::Closed | Link::Opening(_) | Link::Open(_) => None,
        }
    }

    /// Uses an open socket. `number`: how many the producer has opened. Returns the change, if the node was down.
    pub(super) fn opened(
        &mut self,
        opened: Opened,
        number: u64,
        counters: &Counters,
        now: Instant,
    ) -> Option<ServerChange> {
        counters.connections.add(1);
        if std::mem::take(&mut self.was_lost) {
            counters.reconnects.add(1);
        }
        self.connection.opened(opened.command_timeout, opened.replicas, now);
        self.link = Link::Open(Box::new(opened.transport));
        self.number = number;
        self.state.as_mut().and_then(|state| state.opened(counters, now))
    }

    /// Continues with the socket that is being opened, if there is one. `waits`: how many waits of openings there have been.
    pub(super) fn poll_opening(&mut self, waits: &mut u64, watch: &dyn Watch) -> Poll<Ended> {
        let Link::Opening(opening) = &mut self.link else { return Poll::Pending };
        let Poll::Ready(ended) = opening.poll(waits, watch) else {
            // Messages for other nodes do not wait for room in its buffer.
            self.connection.tried_to_send();
            return Poll::Pending;
        };
        self.link = Link::Closed;
        Poll::Ready(ended)
    }

    /// Gives up the socket that is being opened, if `is_left` returns true. Commands that wait for it stay.
    pub(super) fn leave_opening(&mut self, is_left: impl Fn(&Opening<Ended>, &Connection) -> bool) {
        if let Link::Opening(opening) = &self.link
            && is_left(opening, &self.connection)
        {
            self.link = Link::Closed;
        }
    }

    /// Handles a socket that could not be opened. Without another try, the commands that wait fail, and so does the rest of the
    /// batch.
    pub(super) fn not_opened(&mut self, fault: &Fault, cx: &mut Context<'_, OutcomeQueue>) {
        let failure = cx.failure(fault, cx.batch.unattempted);
        let retries = cx.rules.retry.is_some() && cx.rules.classifier.may_pass(fault);
        self.connection.retry.blame(&failure);
        // Not a byte of what waits was handed to this socket.
        self.disconnect(&Disconnect { may_be_written: false, is_final: !retries, ..fault.clone().into() }, cx);
        if !retries {
            self.link = Link::Down(failure);
        }
    }

    /// Allows the next batch to connect again.
    pub(super) fn lift(&mut self) {
        if matches!(self.link, Link::Down(_)) {
            self.link = Link::Closed;
        }
        self.connection.retry.forgive();
    }

    /// Lets the socket be renewed again: a call begins.
    pub(super) fn begin_call(&mut self) {
        self.was_renewed = false;
    }

    /// Receives what has arrived, then sends what the socket takes. Returns whether anything moved.
    ///
    /// The order matters: a connection that the server has closed is noticed before the first byte of a message goes out.
    pub(super) fn step(&mut self, cx: &mut Context<'_, OutcomeQueue>) -> Result<bool, Disconnect> {
        let received = self.receive(cx)?;
        match self.send(cx.outcomes.recorder.counters()) {
            Ok(sent) => Ok(received || sent),
            Err(fault) => {
                // The server's last reply may have arrived already, and explains more than a broken pipe.
                while self.receive(cx)? {}
                Err(fault.into())
            }
        }
    }

    pub(super) fn receive(&mut self, cx: &mut Context<'_, OutcomeQueue>) -> Result<bool, Disconnect> {
        let Self { connection, link: Link::Open(transport), .. } = self else { return Ok(false) };
        let mut moved = false;
        loop {
            let space = connection.space();
            let room = space.len();
            let count = transport.receive(space)?;
            if count == 0 {
                break;
            }
            moved = true;
            cx.now = Instant::now();
            let received = connection.received(count, cx);
            cx.outcomes.recorder.publish();
            received?;
            if count < room {
                break;
            }
        }
        Ok(moved)
    }

    fn send(&mut self, counters: &Counters) -> Result<bool, Fault> {
        let Self { connection, link: Link::Open(transport), .. } = self else { return Ok(false) };
        let mut moved = transport.push()? > 0;
        if moved {
            connection.sent(0, Instant::now());
        }
        while connection.has_unsent() {
            let count = send_some(transport, connection)?;
            if count == 0 {
                break;
            }
            moved = true;
            connection.sent(count, Instant::now());
            counters.bytes_sent.add(count as u64);
        }
        connection.tried_to_send();
        Ok(moved)
    }

    /// For how long the lane's server has been silent, and for how long it may be, if it must answer. See
    /// [`Connection::silence`].
    pub(super) fn silence(&self, started: Option<Instant>, now: Instant) -> Option<(Duration, Duration)> {
        if self.connection.awaits_answer() { self.connection.silence(started, now) } else { None }
    }

    /// When to continue with the socket that is being opened, if there is one.
    pub(super) fn wakes(&self) -> Option<Instant> {
        if let Link::Opening(opening) = &self.link { Some(opening.wakes()) } else { None }
    }

    /// The socket for an event loop, prepared for a wait. Also returns whether received bytes are already waiting here.
    pub(super) fn interest(&mut self) -> (Option<Interest>, bool) {
        match &mut self.link {
            Link::Open(transport) => {
                let has_bytes = transport.prepare(1);
                let writable = self.connection.has_unsent() || transport.wants_write();
                (Some(Interest { connection: self.number, fd: transport.descriptor(), writable }), has_bytes)
            }
            Link::Opening(opening) => (opening.interest(), false),
            Link::Closed | Link::Down(_) => (None, false),
        }
    }

    /// Continues the retries as far as that needs no other lane.
    pub(super) fn take_own_retry_step(&mut self, cx: &mut Context<'_, OutcomeQueue>) {
        if !self.connection.retry.has_redirect() {
            self.take_retry_step(cx);
        }
    }

    /// Continues the retries, if there are any and nothing is in flight. The caller must follow a redirect.
    pub(super) fn take_retry_step(&mut self, cx: &mut Context<'_, OutcomeQueue>) -> Option<RetryStep> {
        let Self { connection, retry_waits, .. } = self;
        if connection.retry.is_idle() {
            return None;
        }
        // A run may have been closed since the redirect arrived.
        connection.take_back_unsent(cx);
        let step = connection.retry_step(cx.rules, cx.now, random::jitter())?;
        let counters = cx.outcomes.recorder.counters();
        match connection.retry.began(matches!(step, RetryStep::Pause(_))) {
            Some(began) => retry_waits.note(began, cx.now, counters),
            None => retry_waits.count(cx.now, counters),
        }
        match &step {
            RetryStep::Pause(_) | RetryStep::Redirect(_) => {}
            RetryStep::Resend => connection.resend(|messages, may_be_written| {
                cx.outcomes.recorder.sent_again(messages, may_be_written && !cx.rules.exactly_once);
            }),
            RetryStep::Resume => {
                connection.resume();
                self.finish_retries(cx);
            }
            RetryStep::GiveUp => {
                if !connection.give_up_tries(cx) {
                    self.finish_retries(cx);
                }
            }
            RetryStep::Done => self.finish_retries(cx),
        }
        Some(step)
    }

    /// Ends the retries. What did not succeed in time fails for the rest of the batch.
    fn finish_retries(&mut self, cx: &mut Context<'_, OutcomeQueue>) {
        if let Some(failure) = self.end_retries(cx) {
            self.drop_socket();
            self.link = Link::Down(failure);
        }
    }

    /// Ends the retries, if there were any: nothing is left to be sent again. Returns the failure that new messages would meet as
    /// well.
    fn end_retries(&mut self, cx: &mut Context<'_, OutcomeQueue>) -> Option<Arc<Failure>> {
        let (ended, exhausted) = self.connection.retry.end(cx.now);
        if let Some(ended) = ended {
            self.retry_waits.note(ended, cx.now, cx.outcomes.recorder.counters());
        }
        let written = cx.batch.unattempted;
        exhausted.map(|failure| Arc::new(Failure { written, ..(*failure).clone() }))
    }

    /// Fails the commands that wait, if connecting failed. Messages in flight failed with the socket; gathered ones were encoded
    /// later.
    pub(super) fn fail_all(&mut self, cx: &mut Context<'_, OutcomeQueue>) {
        if let Some(failure) = self.down().cloned() {
            self.connection.fail_all(&failure, cx);
            self.end_retries(cx);
        }
    }

    /// Marks the node as down, if the fault is that it cannot be reached or does not reply. `unix_ms`: the time of day. Returns
    /// the change.
    pub(super) fn failed(&mut self, fault: &Fault, now: Instant, unix_ms: u64) -> Option<ServerChange> {
        self.state.as_mut()?.failed(fault, now, unix_ms)
    }

    /// Replaces a socket that ended between commands, once in each call: commands that wait go out on the next one, and none
    /// is in doubt.
    pub(super) fn disconnect_or_renew(&mut self, broken: &Disconnect, cx: &mut Context<'_, OutcomeQueue>) {
        if !self.connection.is_renewable() || self.was_renewed {
            self.disconnect(broken, cx);
            return;
        }
        self.was_renewed = true;
        self.renew(&broken.fault, cx);
    }

    /// Ends a socket between commands, so that another one is opened when it is needed.
    pub(super) fn renew(&mut self, fault: &Fault, cx: &mut Context<'_, OutcomeQueue>) {
        self.connection.lose_unconfirmed(fault, cx);
        self.drop_socket();
    }

    /// Ends a socket for good: a broken one is never used again, and commands that wait on it fail or are sent again.
    pub(super) fn disconnect(&mut self, broken: &Disconnect, cx: &mut Context<'_, OutcomeQueue>) {
        let is_forgotten = cx.rules.forgets_ids && self.connection.is_late(cx.now);
        let broken = Disconnect { is_final: broken.is_final || is_forgotten, ..broken.clone() };
        self.drop_socket();
        self.connection.disconnected(&broken, cx);
        if broken.is_final {
            self.end_retries(cx);
        }
    }

    /// Closes the socket cleanly, with nothing in flight. Commands that wait stay.
    pub(super) fn close_socket(&mut self) {
        self.connection.closed();
        if let Link::Open(transport) = std::mem::replace(&mut self.link, Link::Closed) {
            transport.close();
        }
    }

    /// Ends the socket abnormally. Commands that wait stay.
    pub(super) fn drop_socket(&mut self) {
        self.connection.closed();
        if let Link::Open(transport) = std::mem::replace(&mut self.link, Link::Closed) {
            self.was_lost = true;
            transport.abort();
        }
    }

    /// Forgets everything except the node, in a forked child or after a panic. A socket belongs to the parent.
    pub(super) fn forget(&mut self) {
        if let Link::Open(transport) = std::mem::replace(&mut self.link, Link::Closed) {
            transport.forget();
        }
        self.connection.forget();
        self.retry_waits = RetryWaits::default();
        self.was_lost = false;
    }
}

fn send_some(transport: &mut Transport, connection: &mut Connection) -> Result<usize, Fault> {
    if connection.is_in_one_piece() {
        return connection.contiguous().map_or(Ok(0), |bytes| transport.send(bytes));
    }
    let mut slices = [IoSlice::new(&[]); MAX_SLICES];
    let filled = connection.send.slices(&mut slices);
    transport.send_vectored(&slices[..filled])
}
