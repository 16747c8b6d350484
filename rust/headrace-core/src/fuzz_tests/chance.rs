//! The decisions of a target.

use std::panic::Location;

use super::tape::{Decision, Tape};

/// Random numbers from a seed: splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014). Or the
/// decisions of an earlier execution, which are repeated.
#[derive(Debug)]
pub struct Chance {
    state: u64,
    /// What is drawn, if it is recorded.
    tape: Option<Box<Tape>>,
}

impl Chance {
    /// The random numbers of one execution.
    pub fn new(seed: u64, execution: u64) -> Self {
        let mut chance = Self { state: seed, tape: None };
        let state = chance.random() ^ execution.wrapping_mul(0xd605_1b57_5a2b_bd4d);
        Self { state, tape: None }
    }

    /// The same, recorded.
    pub fn recording(seed: u64, execution: u64) -> Self {
        Self { tape: Some(Box::new(Tape::random())), ..Self::new(seed, execution) }
    }

    /// These decisions, and zeros behind them. An execution that draws more than `most` is given up.
    pub fn repeating(decisions: Vec<u64>, most: usize) -> Self {
        Self { state: 0, tape: Some(Box::new(Tape::repeating(decisions, most))) }
    }

    /// The decisions that were recorded; `None` if the execution was given up.
    pub fn drawn(self) -> Option<Vec<Decision>> {
        self.tape.and_then(|tape| tape.drawn())
    }

    #[track_caller]
    pub fn next(&mut self) -> u64 {
        self.decide(u64::MAX, |random| random)
    }

    /// A number below `end`; 0 if `end` is 0.
    #[track_caller]
    pub fn below(&mut self, end: usize) -> usize {
        self.decide((end as u64).saturating_sub(1), |random| scaled(random, end)) as usize
    }

    /// True in one of `times` cases, on average.
    #[track_caller]
    pub fn one_in(&mut self, times: usize) -> bool {
        // What is rare is not the simplest decision.
        let is_drawn = self.decide(u64::from(times > 1), |random| u64::from(scaled(random, times) == 0)) == 1;
        is_drawn || times <= 1
    }

    #[track_caller]
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    /// Like [`pick`](Self::pick), for byte strings.
    #[track_caller]
    pub fn part(&mut self, of: &[&'static [u8]]) -> &'static [u8] {
        of[self.below(of.len())]
    }

    /// A number below `end`: usually small, occasionally as large as possible.
    #[track_caller]
    pub fn size(&mut self, end: usize) -> usize {
        let bits = self.below(usize::BITS as usize - end.leading_zeros() as usize + 1);
        self.below(end.min(1 << bits))
    }

    #[track_caller]
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count);
        for _ in 0..count {
            bytes.push(self.decide(u64::from(u8::MAX), |random| random & 0xff) as u8);
        }
        bytes
    }

    /// A decision up to `largest`: `of` makes it of a random number.
    #[inline]
    #[track_caller]
    fn decide(&mut self, largest: u64, of: impl FnOnce(u64) -> u64) -> u64 {
        let random = of(self.random());
        match &mut self.tape {
            None => random,
            Some(tape) => tape.decide(largest, random, Location::caller()),
        }
    }

    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// A random number below `end`; 0 if `end` is 0.
fn scaled(random: u64, end: usize) -> u64 {
    ((u128::from(random) * end as u128) >> 64) as u64
}
