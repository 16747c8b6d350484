//! The decisions of one execution: those that it drew, and those of an earlier execution that it repeats.

use std::panic::Location;

/// Where a target draws a decision. The iterations of a loop draw at the same places.
pub type Place = &'static Location<'static>;

/// A decision that was drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// Zero is the simplest one.
    pub value: u64,
    pub place: Place,
}

/// What an execution draws.
#[derive(Debug, Default)]
pub struct Tape {
    /// The decisions to repeat, as far as they go: zeros follow. `None`: they are random.
    given: Option<Vec<u64>>,
    /// The number of decisions after which the execution is given up.
    most: usize,
    drawn: Vec<Decision>,
    is_cut: bool,
}

impl Tape {
    pub fn random() -> Self {
        Self { most: usize::MAX, ..Self::default() }
    }

    pub fn repeating(given: Vec<u64>, most: usize) -> Self {
        Self { given: Some(given), most, ..Self::default() }
    }

    /// The next decision, up to `largest`. Panics if the execution needs too many.
    pub fn decide(&mut self, largest: u64, random: u64, place: Place) -> u64 {
        if largest == 0 {
            return 0;
        }
        if self.drawn.len() == self.most {
            self.is_cut = true;
            panic!("it draws more than {} decisions", self.most);
        }
        let given = self.given.as_ref().map(|given| given.get(self.drawn.len()).copied().unwrap_or_default());
        let value = given.map_or(random, |given| given.min(largest));
        self.drawn.push(Decision { value, place });
        value
    }

    /// The decisions that were drawn; `None` if the execution was given up.
    pub fn drawn(self) -> Option<Vec<Decision>> {
        (!self.is_cut).then_some(self.drawn)
    }
}

/// Decisions as a word of a command line: numbers between commas. Zeros are left out, and those at the end with their commas.
pub fn to_text(decisions: &[Decision]) -> String {
    let shown = |decision: &Decision| if decision.value == 0 { String::new() } else { decision.value.to_string() };
    let text = decisions.iter().map(shown).collect::<Vec<_>>().join(",");
    let text = text.trim_end_matches(',');
    if text.is_empty() { "0".to_owned() } else { text.to_owned() }
}

/// The values of such a text.
pub fn parse(text: &str) -> Vec<u64> {
    text.split(',').map(|number| if number.is_empty() { 0 } else { number.parse().unwrap() }).collect()
}
