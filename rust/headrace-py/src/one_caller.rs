//! Objects that take one caller at a time.

use std::sync::{Mutex, MutexGuard, TryLockError};

use pyo3::prelude::*;

use crate::exception::raise;

/// What to do about an object that two threads use, as the end of a sentence.
pub(crate) const ONE_CALLER: &str =
    "it takes one caller at a time; create one per thread, in a threading.local() for example";

/// Locks an object for a call, including against a signal handler that runs during it. A second caller gets the message of
/// `in_use`.
#[inline]
pub(crate) fn lock<T>(object: &Mutex<T>, in_use: impl FnOnce() -> String) -> PyResult<MutexGuard<'_, T>> {
    match object.try_lock() {
        Ok(locked) => Ok(locked),
        Err(TryLockError::WouldBlock) => Err(raise("ConcurrentUseError", in_use())),
        // The binding panicked. The core contains its own panics, so its state is consistent.
        Err(TryLockError::Poisoned(poisoned)) => {
            object.clear_poison();
            Ok(poisoned.into_inner())
        }
    }
}
