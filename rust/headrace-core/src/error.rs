//! Errors of calls ([`Error`]), faults of connections and error replies ([`Fault`]), the outcome of a message that was not
//! delivered ([`Failure`]), and the table of their codes ([`code`]).

use std::fmt;

mod classify;
pub mod code;
mod failure;
mod fault;

pub use classify::Classifier;
pub use code::{Classify, Kind, Written};
pub use failure::Failure;
pub use fault::{Fault, MAX_MESSAGE, ReplyText};

/// The result of a call that may be refused.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call was refused or failed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// An option has an unknown name, a wrong type, a value out of range, or contradicts another one.
    Config {
        /// The option's name, as the caller wrote it.
        option: String,
        /// The whole sentence; it names the option, the value (never a secret) and what is allowed.
        message: String,
    },
    /// A requested column of a record batch is missing, or its type cannot be written.
    Schema {
        /// The whole sentence; it names the column, its type and what is allowed.
        message: String,
    },
    /// An argument of one message is invalid: a message ID out of range, or an entry ID that is not one.
    Message {
        /// The whole sentence.
        message: String,
    },
    /// The dispatcher cannot do this now: messages wait for their outcomes.
    State {
        /// The whole sentence; it names the call to make first.
        message: String,
    },
    /// There is no room in the window. Nothing was taken: make room, and try again.
    Full,
    /// The record batch reader that the caller handed in failed.
    Reader {
        /// The reader's message.
        message: String,
    },
    /// Entries were trimmed before they were read.
    DataLoss {
        /// The key of the stream.
        stream: Vec<u8>,
        /// How many entries.
        lost: u64,
        /// Whether the number is exact; otherwise it is an upper bound.
        exact: bool,
        /// The position of a reader that continues after the gap.
        position: String,
        /// The whole sentence.
        message: String,
    },
    /// A value of an entry does not fit its column.
    Field {
        /// The key of the stream.
        stream: Vec<u8>,
        /// The ID of the entry.
        entry_id: String,
        /// The number of entries before it that a reader has lost since the last batch or error of the stream, and not reported.
        lost: u64,
        /// Whether `lost` is exact; otherwise it is an upper bound.
        exact: bool,
        /// The position of a reader that continues after the entry.
        position: String,
        /// The whole sentence.
        message: String,
    },
    /// A stream is not the one that was read before.
    StreamReplaced {
        /// The key of the stream.
        stream: Vec<u8>,
        /// The position of a reader that begins with the oldest entry of this stream, and continues in the others.
        position: String,
        /// The whole sentence.
        message: String,
    },
    /// The server refused a command about one of the streams of a reader or consumer. The others continue.
    StreamRefused {
        /// The key of the stream.
        stream: Vec<u8>,
        /// The first word of the server's reply.
        code: String,
        /// Whether trying again can help.
        kind: Kind,
        /// The whole sentence; it names the stream and the command.
        message: String,
    },
    /// Entries of a batch may belong to another consumer by now.
    LeaseLost {
        /// The key of the stream.
        stream: Vec<u8>,
        /// The IDs of the entries.
        entry_ids: Vec<String>,
        /// The whole sentence.
        message: String,
    },
    /// A defect in headrace ended the call. The outcomes of the messages are in the next report.
    Internal {
        /// The operation, without data.
        message: String,
    },
    /// The server was not reached, or the connection was lost before it had replied.
    Connection {
        /// The whole sentence; it names the endpoint.
        message: String,
    },
    /// The server refused a command, or something that connecting needs cannot be read now.
    Command {
        /// The first word of the server's reply, or one of [`code`].
        code: String,
        /// Whether trying again can help.
        kind: Kind,
        /// The whole sentence; it names the command, and the right that it needs.
        message: String,
    },
    /// A consumer group, or its stream, does not exist.
    GroupMissing {
        /// The key of the stream.
        stream: Vec<u8>,
        /// The whole sentence; it names the stream and the group.
        message: String,
    },
    /// Another call uses the object, and this one cannot go on beside it.
    InUse {
        /// The whole sentence.
        message: String,
    },
    /// The object was closed before.
    Closed {
        /// `dispatcher`, `reader` or `consumer`.
        what: &'static str,
    },
    /// The caller asked to stop while the call waited (Ctrl-C).
    Interrupted,
}

impl Error {
    /// An [`Error::Command`] for a refusal; `message` is the sentence, to which advice is added.
    pub(crate) fn refused(fault: &Fault, message: &str) -> Self {
        let (code, message) = (fault.code.to_string(), code::advised(&fault.code, message));
        Self::Command { code, kind: Classifier::default().kind(fault), message }
    }

    /// An [`Error::Command`] for a refusal, with the fault's message as the sentence.
    pub(crate) fn refusal(fault: &Fault) -> Self {
        Self::refused(fault, &fault.message)
    }

    /// An [`Error::StreamRefused`] for a refusal; `message` is the sentence, to which advice is added.
    pub(crate) fn stream_refused(stream: &[u8], fault: &Fault, message: &str) -> Self {
        let (code, message) = (fault.code.to_string(), code::advised(&fault.code, message));
        Self::StreamRefused { stream: stream.to_vec(), code, kind: Classifier::default().kind(fault), message }
    }

    /// An [`Error::Connection`] for a fault with `code`; `message` is the sentence, to which advice is added.
    pub(crate) fn lost(code: &str, message: &str) -> Self {
        Self::Connection { message: code::advised(code, message) }
    }

    /// An [`Error::Config`] for `option`.
    pub fn config(option: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Config { option: option.into(), message: message.into() }
    }

    /// An [`Error::Schema`].
    pub fn schema(message: impl Into<String>) -> Self {
        Self::Schema { message: message.into() }
    }

    /// An [`Error::Message`].
    pub fn message(message: impl Into<String>) -> Self {
        Self::Message { message: message.into() }
    }

    /// An [`Error::State`].
    pub fn state(message: impl Into<String>) -> Self {
        Self::State { message: message.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config { message, .. }
            | Self::Schema { message }
            | Self::Message { message }
            | Self::State { message }
            | Self::InUse { message }
            | Self::Connection { message }
            | Self::Command { message, .. }
            | Self::GroupMissing { message, .. }
            | Self::DataLoss { message, .. }
            | Self::Field { message, .. }
            | Self::StreamRefused { message, .. }
            | Self::LeaseLost { message, .. }
            | Self::StreamReplaced { message, .. } => f.write_str(message),
            Self::Reader { message } => write!(f, "cannot read the next record batch: {message}"),
            Self::Internal { message } => write!(f, "a defect in headrace ended this call: {message}"),
            Self::Full => f.write_str("there is no room in the window; make room before the next message"),
            Self::Closed { what } => write!(f, "the {what} is closed; make a new one"),
            Self::Interrupted => f.write_str("interrupted"),
        }
    }
}

impl std::error::Error for Error {}
