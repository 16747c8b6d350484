//! Tells one lie, sometimes, so that a test can show that it is found.

use super::chance::Chance;

#[derive(Debug)]
pub struct Liar<L> {
    lie: Option<L>,
    chance: Chance,
}

impl<L: Copy + PartialEq> Liar<L> {
    /// `None`: it always says the truth.
    pub fn new(lie: Option<L>, chance: Chance) -> Self {
        Self { lie, chance }
    }

    /// Whether this is told now.
    pub fn lies(&mut self, lie: L) -> bool {
        self.lie == Some(lie) && self.chance.one_in(2)
    }
}
