//! The cells that hold the values of counters. One thread at a time writes a cell, any thread reads it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The value of a counter at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CounterValue {
    /// A number of things.
    Count(u64),
    /// A duration, in seconds.
    Seconds(f64),
    /// A time, in milliseconds since 1970.
    Time(Option<u64>),
    /// The number of one thing among others, from 0.
    Index(Option<u64>),
    /// Whether something is so.
    Flag(bool),
}

/// A field of a struct of counters.
pub(crate) trait Cell {
    /// The value before anything was counted. Its variant is that of each value.
    const ZERO: CounterValue;

    fn value(&self) -> CounterValue;
}

/// A number of things.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds to the counter. Only one thread may do so: this is a load and a store, not an atomic addition.
    #[inline]
    pub(crate) fn add(&self, count: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(count), Relaxed);
    }

    /// Sets a value that is not a sum.
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl Cell for Counter {
    const ZERO: CounterValue = CounterValue::Count(0);

    fn value(&self) -> CounterValue {
        CounterValue::Count(self.get())
    }
}

/// A count whose owner has a lock.
impl Cell for u64 {
    const ZERO: CounterValue = CounterValue::Count(0);

    fn value(&self) -> CounterValue {
        CounterValue::Count(*self)
    }
}

/// A duration.
#[derive(Debug, Default)]
pub(crate) struct Seconds {
    nanos: Counter,
}

impl Seconds {
    pub(crate) fn add(&self, time: Duration) {
        self.nanos.add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(crate) fn get(&self) -> f64 {
        Duration::from_nanos(self.nanos.get()).as_secs_f64()
    }
}

impl Cell for Seconds {
    const ZERO: CounterValue = CounterValue::Seconds(0.0);

    fn value(&self) -> CounterValue {
        CounterValue::Seconds(self.get())
    }
}

/// A number that may be missing.
#[derive(Debug, Default)]
struct Optional {
    /// 0: it is missing.
    plus_one: Counter,
}

impl Optional {
    fn set(&self, value: Option<u64>) {
        self.plus_one.set(value.map_or(0, |value| value.saturating_add(1)));
    }

    fn get(&self) -> Option<u64> {
        self.plus_one.get().checked_sub(1)
    }
}

/// A time.
#[derive(Debug, Default)]
pub(crate) struct Time(Optional);

impl Time {
    /// `unix_ms`: in milliseconds since 1970.
    pub(crate) fn set(&self, unix_ms: Option<u64>) {
        self.0.set(unix_ms);
    }
}

impl Cell for Time {
    const ZERO: CounterValue = CounterValue::Time(None);

    fn value(&self) -> CounterValue {
        CounterValue::Time(self.0.get())
    }
}

/// The number of one thing among others.
#[derive(Debug, Default)]
pub(crate) struct Index(Optional);

impl Index {
    pub(crate) fn set(&self, index: Option<usize>) {
        self.0.set(index.map(|index| index as u64));
    }
}

impl Cell for Index {
    const ZERO: CounterValue = CounterValue::Index(None);

    fn value(&self) -> CounterValue {
        CounterValue::Index(self.0.get())
    }
}

/// Whether something is so.
#[derive(Debug, Default)]
pub(crate) struct Flag(Counter);

impl Flag {
    pub(crate) fn set(&self, flag: bool) {
        self.0.set(flag.into());
    }
}

impl Cell for Flag {
    const ZERO: CounterValue = CounterValue::Flag(false);

    fn value(&self) -> CounterValue {
        CounterValue::Flag(self.0.get() > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_number_is_none_and_not_0() {
        let (time, index) = (Time::default(), Index::default());
        assert_eq!((time.value(), index.value()), (CounterValue::Time(None), CounterValue::Index(None)));
        time.set(Some(0));
        index.set(Some(7));
        assert_eq!((time.value(), index.value()), (CounterValue::Time(Some(0)), CounterValue::Index(Some(7))));
        time.set(Some(u64::MAX)); // a stream may have such an ID
        index.set(None);
        assert_eq!((time.value(), index.value()), (CounterValue::Time(Some(u64::MAX - 1)), CounterValue::Index(None)));
    }
}
