//! What the core refuses ([`Error`]), what can go wrong with a connection ([`Fault`]), and the one place where a failure
//! is called permanent or retryable ([`Classifier`]).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

/// The result of a call that may be refused.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call was refused. Nothing was sent for it.
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
    /// A record batch does not have the columns that were asked for, or not with a type that can be written.
    Schema {
        /// The whole sentence; it names the column, its type and what is allowed.
        message: String,
    },
    /// An argument of one message is of no use: a message ID out of range, an entry ID that is none.
    Message {
        /// The whole sentence.
        message: String,
    },
    /// The dispatcher cannot do this now: messages wait for their outcomes.
    State {
        /// The whole sentence; it says what to do before.
        message: String,
    },
    /// The record batch reader that the caller handed in failed.
    Reader {
        /// What the reader said.
        message: String,
    },
    /// A defect of headrace ended the call. What became of the messages is in the next report.
    Internal {
        /// What was being done: no data.
        message: String,
    },
    /// The dispatcher was closed before.
    Closed,
    /// The caller asked to stop while the call waited (Ctrl-C).
    Interrupted,
}

impl Error {
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
            | Self::State { message } => f.write_str(message),
            Self::Reader { message } => write!(f, "cannot read the next record batch: {message}"),
            Self::Internal { message } => write!(f, "a defect of headrace ended this call: {message}"),
            Self::Closed => f.write_str("the dispatcher is closed; make a new one"),
            Self::Interrupted => f.write_str("interrupted"),
        }
    }
}

impl std::error::Error for Error {}

/// Whether trying again can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Waiting changes nothing: somebody has to act.
    Permanent,
    /// The same message may be delivered later.
    Retryable,
}

impl Kind {
    /// `"permanent"` or `"retryable"`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Permanent => "permanent",
            Self::Retryable => "retryable",
        }
    }
}

/// Whether a failed message may be in the stream all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Written {
    /// It is not: the server refused it, or not a byte of it was handed over.
    No,
    /// Nobody knows: it was handed over, at least in part, and its reply never came.
    Unknown,
}

impl Written {
    /// `"no"` or `"unknown"`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::No => "no",
            Self::Unknown => "unknown",
        }
    }
}

/// The outcome of a message that was not delivered.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Failure {
    /// Whether trying again can help.
    pub kind: Kind,
    /// The first word of the server's reply, or one of [`code`].
    pub code: Cow<'static, str>,
    /// A sentence for people: at most [`MAX_MESSAGE`] characters, no secret, no message content.
    pub message: String,
    /// Whether the message may be in the stream all the same.
    pub written: Written,
}

impl Failure {
    /// The same, with more said.
    pub(crate) fn with_more(&self, more: &str) -> Self {
        let kept: String = self.message.chars().take(MAX_MESSAGE - more.chars().count().min(MAX_MESSAGE)).collect();
        Self { message: kept + more, ..self.clone() }
    }

    /// Whether the server was not reached, or was lost.
    pub(crate) fn is_of_connection(&self) -> bool {
        code::OF_CONNECTION.contains(&&*self.code)
    }
}

