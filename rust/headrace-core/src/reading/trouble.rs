//! Why a connection cannot be used.

use crate::error::{Error, Fault};

/// Why a connection cannot be used: a fault, which may be temporary, or an error for the caller.
pub(crate) enum Trouble {
    Fault(Fault),
    Error(Error),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}
