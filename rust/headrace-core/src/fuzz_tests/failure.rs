//! How an execution failed.

use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::sync::Once;

thread_local! {
    /// Whether the panics of this thread are kept, and not printed.
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
    static LAST: RefCell<Option<Failure>> = const { RefCell::new(None) };
}

/// The place and the message of a panic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    place: String,
    message: String,
}

impl Failure {
    /// How the call panics, which is not printed; `None` if it does not.
    pub fn of(call: impl FnOnce()) -> Option<Self> {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            let before = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                if IS_QUIET.get() {
                    LAST.set(Some(Self::new(info)));
                } else {
                    before(info);
                }
            }));
        });
        IS_QUIET.set(true);
        let called = panic::catch_unwind(AssertUnwindSafe(call));
        IS_QUIET.set(false);
        LAST.take().filter(|_| called.is_err())
    }

    fn new(info: &PanicHookInfo<'_>) -> Self {
        let payload = info.payload();
        let text = payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied());
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        Self { place, message: text.unwrap_or_default().to_owned() }
    }

    /// Whether the same was wrong, perhaps of other values.
    pub fn is_like(&self, other: &Self) -> bool {
        self.place == other.place && self.kind() == other.kind()
    }

    /// The message up to the values that it shows, without its numbers.
    fn kind(&self) -> String {
        let text = self.message.split(['{', '[', '(', '"', '\n']).next().unwrap_or_default();
        text.chars().filter(|char| !char.is_ascii_digit()).collect()
    }
}

#[test]
fn failures_are_alike_if_only_values_differ() {
    let failure = |text: &str| Failure::of(|| panic!("{text}")).unwrap();
    assert!(failure("s1: 3 are lost: [1, 2]").is_like(&failure("s20: 4 are lost: []")));
    assert!(!failure("s1: 3 are lost").is_like(&failure("s1: 3 are found")));
    assert!(!failure("lost").is_like(&Failure::of(|| panic!("lost")).unwrap()), "they are at other places");
    assert_eq!(Failure::of(|| ()), None);
}
