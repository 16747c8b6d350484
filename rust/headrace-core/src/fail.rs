//! Fail points: places where a test makes headrace panic, to check that no outcome is lost. They exist only with the
//! feature `failpoints` and in the crate's own tests.

/// Panics if a test has armed this fail point.
#[cfg(any(test, fuzzing, feature = "failpoints"))]
pub(crate) fn point(place: &'static str) {
    armed::pass(place);
}

#[inline]
#[cfg(not(any(test, fuzzing, feature = "failpoints")))]
pub(crate) fn point(_: &'static str) {}

#[cfg(any(test, fuzzing, feature = "failpoints"))]
#[allow(unreachable_pub)] // reachable with the feature
pub use armed::arm;

#[cfg(any(test, fuzzing, feature = "failpoints"))]
mod armed {
    use std::cell::RefCell;

    const MESSAGE: &str = "a test chose to panic here";

    thread_local! {
        /// The armed fail point, and how many times it is passed before it panics.
        static ARMED: RefCell<Option<(String, u32)>> = const { RefCell::new(None) };
    }

    /// Arms a fail point: this thread panics there once, after it has passed it `after` times. Returns whether the
    /// previous one was still armed.
    #[allow(unreachable_pub)]
    pub fn arm(place: Option<&str>, after: u32) -> bool {
        #[cfg(any(test, fuzzing))]
        silence();
        ARMED.replace(place.map(|place| (place.to_owned(), after))).is_some()
    }

    /// Silences the armed panics. With the feature, the binding's panic hook does this.
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
        #[allow(clippy::panic)] // the purpose of a fail point
        if is_due {
            std::panic::panic_any(MESSAGE);
        }
    }
}
