//! Reproducible random numbers.

/// Random numbers from a seed: splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
#[derive(Debug, Clone)]
pub struct Chance(u64);

impl Chance {
    /// The random numbers of one execution.
    pub fn new(seed: u64, execution: u64) -> Self {
        let mut chance = Self(seed);
        Self(chance.next() ^ execution.wrapping_mul(0xd605_1b57_5a2b_bd4d))
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }

    /// True in one of `times` cases, on average.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    /// Like [`pick`](Self::pick), for byte strings.
    pub fn part(&mut self, of: &[&'static [u8]]) -> &'static [u8] {
        of[self.below(of.len())]
    }

    /// A number below `end`: usually small, occasionally as large as possible.
    pub fn size(&mut self, end: usize) -> usize {
        let bits = self.below(usize::BITS as usize - end.leading_zeros() as usize + 1);
        self.below(end.min(1 << bits))
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }
}
