//! Places where a test makes headrace panic, to see that no outcome is lost. A build without the feature `failpoints` has
//! none of them.

/// Panics if a test has chosen this place.
#[cfg(any(test, fuzzing, feature = "failpoints"))]
pub(crate) fn point(place: &'static str) {
    armed::pass(place);
}

#[inline]
#[cfg(not(any(test, fuzzing, feature = "failpoints")))]
pub(crate) fn point(_: &'static str) {}

#[cfg(any(test, fuzzing, feature = "failpoints"))]
#[allow(unreachable_pub)] // but with the feature
pub use armed::arm;

#[cfg(any(test, fuzzing, feature = "failpoints"))]
mod armed {
    use std::cell::RefCell;

    const MESSAGE: &str = "a test chose to panic here";

    thread_local! {
        /// The place, and how many times it is passed before.
        static ARMED: RefCell<Option<(String, u32)>> = const { RefCell::new(None) };
    }

    /// Lets this thread panic at a place, once, when it has passed it `after` times. Returns whether one that was chosen
    /// before is still to come.
    #[allow(unreachable_pub)]
    pub fn arm(place: Option<&str>, after: u32) -> bool {
        #[cfg(any(test, fuzzing))]
        silence();
        ARMED.replace(place.map(|place| (place.to_owned(), after))).is_some()
    }

    /// Prints no panics that a test chose: with the feature that is the hook of the binding.
    #[cfg(any(test, fuzzing))]
    fn silence() {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                if info.payload().downcast_ref::<&str>() != Some(&MESSAGE) {
                    before(info);
                }
            }));
        });
    }

    pub(super) fn pass(place: &'static str) {
        let is_due = ARMED.with_borrow_mut(|armed| match armed {
            Some((chosen, 0)) if chosen == place => armed.take().is_some(),
            Some((chosen, after)) if chosen == place => {
                *after -= 1;
                false
            }
            _ => false,
        });
        #[allow(clippy::panic)] // what it is for
        if is_due {
            std::panic::panic_any(MESSAGE);
        }
    }
}