/// The codes that are ours. Every other code is the first word of a server's error reply.
pub mod code {
    /// The server refused the connection, or could not be reached.
    pub const CONNECT: &str = "CONNECT";
    /// The host name has no address.
    pub const DNS: &str = "DNS";
    /// Nothing came in time: while connecting, or while replies were owed.
    pub const TIMEOUT: &str = "TIMEOUT";
    /// The connection was reset.
    pub const RESET: &str = "RESET";
    /// The server closed the connection.
    pub const EOF: &str = "EOF";
    /// The TLS handshake failed: trust, name, expiry, client certificate.
    pub const TLS: &str = "TLS";
    /// A reply that cannot be one to what was sent.
    pub const PROTOCOL: &str = "PROTOCOL";
    /// A file or variable that the endpoint names cannot be read now, or who was asked for a password gave none.
    pub const CONFIG: &str = "CONFIG";
    /// A defect of headrace ended the call that the message was in.
    pub const INTERNAL: &str = "INTERNAL";
    /// The caller interrupted the call before this message was handed over.
    pub const INTERRUPTED: &str = "INTERRUPTED";
    /// NOMKSTREAM, and the stream does not exist.
    pub const NO_STREAM: &str = "NO_STREAM";
    /// The entry's ID is below `minid`: it was trimmed in the same command, or will be.
    pub const TRIMMED: &str = "TRIMMED";
    /// The message is larger than the server takes (`proto-max-bulk-len`).
    pub const TOO_LARGE: &str = "TOO_LARGE";
    /// The payload is null.
    pub const NULL_PAYLOAD: &str = "NULL_PAYLOAD";
    /// Every field of the row is null.
    pub const EMPTY: &str = "EMPTY";
    /// The row's stream key is empty.
    pub const BAD_STREAM_KEY: &str = "BAD_STREAM_KEY";
    /// The row's entry ID is not of a form that XADD takes.
    pub const BAD_ENTRY_ID: &str = "BAD_ENTRY_ID";
    /// The row has a value that its type does not allow: a time outside a day, a null where none may be.
    pub const BAD_VALUE: &str = "BAD_VALUE";

    /// Exactly once: an earlier row of the same stream was not written, and rows stay in order.
    pub const BLOCKED: &str = "BLOCKED";
    /// Exactly once: the marker is gone or behind rows that were acknowledged.
    pub const MARKER_LOST: &str = "MARKER_LOST";
    /// The server cannot do what an option asks for.
    pub const UNSUPPORTED: &str = "UNSUPPORTED";
    /// `exactly_once_key` is the message ID, and there is none.
    pub const NULL_MESSAGE_ID: &str = "NULL_MESSAGE_ID";
    /// `exactly_once_key` is the message ID, which another message of the batch has.
    pub const DUPLICATE_ID: &str = "DUPLICATE_ID";
    /// `exactly_once_key` is the message ID, and the batch has more messages than are kept apart.
    pub const TOO_MANY: &str = "TOO_MANY";
    /// Durability: written, but it is not known that as many replicas or files as were asked for have it.
    pub const NOT_REPLICATED: &str = "NOT_REPLICATED";

    /// The server was not reached, or was lost.
    pub(crate) const OF_CONNECTION: [&str; 5] = [CONNECT, DNS, TIMEOUT, RESET, EOF];

    /// All of them, for documentation and its test.
    pub const ALL: [&str; 25] = [
        CONNECT,
        DNS,
        TIMEOUT,
        RESET,
        EOF,
        TLS,
        PROTOCOL,
        CONFIG,
        INTERNAL,
        INTERRUPTED,
        NO_STREAM,
        TRIMMED,
        TOO_LARGE,
        NULL_PAYLOAD,
        EMPTY,
        BAD_STREAM_KEY,
        BAD_ENTRY_ID,
        BAD_VALUE,
        BLOCKED,
        MARKER_LOST,
        UNSUPPORTED,
        NULL_MESSAGE_ID,
        DUPLICATE_ID,
        TOO_MANY,
        NOT_REPLICATED,
    ];
}

/// The longest sentence that is kept of an error, in characters.
pub const MAX_MESSAGE: usize = 256;

/// The longest code that is kept of an error reply. Servers' own have at most 16 characters.
const MAX_CODE: usize = 32;

/// Something went wrong on a connection, or a reply was an error: not yet called permanent or retryable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The first word of the server's reply (`WRONGTYPE`), or one of [`code`].
    pub code: Cow<'static, str>,
    /// A sentence for people: at most [`MAX_MESSAGE`] characters, no secret, no message content.
    pub message: String,
    /// Whether this was an error reply to AUTH.
    pub in_auth: bool,
    /// Which of the texts under `ERR` this is, as far as it matters.
    pub text: ReplyText,
}

