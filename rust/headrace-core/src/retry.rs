//! The retry policy: when failed messages are sent again, or a server is read from again, and for how long.

use std::fmt;
use std::time::Duration;

use crate::error::Failure;

/// How often, how soon and for how long messages are sent again, or a server that is read from is tried again. Only failures that
/// pass by themselves are retried.
#[derive(Debug, Clone, PartialEq)]
pub struct RetryPolicy {
    /// The maximum number of tries of one message, or in one outage, including the first; `None`: as many as the deadline allows.
    pub max_attempts: Option<u32>,
    /// The pause before the second try.
    pub initial_backoff: Duration,
    /// The longest pause.
    pub max_backoff: Duration,
    /// The factor from one pause to the next.
    pub multiplier: f64,
    /// The random part of a pause, 0 to 1, so that many clients do not come back at the same moment.
    pub jitter: f64,
    /// For how long after its first failure a message is tried again, or how long an outage may last.
    pub deadline: Duration,
    /// Whether messages that may have been written already are sent again, which may write them twice. Reading writes none.
    pub retry_unknown: bool,
}

/// The start of a wait: messages failed, or the server that is read from did; the next try follows once a pause is over.
#[derive(Clone, Copy)]
pub struct RetryWait<'a> {
    /// Where messages go, or come from; without a secret.
    pub endpoint: &'a dyn fmt::Display,
    /// How many messages are sent again; `None`: a reader or consumer waits for its server.
    pub messages: Option<u64>,
    /// The maximum time for further tries.
    pub left: Duration,
    /// The first failure.
    pub failure: &'a Failure,
}

/// The end of a [`RetryWait`].
#[derive(Clone, Copy)]
pub struct RetryEnd<'a> {
    /// Where messages go, or come from; without a secret.
    pub endpoint: &'a dyn fmt::Display,
    /// Whether a reader or consumer waited.
    pub is_reading: bool,
    /// The number of tries, including the first one.
    pub tries: u32,
    /// The time since the first failure.
    pub took: Duration,
    /// The failure that ended the retries; `None`: the server has answered.
    pub failure: Option<&'a Failure>,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl RetryPolicy {
    /// The defaults of the options `retry_*`.
    pub(crate) const DEFAULT: Self = Self {
        max_attempts: None,
        initial_backoff: Duration::from_millis(50),
        max_backoff: Duration::from_millis(500),
        multiplier: 2.0,
        jitter: 0.5,
        deadline: Duration::from_secs(120),
        retry_unknown: false,
    };

    /// The pause after `attempts` failed tries (1 and up). `chance`: 0 to 1, drawn for each pause.
    pub(crate) fn backoff(&self, attempts: u32, chance: f64) -> Duration {
        let exponent = i32::try_from(attempts.saturating_sub(1)).unwrap_or(i32::MAX);
        let longest = self.max_backoff.as_secs_f64();
        let pause = (self.initial_backoff.as_secs_f64() * self.multiplier.powi(exponent)).min(longest);
        Duration::try_from_secs_f64(pause * (1.0 - self.jitter * chance)).unwrap_or(self.max_backoff)
    }

    /// Whether a message may be tried once more after `attempts` tries, when the time `since` has passed since its first failure.
    pub(crate) fn allows(&self, attempts: u32, since: Duration) -> bool {
        since < self.deadline && self.max_attempts.is_none_or(|most| attempts < most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_grows_up_to_its_maximum_and_jitter_shortens_it() {
        let policy = RetryPolicy::default();
        let pauses: Vec<_> = [1, 2, 3, 4, 5, 99, u32::MAX].map(|n| policy.backoff(n, 0.0).as_millis()).into();
        assert_eq!(pauses, [50, 100, 200, 400, 500, 500, 500]);
        assert_eq!(policy.backoff(1, 1.0), Duration::from_millis(25));
    }

    #[test]
    fn attempts_end_at_their_maximum_or_at_the_deadline() {
        let policy = RetryPolicy { max_attempts: Some(3), ..RetryPolicy::default() };
        assert!(policy.allows(2, Duration::ZERO));
        assert!(!policy.allows(3, Duration::ZERO));
        assert!(!policy.allows(1, policy.deadline));
        assert!(RetryPolicy::default().allows(u32::MAX, Duration::ZERO));
    }
}
