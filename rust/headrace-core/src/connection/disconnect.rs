//! The end of a connection.

use crate::error::Fault;

/// The end of a connection, and what it means for the commands in flight.
#[derive(Debug, Clone)]
pub(crate) struct Disconnect {
    pub(crate) fault: Fault,
    /// Whether commands that were handed over may have been executed.
    pub(crate) may_be_written: bool,
    /// Whether nothing is sent again: the caller no longer waits.
    pub(crate) is_final: bool,
}

impl From<Fault> for Disconnect {
    fn from(fault: Fault) -> Self {
        Self { fault, may_be_written: true, is_final: false }
    }
}
