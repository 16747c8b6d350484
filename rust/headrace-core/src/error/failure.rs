//! The outcome of a message that was not delivered.

use std::borrow::Cow;
use std::time::Duration;

use super::code::{self, Kind, Written};
use super::fault::MAX_MESSAGE;

/// The outcome of a message that was not delivered.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Failure {
    /// Whether trying again can help.
    pub kind: Kind,
    /// The first word of the server's reply, or one of [`code`].
    pub code: Cow<'static, str>,
    /// A sentence for people: at most [`MAX_MESSAGE`] characters, no secret, no message content.
    pub message: String,
    /// Whether the message may be in the stream nevertheless.
    pub written: Written,
}

impl Failure {
    /// Returns the failure with `more` at the end of its message.
    pub(crate) fn with_more(&self, more: &str) -> Self {
        let kept: String = self.message.chars().take(MAX_MESSAGE - more.chars().count().min(MAX_MESSAGE)).collect();
        Self { message: kept + more, ..self.clone() }
    }

    /// Returns the failure with a note that the retry policy allows no more tries.
    pub(crate) fn given_up(&self, tries: u32, took: Duration) -> Self {
        self.with_more(&format!(" (given up after {tries} tries in {:.1} s)", took.as_secs_f64()))
    }

    /// Whether the server was not reached, or was lost.
    pub(crate) fn is_of_connection(&self) -> bool {
        code::is_away(&self.code)
    }
}
