//! An outage of the server, from a reader's view: whether to try again, and when. No I/O, no clock, no random numbers.

use std::time::{Duration, Instant};

use crate::error::{Classifier, Fault, code};
use crate::retry::RetryPolicy;

/// The next step after a fault.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum After {
    /// Another attempt, at [`Outage::next`]. After the first fault of an outage, also how long the outage may last.
    Again(Option<Duration>),
    /// The caller gets the error, with the end of the outage if the caller waited.
    Failure(Option<Ended>),
}

/// The end of an outage during which the caller waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ended {
    /// The number of attempts, including the first.
    pub(super) tries: u32,
    /// The time since the first fault.
    pub(super) took: Duration,
}

/// What is known about the server between two replies.
#[derive(Debug)]
pub(crate) struct Outage {
    /// `None`: a lost connection is replaced immediately, if it has brought a reply.
    policy: Option<RetryPolicy>,
    /// Whether no fault ends the attempts.
    is_endless: bool,
    is_proven: bool,
    current: Option<Current>,
}

#[derive(Debug, Clone, Copy)]
struct Current {
    since: Instant,
    /// The number of failed attempts.
    tries: u32,
    next: Instant,
}

impl Outage {
    pub(crate) fn new(policy: Option<RetryPolicy>) -> Self {
        Self { policy, is_endless: false, is_proven: false, current: None }
    }

    /// For a caller that gets no errors: attempts follow each other with the pauses of `policy`, whatever the faults are.
    pub(crate) fn endless(policy: RetryPolicy) -> Self {
        Self { is_endless: true, ..Self::new(Some(policy)) }
    }

    /// When to try again; `None`: immediately.
    pub(super) fn next(&self) -> Option<Instant> {
        self.current.map(|current| current.next)
    }

    /// Notes that a connection was opened, which has brought no reply yet.
    pub(super) fn connected(&mut self) {
        self.is_proven = false;
    }

    /// Notes that a reply, or a part of one, arrived.
    pub(super) fn answered(&mut self, now: Instant) -> Option<Ended> {
        self.is_proven = true;
        self.current.take().map(|Current { since, tries, .. }| Ended {
            tries: tries.saturating_add(1),
            took: now.saturating_duration_since(since),
        })
    }

    /// Notes a failed attempt. `chance`: 0 to 1, drawn for each fault.
    pub(super) fn faulted(&mut self, fault: &Fault, now: Instant, chance: f64) -> After {
        let Some(policy) = &self.policy else {
            let is_again = std::mem::take(&mut self.is_proven) && code::is_away(&fault.code);
            return if is_again { After::Again(None) } else { After::Failure(None) };
        };
        let before = self.current.take();
        let since = before.map_or(now, |current| current.since);
        let tries = before.map_or(1, |current| current.tries.saturating_add(1));
        let took = now.saturating_duration_since(since);
        if self.is_endless || (Classifier::default().may_pass(fault) && policy.allows(tries, took)) {
            self.current = Some(Current { since, tries, next: now + policy.backoff(tries, chance) });
            return After::Again(before.is_none().then(|| policy.deadline.saturating_sub(took)));
        }
        After::Failure(before.map(|_| Ended { tries, took }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(code: &'static str) -> Fault {
        Fault::new(code, "why".to_owned())
    }

    fn policy() -> RetryPolicy {
        let pause = Duration::from_secs(1);
        RetryPolicy { initial_backoff: pause, max_backoff: pause, jitter: 0.0, ..RetryPolicy::default() }
    }

    #[test]
    fn without_a_policy_a_connection_is_replaced_once_after_a_reply() {
        let (mut outage, now) = (Outage::new(None), Instant::now());
        assert_eq!(outage.faulted(&fault(code::EOF), now, 0.0), After::Failure(None));
        assert_eq!(outage.answered(now), None);
        assert_eq!(outage.faulted(&fault(code::EOF), now, 0.0), After::Again(None));
        assert_eq!(outage.next(), None);
        assert_eq!(outage.faulted(&fault(code::CONNECT), now, 0.0), After::Failure(None));
        outage.answered(now);
        assert_eq!(outage.faulted(&fault("LOADING"), now, 0.0), After::Failure(None));
        outage.answered(now);
        outage.connected();
        assert_eq!(outage.faulted(&fault(code::RESET), now, 0.0), After::Failure(None));
    }

    #[test]
    fn a_policy_pauses_before_each_attempt_until_its_deadline() {
        let (mut outage, start) = (Outage::new(Some(policy())), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(outage.faulted(&fault(code::CONNECT), start, 0.0), After::Again(Some(policy().deadline)));
        assert_eq!(outage.next(), Some(at(1)));
        assert_eq!(outage.faulted(&fault("LOADING"), at(119), 0.0), After::Again(None));
        assert_eq!(outage.next(), Some(at(120)));
        let ended = Ended { tries: 3, took: Duration::from_secs(120) };
        assert_eq!(outage.faulted(&fault(code::CONNECT), at(120), 0.0), After::Failure(Some(ended)));
        // The next call starts over.
        assert_eq!(outage.faulted(&fault(code::CONNECT), at(130), 0.0), After::Again(Some(policy().deadline)));
        let ended = Ended { tries: 2, took: Duration::from_secs(1) };
        assert_eq!(outage.answered(at(131)), Some(ended));
        assert_eq!(outage.next(), None);
    }

    #[test]
    fn errors_that_do_not_resolve_themselves_are_not_retried() {
        let (mut outage, now) = (Outage::new(Some(policy())), Instant::now());
        for code in ["WRONGPASS", "NOPERM", "READONLY", "OOM", "ERR", code::PROTOCOL, code::TLS] {
            assert_eq!(outage.faulted(&fault(code), now, 0.0), After::Failure(None), "{code}");
        }
        for code in ["LOADING", "MASTERDOWN", "BUSY", "CLUSTERDOWN", "TRYAGAIN", code::DNS, code::TIMEOUT] {
            outage = Outage::new(Some(policy()));
            assert!(matches!(outage.faulted(&fault(code), now, 0.0), After::Again(Some(_))), "{code}");
        }
        let ended = Ended { tries: 2, took: Duration::ZERO };
        assert_eq!(outage.faulted(&fault("WRONGPASS"), now, 0.0), After::Failure(Some(ended)));
    }

    #[test]
    fn an_endless_outage_pauses_after_each_fault() {
        let policy = RetryPolicy { max_attempts: Some(1), deadline: Duration::ZERO, ..policy() };
        let (mut outage, now) = (Outage::endless(policy), Instant::now());
        for code in ["WRONGPASS", code::TIMEOUT, code::CONFIG] {
            assert!(matches!(outage.faulted(&fault(code), now, 0.0), After::Again(_)), "{code}");
            assert_eq!(outage.next(), Some(now + Duration::from_secs(1)));
        }
    }

    #[test]
    fn a_policy_with_one_attempt_does_not_retry() {
        let policy = RetryPolicy { max_attempts: Some(1), ..policy() };
        let (mut outage, now) = (Outage::new(Some(policy)), Instant::now());
        outage.answered(now);
        assert_eq!(outage.faulted(&fault(code::EOF), now, 0.0), After::Failure(None));
    }
}
