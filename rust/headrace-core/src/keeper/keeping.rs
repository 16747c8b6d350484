//! The loop of a keeper: wait, take work, send it, read the replies.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::clock;
use super::doze::Doze;
use super::kept::Kept;
use super::line::Line;
use super::members::KeeperMembers;
use crate::endpoint::Endpoint;
use crate::error::Result;
use crate::net::{Watch, Within, breathe, rest};
use crate::reading::{Link, Outage, Pool};
use crate::retry::RetryPolicy;

/// How long the reading connection has the first chance to send the caller's decisions.
pub(crate) const PATIENCE: Duration = Duration::from_millis(80);
/// The shortest pause of the keeper before it connects again.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
/// The longest such pause, unless a renewal is due earlier: leases must not end because of it.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long the keeper sleeps at most.
pub(crate) const LONGEST: Duration = Duration::from_secs(3600);

/// The work of the keeper: wait, take work, send it, read the replies.
pub(crate) struct Keeping<K> {
    doze: Arc<Doze>,
    pub(super) lines: Vec<Line<K>>,
    /// One connection to each server.
    pool: Pool<()>,
}

impl<K: Kept> Keeping<K> {
    /// `endpoints`: one for each session. `most`: the longest pause after a failed attempt to connect. `retry`: how long the
    /// keeper pauses before it connects again, which it does for as long as it lives.
    pub(crate) fn new(
        endpoints: Vec<Endpoint>,
        sessions: impl IntoIterator<Item = K>,
        doze: Arc<Doze>,
        most: Duration,
        retry: &RetryPolicy,
    ) -> Self {
        let retry = RetryPolicy {
            initial_backoff: retry.initial_backoff.max(SHORTEST_PAUSE),
            max_backoff: retry.max_backoff.min(most.min(LONGEST_PAUSE)).max(SHORTEST_PAUSE),
            ..retry.clone()
        };
        let line = |(endpoint, session): (Endpoint, K)| Line {
            session,
            // Only the counters of the reading connection are reported.
            link: Link::new(endpoint, Outage::endless(retry.clone()), Arc::default()),
        };
        let pool = Pool::new(&endpoints, 1, Duration::ZERO);
        let lines = endpoints.into_iter().zip(sessions).map(line).collect();
        Self { doze, lines, pool }
    }

    /// Runs until the keeper must end.
    pub(crate) async fn run(mut self, watch: &mut dyn Watch) {
        let doze = Arc::clone(&self.doze);
        let mut has_ended = || doze.ends();
        let mut watch = Within::new(&mut has_ended, watch);
        while !self.doze.ends() {
            let turn = self.pass(&mut watch);
            // The only error is that the keeper must end.
            let _ = if turn.has_moved { breathe(&mut watch).await } else { self.wait(&turn, &mut watch).await };
        }
        self.pool.close(&mut KeeperMembers { lines: &mut self.lines, due: &[] }, false);
    }

    /// One pass over all connections.
    fn pass(&mut self, watch: &mut dyn Watch) -> Turn {
        let Self { doze, lines, pool } = self;
        let mut turn = Turn::default();
        let mut is_due = |(at, line): (usize, &mut Line<K>)| {
            let is_due = !line.session.awaits_reply() && turn.is_due(line, doze);
            is_due || pool.is_opening_for(at)
        };
        let due: Vec<bool> = lines.iter_mut().enumerate().map(&mut is_due).collect();
        // The only error is that the keeper must end.
        let passed = pool.advance(&mut KeeperMembers { lines, due: &due }, watch).unwrap_or_default();
        (turn.has_moved, turn.due) = (passed.has_moved, due);
        if let Some(until) = passed.until {
            turn.until = turn.until.min(until.saturating_duration_since(Instant::now()));
        }
        turn
    }

    /// Waits for replies, or for work.
    async fn wait(&mut self, turn: &Turn, watch: &mut dyn Watch) -> Result<()> {
        let shows = |(at, line): (usize, &Line<K>)| line.session.awaits_reply() || self.pool.is_opening_for(at);
        let is_idle = !self.lines.iter().enumerate().any(shows);
        let until = Instant::now().checked_add(turn.until);
        if !is_idle {
            let mut members = KeeperMembers { lines: &mut self.lines, due: &turn.due };
            return self.pool.wait(&mut members, until, watch).await;
        }
        if !watch.defers() {
            self.doze.sleep(turn.until, turn.is_long);
            return Ok(());
        }
        if self.doze.lies_down(turn.is_long) {
            return Ok(());
        }
        let rested = rest(Vec::new(), until, watch).await;
        self.doze.gets_up();
        rested
    }
}

/// The result of a pass over all lines.
struct Turn {
    has_moved: bool,
    /// The lines that have something to send, or open a connection.
    due: Vec<bool>,
    /// Whether nothing has to be done before the next renewal.
    is_long: bool,
    /// The time until the next pass.
    until: Duration,
}

impl Default for Turn {
    fn default() -> Self {
        Self { has_moved: false, due: Vec::new(), is_long: true, until: LONGEST }
    }
}

impl Turn {
    /// Whether the line must send something now. If not, the next pass is scheduled for when it must.
    fn is_due<K: Kept>(&mut self, line: &mut Line<K>, doze: &Doze) -> bool {
        let (left, has_work) = line.session.left(doze, clock::now());
        self.is_long &= !has_work;
        let left = left.max(line.pause());
        // The reading connection may take the work before this one does: look again soon.
        self.until = self.until.min(if left.is_zero() { PATIENCE } else { left });
        left.is_zero()
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::endpoint::{Form, OptionValue};
    use crate::error::Fault;
    use crate::reading::{Buffers, Exchange};

    /// Has work, which another connection takes before it writes it.
    struct Late;

    impl Exchange for Late {
        fn awaits_reply(&self) -> bool {
            false
        }

        fn answer(&mut self, _: &mut Buffers) -> std::result::Result<bool, Fault> {
            Ok(false)
        }

        fn disconnected(&mut self) {}
    }

    impl Kept for Late {
        fn left(&mut self, _: &Doze, _: Duration) -> (Duration, bool) {
            (Duration::ZERO, true)
        }

        fn request(&mut self, _: Duration, _: &mut Buffers) {}
    }

    #[test]
    fn a_line_whose_work_the_reading_connection_takes_is_looked_at_again() {
        let given = [("host", "h"), ("stream_key", "s")].map(|(name, text)| (name.to_owned(), OptionValue::text(text)));
        let endpoint = Endpoint::new(given, Form::Text).unwrap();
        let doze = Arc::new(Doze::new());
        let (most, retry) = (Duration::from_secs(5), RetryPolicy::default());
        let mut keeping = Keeping::new(vec![endpoint], [Late], Arc::clone(&doze), most, &retry);
        let mut turn = Turn::default();
        assert!(turn.is_due(&mut keeping.lines[0], &doze));
        assert!(!turn.has_moved && turn.until <= PATIENCE, "the leases are renewed in time");
    }
}
