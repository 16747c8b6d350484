//! Looks for a simpler execution that fails as well: one with fewer decisions, or smaller ones. It works on the
//! decisions alone, like the reducer of Hypothesis: <https://doi.org/10.4230/LIPIcs.ECOOP.2020.13>.

use super::chance::Chance;
use super::failure::Failure;
use super::tape::{Decision, Place};

/// The decisions of an execution that fails, and those of the simplest execution found that fails in the same way; `None` if it
/// does not fail. `goes_on`: whether to try another one.
pub fn shrink(
    recording: Chance,
    mut one: impl FnMut(&mut Chance),
    goes_on: impl FnMut() -> bool,
) -> Option<(Vec<Decision>, Vec<Decision>)> {
    let mut run = |mut chance: Chance| {
        let failure = Failure::of(|| one(&mut chance))?;
        Some((failure, chance.drawn()?))
    };
    let (failure, before) = run(recording)?;
    let fails = |decisions, most| {
        let (other, drawn) = run(Chance::repeating(decisions, most))?;
        other.is_like(&failure).then_some(drawn)
    };
    let after = Shrinker { best: before.clone(), fails, goes_on }.run();
    Some((before, after))
}

/// `fails` runs an execution by these decisions, of which it may draw at most the given number, and returns those that it drew if
/// it failed.
struct Shrinker<F, G> {
    best: Vec<Decision>,
    fails: F,
    goes_on: G,
}

impl<F, G> Shrinker<F, G>
where
    F: FnMut(Vec<u64>, usize) -> Option<Vec<Decision>>,
    G: FnMut() -> bool,
{
    /// The simplest execution that was found.
    fn run(mut self) -> Vec<Decision> {
        loop {
            let before = self.best.clone();
            self.delete_blocks();
            self.delete_iterations();
            self.lower_all();
            if self.best == before {
                return before;
            }
        }
    }

    /// Runs the decisions of the best execution after a change. Keeps the execution if it fails and is simpler.
    fn tries(&mut self, change: impl FnOnce(&mut Vec<u64>)) -> bool {
        if !(self.goes_on)() {
            return false;
        }
        let mut values = values(&self.best);
        change(&mut values);
        let Some(drawn) = (self.fails)(values, self.best.len()) else { return false };
        let is_simpler = size(&drawn) < size(&self.best);
        if is_simpler {
            self.best = drawn;
        }
        is_simpler
    }

    /// Deletes consecutive decisions: at first half of them, then ever fewer.
    fn delete_blocks(&mut self) {
        let mut length = self.best.len() / 2;
        while length > 0 {
            let mut at = self.best.len();
            while at > 0 {
                at = at.saturating_sub(if length > 8 { length } else { 1 }).min(self.best.len());
                self.tries(|values| drop(values.drain(at..values.len().min(at + length))));
            }
            length /= 2;
        }
    }

    /// Deletes iterations of loops: the decisions from one place in the target until the same place comes again.
    fn delete_iterations(&mut self) {
        for count in [16, 4, 1] {
            let mut at = self.best.len();
            while at > 0 {
                at = (at - 1).min(self.best.len().saturating_sub(1));
                while self.deletes_iterations(at, count) {}
            }
        }
    }

    /// Deletes `count` iterations that begin with the decision at `at`, and if that is not enough, lowers what may be the number
    /// of iterations: one of the two decisions before the loop.
    fn deletes_iterations(&mut self, at: usize, count: usize) -> bool {
        let Some(Decision { place, .. }) = self.best.get(at).copied() else { return false };
        let Some(end) = self.nth_after(at, place, count) else { return false };
        if self.tries(|values| drop(values.drain(at..end))) {
            return true;
        }
        let first = self.best.iter().position(|decision| decision.place == place).unwrap_or(at);
        let before = [first, first.saturating_sub(1), at, at.saturating_sub(1)];
        before.into_iter().filter_map(|behind| behind.checked_sub(1)).any(|number| {
            self.best[number].value >= count as u64
                && self.tries(|values| {
                    values[number] -= count as u64;
                    values.drain(at..end);
                })
        })
    }

    /// The index of the decision that is drawn at this place for the `count`-th time after `at`.
    fn nth_after(&self, at: usize, place: Place, count: usize) -> Option<usize> {
        (at + 1..self.best.len()).filter(|later| self.best[*later].place == place).nth(count - 1)
    }

    /// Lowers decisions: many to zero, then each as far as it goes.
    fn lower_all(&mut self) {
        for length in [64, 8] {
            for at in (0..self.best.len()).step_by(length) {
                self.tries(|values| values.iter_mut().skip(at).take(length).for_each(|value| *value = 0));
            }
        }
        let mut at = 0;
        while let Some(Decision { value, .. }) = self.best.get(at).copied() {
            if value > 0 && !self.lowers(at, 0) {
                let (mut passes, mut fails) = (0, value);
                while passes + 1 < fails {
                    let middle = passes + (fails - passes) / 2;
                    *(if self.lowers(at, middle) { &mut fails } else { &mut passes }) = middle;
                }
            }
            at += 1;
        }
    }

    fn lowers(&mut self, at: usize, to: u64) -> bool {
        self.tries(|values| {
            if let Some(value) = values.get_mut(at) {
                *value = to;
            }
        })
    }
}

fn values(decisions: &[Decision]) -> Vec<u64> {
    decisions.iter().map(|decision| decision.value).collect()
}

/// What makes an execution simple: few decisions first.
fn size(decisions: &[Decision]) -> (usize, Vec<u64>) {
    (decisions.len(), values(decisions))
}

#[test]
fn an_execution_shrinks_to_what_it_needs_to_fail() {
    use super::tape::{parse, to_text};

    let one = |chance: &mut Chance| {
        let mut sum = 0;
        for _ in 0..chance.size(100) {
            while chance.one_in(2) {
                chance.bytes(3);
            }
            let kind = *chance.pick(&["none", "one", "many"]);
            sum += if kind == "many" { chance.below(1_000) } else { usize::from(kind == "one") };
        }
        assert!(sum < 1_200, "the sum is {sum}");
    };
    let execution =
        (0..1_000).find(|execution| Failure::of(|| one(&mut Chance::new(1, *execution))).is_some()).unwrap();
    let (before, after) = shrink(Chance::recording(1, execution), one, || true).unwrap();
    assert!(before.len() > 50, "{before:?}");
    // Two iterations: bits and value of their number, then twice that no bytes follow, the kind and a number.
    let [_, 2, 0, 2, first, 0, 2, second] = values(&after)[..] else { panic!("{after:?}") };
    assert_eq!(first + second, 1_200);

    let repeated = || Chance::repeating(parse(&to_text(&after)), after.len());
    assert_eq!(shrink(repeated(), one, || true).unwrap(), (after.clone(), after.clone()));
    assert_eq!(shrink(Chance::repeating(values(&after), after.len() - 1), one, || true), None, "it is given up");
}
