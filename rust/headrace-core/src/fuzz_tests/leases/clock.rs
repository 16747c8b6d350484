//! A clock that runs at a speed of its own.

use std::time::Duration;

use super::super::chance::Chance;

#[derive(Debug, Clone, Copy)]
pub struct Clock {
    shown: Duration,
    since: Duration,
    /// The microseconds that it counts in a millisecond.
    speed: u32,
}

impl Clock {
    /// `may_drift`: it runs up to a twentieth too fast or too slow, so that two of them are apart by less than a tenth.
    pub fn new(shown: Duration, may_drift: bool, now: Duration, chance: &mut Chance) -> Self {
        let speed = if may_drift { *chance.pick(&[1_000, 960, 1_040, 990]) } else { 1_000 };
        Self { shown, since: now, speed }
    }

    pub fn at(&self, now: Duration) -> Duration {
        self.shown + now.saturating_sub(self.since) * self.speed / 1_000
    }

    /// How long it takes until it has counted this time.
    pub fn takes(&self, counted: Duration) -> Duration {
        counted.min(Duration::from_secs(1_000_000)) * 1_000 / self.speed
    }

    pub fn jump(&mut self, to: Duration, now: Duration) {
        (self.shown, self.since) = (to, now);
    }
}