/// The error replies whose code (`ERR`) says too little: told apart by these exact beginnings, never by a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyText {
    /// Any other.
    Other,
    /// `ERR max number of clients reached`: unsolicited, so it may come in answer to anything.
    MaxClients,
    /// `ERR AUTH <password> called without any password configured …`.
    Auth,
    /// `ERR Protocol error: …`; the server closes the connection after it.
    ProtocolError,
    /// `ERR unknown command …`, and in a script `ERR Unknown command called from script` or
    /// `ERR Unknown Redis command called from …`: it was renamed, or the server never had it.
    UnknownCommand,
    /// `ERR wrong number …`, `ERR Invalid stream ID …`, `ERR syntax error …`.
    BadCommand,
}

const REPLY_TEXTS: [(&str, ReplyText); 9] = [
    ("ERR max number of clients", ReplyText::MaxClients),
    ("ERR AUTH", ReplyText::Auth),
    ("ERR Protocol error", ReplyText::ProtocolError),
    ("ERR unknown command", ReplyText::UnknownCommand),
    ("ERR Unknown command called from", ReplyText::UnknownCommand),
    ("ERR Unknown Redis command called from", ReplyText::UnknownCommand),
    ("ERR wrong number", ReplyText::BadCommand),
    ("ERR Invalid stream ID", ReplyText::BadCommand),
    ("ERR syntax error", ReplyText::BadCommand),
];

impl Fault {
    /// A fault of our own: `code` is one of [`code`].
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code: Cow::Borrowed(code), message: cut(&message.into()), in_auth: false, text: ReplyText::Other }
    }

    /// An error reply, given without its leading `-` and its line end.
    ///
    /// The arguments that "unknown command" echoes are left out: they hold the message.
    pub fn from_reply(line: &[u8]) -> Self {
        let line = String::from_utf8_lossy(line);
        let first_word = line.split(' ').next().unwrap_or_default();
        let is_code = (1..=MAX_CODE).contains(&first_word.len())
            && first_word.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_');
        // Ours say what happened here; a server cannot.
        let is_code = is_code && !code::ALL.contains(&first_word);
        let code = if is_code { Cow::Owned(first_word.to_owned()) } else { Cow::Borrowed("ERR") };
        let text =
            REPLY_TEXTS.iter().find(|(start, _)| line.starts_with(start)).map_or(ReplyText::Other, |(_, text)| *text);
        let said = line.split_once(", with args beginning with").map_or(&*line, |(before, _)| before);
        Self { code, message: cut(said), in_auth: false, text }
    }

    /// Whether the server was not reached, or was lost.
    pub(crate) fn is_of_connection(&self) -> bool {
        code::OF_CONNECTION.contains(&&*self.code)
    }

    /// Whether a server refused the password, and may take another one.
    pub(crate) fn is_of_password(&self) -> bool {
        self.text == ReplyText::Auth || OF_PASSWORD.contains(&&*self.code)
    }

    /// The same fault, with the command that was refused named before the server's words.
    #[must_use]
    pub fn of_command(mut self, command: &str) -> Self {
        self.message = cut(&format!("{command} was refused: {}", self.message));
        self.in_auth = command == "AUTH";
        self
    }

    /// Whether this is an error reply with which a server ends a connection, whatever it was asked.
    pub(crate) fn ends_connection(&self) -> bool {
        matches!(self.text, ReplyText::MaxClients | ReplyText::ProtocolError) || self.code == "DENIED"
    }
}

