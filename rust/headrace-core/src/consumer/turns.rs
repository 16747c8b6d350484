//! The turns of several lines: which of them asks for entries, and whose batch comes next. No I/O and no clock.
//!
//! Normally each line waits for new entries by itself. Entries that arrive while the caller works stay in the socket without
//! renewal. So if the caller takes long for its batches, only one line at a time asks, and only for available entries.

use std::time::{Duration, Instant};

use super::line::Reads;

/// How often all sockets are checked.
const LOOKS_EVERY: Duration = Duration::from_millis(50);
/// The pause between requests after all lines in turn had no entries.
const REST: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) struct Turns {
    total: usize,
    min_idle: Duration,
    /// The line whose turn it is.
    turn: usize,
    /// When the caller last got a batch.
    handed_out: Option<Duration>,
    /// When all sockets were last checked.
    looked_at: Duration,
    /// The number of further batches for which the lines ask in turn, after the caller was slow with one.
    careful: usize,
    /// How many lines in a row had no entries.
    empty: usize,
    /// The time before which no line asks.
    rests: Option<Instant>,
}

impl Turns {
    pub(super) fn new(total: usize, min_idle: Duration) -> Self {
        Self {
            total,
            min_idle,
            turn: 0,
            handed_out: None,
            looked_at: Duration::ZERO,
            careful: 0,
            empty: 0,
            rests: None,
        }
    }

    /// The numbers of all lines, starting with the one whose turn it is.
    pub(super) fn order(&self) -> impl Iterator<Item = usize> + use<> {
        let (turn, total) = (self.turn, self.total);
        (turn..turn + total).map(move |at| at % total)
    }

    /// Begins the caller's call for the next batch. If the caller took long for the last batch, the lines ask in turn for a
    /// while.
    pub(super) fn call_begins(&mut self, now: Duration) {
        let Some(handed_out) = self.handed_out.take().filter(|_| self.total > 1) else { return };
        if now.saturating_sub(handed_out) > self.min_idle / 4 {
            self.careful = (2 * self.total).max(16);
        } else {
            self.careful = self.careful.saturating_sub(1);
        }
    }

    /// Gives the turn to the line after `at`, whose batch was returned. Returns whether line `at` may read ahead.
    pub(super) fn took(&mut self, at: usize, now: Duration) -> bool {
        self.handed_out = Some(now);
        self.turn = (at + 1) % self.total;
        (self.empty, self.rests) = (0, None);
        self.total == 1 || self.careful == 0
    }

    /// Whether all sockets must be checked now.
    pub(super) fn looks(&mut self, now: Duration) -> bool {
        let is_due = self.total > 1 && now.saturating_sub(self.looked_at) >= LOOKS_EVERY.min(self.min_idle / 8);
        if is_due {
            self.looked_at = now;
        }
        is_due
    }

    /// Whether line `at` should ask for entries.
    pub(super) fn reads(&self, at: usize, now: Instant) -> Reads {
        match self.careful {
            0 => Reads::Waits,
            _ if at == self.turn && self.rests.is_none_or(|rests| rests <= now) => Reads::Now,
            _ => Reads::No,
        }
    }

    /// Gives the turn to the line after `at`, if line `at` has it: that line has no entries at the moment.
    pub(super) fn had_nothing(&mut self, at: usize, now: Instant) {
        if self.careful == 0 || at != self.turn {
            return;
        }
        self.turn = (at + 1) % self.total;
        self.empty += 1;
        if self.empty >= self.total {
            (self.empty, self.rests) = (0, Some(now + REST));
        }
    }

    /// The time before which no line asks.
    pub(super) fn rests(&self) -> Option<Instant> {
        self.rests.filter(|_| self.careful > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Duration = Duration::from_secs(60);

    fn order(turns: &Turns) -> Vec<usize> {
        turns.order().collect()
    }

    #[test]
    fn each_connection_waits_for_entries_and_their_batches_take_turns() {
        let (mut turns, now) = (Turns::new(3, IDLE), Instant::now());
        assert!((0..3).all(|at| turns.reads(at, now) == Reads::Waits));
        for at in [0, 1, 2, 0] {
            assert_eq!(turns.order().next(), Some(at));
            assert!(turns.took(at, Duration::ZERO));
            turns.call_begins(Duration::from_secs(15));
        }
        assert_eq!(order(&turns), [1, 2, 0]);
        assert!(turns.took(2, Duration::ZERO), "the one in front had none");
        assert_eq!(order(&turns), [0, 1, 2]);
        turns.had_nothing(0, now);
        assert_eq!((order(&turns), turns.rests()), (vec![0, 1, 2], None));
    }

    #[test]
    fn connections_ask_one_after_another_for_a_slow_caller() {
        let (mut turns, now) = (Turns::new(3, IDLE), Instant::now());
        turns.took(2, Duration::ZERO);
        turns.call_begins(Duration::from_secs(16));
        let reads = |turns: &Turns, now| (0..3).map(|at| turns.reads(at, now)).collect::<Vec<_>>();
        assert_eq!(reads(&turns, now), [Reads::Now, Reads::No, Reads::No]);
        turns.had_nothing(1, now);
        assert_eq!(reads(&turns, now), [Reads::Now, Reads::No, Reads::No], "it was not its turn");
        turns.had_nothing(0, now);
        assert_eq!(reads(&turns, now), [Reads::No, Reads::Now, Reads::No]);
        assert!(!turns.took(1, Duration::ZERO), "it does not read ahead");
        for at in [2, 0, 1] {
            turns.had_nothing(at, now);
        }
        assert_eq!(turns.rests(), Some(now + REST));
        assert_eq!(reads(&turns, now), [Reads::No; 3]);
        assert_eq!(reads(&turns, now + REST), [Reads::No, Reads::No, Reads::Now]);
    }

    #[test]
    fn a_slow_caller_must_be_quick_for_a_while_before_connections_wait_again() {
        let (mut turns, now) = (Turns::new(2, IDLE), Instant::now());
        turns.took(0, Duration::ZERO);
        turns.call_begins(IDLE);
        for _ in 0..15 {
            turns.took(0, Duration::ZERO);
            turns.call_begins(Duration::ZERO);
            assert_ne!(turns.reads(1, now), Reads::Waits);
        }
        turns.call_begins(IDLE);
        assert_ne!(turns.reads(1, now), Reads::Waits, "it got no batch before");
        turns.took(0, Duration::ZERO);
        turns.call_begins(Duration::ZERO);
        assert_eq!(turns.reads(1, now), Reads::Waits);
    }

    #[test]
    fn a_single_connection_always_reads_ahead() {
        let mut turns = Turns::new(1, IDLE);
        assert!(turns.took(0, Duration::ZERO));
        turns.call_begins(IDLE);
        assert!(turns.took(0, IDLE));
        assert!(!turns.looks(IDLE));
        assert_eq!(order(&turns), [0]);
    }

    #[test]
    fn all_sockets_are_checked_periodically() {
        let mut turns = Turns::new(2, IDLE);
        let at = Duration::from_secs(100);
        assert!(turns.looks(at));
        assert!(!turns.looks(at + LOOKS_EVERY / 2));
        assert!(turns.looks(at + LOOKS_EVERY));
    }
}
