//! Containment of panics: a panic ends one step, not the process or the caller's dispatcher.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Indicates that a step panicked. Only the panic hook knows where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Panicked;

/// Runs a step and catches a panic in it. The caller restores or drops whatever the step was changing.
#[inline]
pub(crate) fn contain<T>(step: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(step)).map_err(|_| Panicked)
}