/// At most [`MAX_MESSAGE`] characters, and no control characters: messages end up in logs.
fn cut(text: &str) -> String {
    text.chars().take(MAX_MESSAGE).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Which failures are permanent, beside the ones that are so in every mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Classify {
    /// NOAUTH, NOPERM, WRONGTYPE, OOM and READONLY are permanent.
    #[default]
    Default,
    /// OOM and READONLY are retryable: another server is about to take over, or memory to be freed.
    Failover,
    /// Also permanent: DENIED, NOPROTO, CROSSSLOT, argument errors.
    Strict,
}

const PERMANENT: [&str; 20] = [
    "NOAUTH",
    "NOPERM",
    "WRONGTYPE",
    "OOM",
    "READONLY",
    "WRONGPASS",
    // What our own script replies where the key of its marker holds something else.
    "BAD_MARKER",
    code::TLS,
    code::INTERNAL,
    code::TRIMMED,
    code::TOO_LARGE,
    code::NULL_PAYLOAD,
    code::EMPTY,
    code::BAD_STREAM_KEY,
    code::BAD_ENTRY_ID,
    code::BAD_VALUE,
    code::MARKER_LOST,
    code::UNSUPPORTED,
    code::NULL_MESSAGE_ID,
    code::DUPLICATE_ID,
];
const RETRYABLE_IN_FAILOVER: [&str; 2] = ["OOM", "READONLY"];
const PERMANENT_IN_STRICT: [&str; 3] = ["DENIED", "NOPROTO", "CROSSSLOT"];
/// What passes by itself: a server that is away, starts, fails over, or is busy. Not `NO_STREAM`, `ERR` and the like, which
/// are retryable for a caller who does something about them.
const PASSING: [&str; 15] = [
    code::CONNECT,
    code::DNS,
    code::TIMEOUT,
    code::RESET,
    code::EOF,
    "OOM",
    "READONLY",
    "LOADING",
    "MASTERDOWN",
    "NOREPLICAS",
    "BUSY",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "MISCONF",
    "NOSCRIPT",
];
/// A server that cannot check a password now says so in answer to AUTH too.
const RETRYABLE_IN_AUTH: [&str; 3] = ["LOADING", "BUSY", "MASTERDOWN"];

/// NOAUTH: what a proxy may say whose own password is another one.
const OF_PASSWORD: [&str; 2] = ["WRONGPASS", "NOAUTH"];

/// Calls failures permanent or retryable. Decided by the code, and by [`ReplyText`] where the code says too little.
#[derive(Debug, Clone, Default)]
pub struct Classifier {
    mode: Classify,
    overrides: BTreeMap<String, Kind>,
}

impl Classifier {
    /// `overrides` have the last word, by code.
    pub fn new(mode: Classify, overrides: BTreeMap<String, Kind>) -> Self {
        Self { mode, overrides }
    }

    /// The kind of `fault`.
    pub fn kind(&self, fault: &Fault) -> Kind {
        if let Some(kind) = self.overrides.get(&*fault.code) {
            return *kind;
        }
        let code = &*fault.code;
        let permanent = match (fault.text, self.mode) {
            (ReplyText::MaxClients, _) => false,
            (ReplyText::Auth | ReplyText::UnknownCommand, _) | (ReplyText::BadCommand, Classify::Strict) => true,
            (ReplyText::Other | ReplyText::ProtocolError | ReplyText::BadCommand, _) if fault.in_auth => {
                !RETRYABLE_IN_AUTH.contains(&code)
            }
            (ReplyText::Other | ReplyText::ProtocolError | ReplyText::BadCommand, Classify::Default) => {
                PERMANENT.contains(&code)
            }
            (ReplyText::Other | ReplyText::ProtocolError | ReplyText::BadCommand, Classify::Failover) => {
                PERMANENT.contains(&code) && !RETRYABLE_IN_FAILOVER.contains(&code)
            }
            (ReplyText::Other | ReplyText::ProtocolError, Classify::Strict) => {
                PERMANENT.contains(&code) || PERMANENT_IN_STRICT.contains(&code)
            }
        };
        if permanent { Kind::Permanent } else { Kind::Retryable }
    }

    /// Whether the same message may be delivered in a while, without anybody's doing: what is worth a retry. A code that an
    /// override calls retryable is.
    pub(crate) fn may_pass(&self, fault: &Fault) -> bool {
        match self.overrides.get(&*fault.code) {
            Some(kind) => *kind == Kind::Retryable,
            None => {
                self.kind(fault) == Kind::Retryable
                    && (fault.text == ReplyText::MaxClients || PASSING.contains(&&*fault.code))
            }
        }
    }

    /// The outcome of a message that met `fault`.
    pub fn failure(&self, fault: &Fault, written: Written) -> Failure {
        Failure { kind: self.kind(fault), code: fault.code.clone(), message: fault.message.clone(), written }
    }
}
