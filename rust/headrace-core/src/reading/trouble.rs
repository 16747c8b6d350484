//! Why a connection cannot be used.

use crate::endpoint::Endpoint;
use crate::error::{Error, Fault, code};

/// Why a connection cannot be used: a fault, which may be temporary, or an error for the caller.
#[derive(Debug)]
pub(crate) enum Trouble {
    Fault(Fault),
    Error(Error),
}

impl Trouble {
    /// The trouble, with the server's name if it is a timeout.
    pub(crate) fn naming(self, endpoint: &Endpoint) -> Self {
        match self {
            Self::Fault(fault) if fault.code == code::TIMEOUT => {
                Self::Fault(Fault { message: format!("{endpoint}: {}", fault.message), ..fault })
            }
            trouble => trouble,
        }
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}
