//! Panics that end one step, not the process and not the caller's dispatcher.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// What is left of a panic: where it was is known to the panic hook alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Panicked;

/// ScriptBatch a step. What it was changing is the caller's to restore, or to give up.
#[inline]
pub(crate) fn contain<T>(step: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(step)).map_err(|_| Panicked)
}
