//! Places where a test makes headrace panic, to see that no outcome is lost. A build without the feature `failpoints` has
//! none of them.

/// Panics if a test has chosen this place.
#[inline(always)]
pub(crate) fn point(_place: &'static str) {
    #[cfg(any(test, feature = "failpoints"))]
    armed::pass(_place);
}

#[cfg(any(test, feature = "failpoints"))]
pub use armed::arm;

#[cfg(any(test, feature = "failpoints"))]
mod armed {
    use std::cell::RefCell;

    thread_local! {
        /// The place, and how many times it is passed before.
        static ARMED: RefCell<Option<(String, u32)>> = const { RefCell::new(None) };
    }

    /// Lets this thread panic at a place, once, after it has passed it so many times. Returns whether one that was chosen
    /// before is still to come.
    pub fn arm(place: Option<&str>, after: u32) -> bool {
        ARMED.replace(place.map(|place| (place.to_owned(), after))).is_some()
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
            panic!("a test chose to panic at {place}");
        }
    }
}
