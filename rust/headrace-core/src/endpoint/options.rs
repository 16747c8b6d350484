//! The one table of option names, ranges and defaults.

use std::fmt;

use zeroize::Zeroizing;

use crate::error::Error;

use super::provider::Provider;

/// A value as it was given for an option, before any check.
#[derive(Clone, PartialEq)]
pub enum OptionValue {
    /// Python's `None`: the same as an option that is not given.
    Null,
    /// A boolean. Never taken for an integer.
    Bool(bool),
    /// An integer.
    Int(i128),
    /// A floating-point number.
    Float(f64),
    /// Text; zeroed when dropped, as it may be a password.
    Text(Zeroizing<String>),
    /// Bytes; zeroed when dropped, as they may be a password or a key.
    Bytes(Zeroizing<Vec<u8>>),
    /// Somebody to ask for a password.
    Provider(Provider),
    /// A value of a type that no option takes: the name of that type.
    Other(String),
}

impl OptionValue {
    /// [`OptionValue::Text`] from a `&str`.
    pub fn text(text: &str) -> Self {
        Self::Text(Zeroizing::new(text.to_owned()))
    }

    /// [`OptionValue::Bytes`] from a slice.
    pub fn bytes(bytes: &[u8]) -> Self {
        Self::Bytes(Zeroizing::new(bytes.to_vec()))
    }

    /// The kind of value, for messages about secrets and for `Debug`.
    fn type_name(&self) -> &str {
        match self {
            Self::Null => "nothing",
            Self::Bool(_) => "a boolean",
            Self::Int(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Text(_) => "text",
            Self::Bytes(_) => "bytes",
            Self::Provider(_) => "a callable",
            Self::Other(name) => name,
        }
    }

    /// The value for a message. Bytes are never shown: they are keys of streams at best, and private keys at worst.
    fn shown(&self) -> String {
        match self {
            Self::Bool(value) => format!("the boolean {value}"),
            Self::Int(value) => value.to_string(),
            Self::Float(value) => value.to_string(),
            Self::Text(text) => quoted(text),
            Self::Other(name) => format!("a value of type {name}"),
            Self::Null | Self::Bytes(_) | Self::Provider(_) => self.type_name().to_owned(),
        }
    }
}

/// Without the value: it may be a secret.
impl fmt::Debug for OptionValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.type_name())
    }
}

/// The longest value that is repeated in a message, in characters.
const MAX_SHOWN: usize = 80;

/// `text` in single quotes, control characters escaped, cut after [`MAX_SHOWN`] characters.
pub(super) fn quoted(text: &str) -> String {
    let shown: String = text.chars().take(MAX_SHOWN).flat_map(char::escape_debug).collect();
    let dots = if text.chars().nth(MAX_SHOWN).is_some() { "…" } else { "" };
    format!("'{shown}{dots}'")
}

/// How option values arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// With their types (Python keywords, JSON): a number is a number, and `"6379"` is none.
    Typed,
    /// All as text (URL query, Spark options, environment): `6379` and `true` are read from it.
    Text,
}

/// What an option takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Takes {
    /// An integer in this range.
    Integer {
        /// The smallest.
        min: i64,
        /// The largest.
        max: i64,
    },
    /// Seconds, with or without a fraction, in this range.
    Seconds {
        /// The fewest.
        min: f64,
        /// The most.
        max: f64,
    },
    /// A number, with or without a fraction, in this range.
    Number {
        /// The smallest.
        min: f64,
        /// The largest.
        max: f64,
    },
    /// A boolean.
    Boolean,
    /// Text of at least one character.
    Text,
    /// Text or bytes, of 1 byte to 512 MiB.
    TextOrBytes,
    /// Text or bytes of at least one byte, which are never shown; or somebody to ask for them.
    Secret,
    /// The name of an environment variable.
    Variable,
    /// The path of a file.
    Path,
    /// The path of a PEM file, or PEM itself: bytes, or text that holds `-----BEGIN`.
    Pem,
    /// An integer, or text `ms` or `ms-seq`.
    StreamId,
    /// One of these texts.
    Choice(&'static [&'static str]),
    /// A mapping, of what to what; as text, a JSON object.
    Mapping(&'static str),
}

/// One option: a line of [`OPTIONS`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OptionSpec {
    /// Its name: Python keyword, JSON key, Spark option and URL query parameter alike.
    pub name: &'static str,
    /// The type and range of its values.
    pub takes: Takes,
    /// What holds without it, in words.
    pub default: &'static str,
    /// Whether its value must not be shown.
    pub secret: bool,
}

impl OptionSpec {
    /// The type and range in words, as messages and documentation have them.
    pub fn allowed(&self) -> String {
        match self.takes {
            Takes::Integer { min, max: i64::MAX } => format!("an integer of at least {min}"),
            Takes::Integer { min, max } => format!("an integer from {min} to {max}"),
            Takes::Seconds { min, max } => format!("a number of seconds from {min} to {max}"),
            Takes::Number { min, max } => format!("a number from {min} to {max}"),
            Takes::Boolean => "a boolean (true or false)".to_owned(),
            Takes::Text => "text that is not empty".to_owned(),
            Takes::TextOrBytes => "text or bytes, of 1 byte to 512 MiB".to_owned(),
            Takes::Secret => "text or bytes that are not empty, or a callable that returns them".to_owned(),
            Takes::Variable => "the name of an environment variable".to_owned(),
            Takes::Path => "the path of a file".to_owned(),
            Takes::Pem => "the path of a PEM file, or PEM itself (bytes, or text with -----BEGIN)".to_owned(),
            Takes::Choice(names) => format!("one of '{}'", names.join("', '")),
            Takes::Mapping(what) => format!("a mapping from {what}"),
            Takes::StreamId => {
                "an integer of at least 0, or text of the form 'ms' or 'ms-seq' (64 bits each)".to_owned()
            }
        }
    }

    /// Whether the value is a path, so that a path object of the caller's language may stand for it.
    pub fn takes_path(&self) -> bool {
        matches!(self.takes, Takes::Path | Takes::Pem)
    }

    /// Whether `value` must not be shown: a password, or PEM that was given itself (of a key or not).
    pub fn hides(&self, value: &OptionValue) -> bool {
        match self.takes {
            Takes::Secret => !matches!(value, OptionValue::Provider(_)),
            Takes::Pem => matches!(value, OptionValue::Bytes(_)),
            Takes::Integer { .. }
            | Takes::Seconds { .. }
            | Takes::Number { .. }
            | Takes::Boolean
            | Takes::Text
            | Takes::TextOrBytes
            | Takes::Variable
            | Takes::Path
            | Takes::Choice(_)
            | Takes::Mapping(_)
            | Takes::StreamId => false,
        }
    }

    /// The error for a value of this option that is of another type or out of range.
    pub(super) fn refuse(&self, value: &OptionValue) -> Error {
        // The value of a variable's name may be the password itself, given to the wrong option.
        let hidden = matches!(self.takes, Takes::Secret | Takes::Variable | Takes::Pem);
        let got = if hidden { value.type_name().to_owned() } else { value.shown() };
        let empty = match value {
            OptionValue::Text(text) if text.is_empty() => " (empty)",
            OptionValue::Bytes(bytes) if bytes.is_empty() => " (empty)",
            _ => "",
        };
        Error::config(self.name, format!("{} must be {}, got {got}{empty}", self.name, self.allowed()))
    }
}

const fn option(name: &'static str, takes: Takes, default: &'static str) -> OptionSpec {
    OptionSpec { name, takes, default, secret: false }
}

const PORT: Takes = Takes::Integer { min: 1, max: 65_535 };
/// Servers read the number of SELECT as a C `int`. 16 databases are only their default.
const DB: Takes = Takes::Integer { min: 0, max: i32::MAX as i64 };
const TIMEOUT: Takes = Takes::Seconds { min: 0.001, max: 3600.0 };
const COUNT: Takes = Takes::Integer { min: 0, max: i64::MAX };

/// Every option of an endpoint.
pub const OPTIONS: [OptionSpec; 23] = [
    option("host", Takes::Text, "none"),
    option("port", PORT, "6379"),
    option("unix_socket", Takes::Path, "none"),
    option("stream_key", Takes::TextOrBytes, "none"),
    option("db", DB, "0"),
    option("username", Takes::Text, "none"),
    OptionSpec { name: "password", takes: Takes::Secret, default: "none", secret: true },
    option("password_env", Takes::Variable, "none"),
    option("password_file", Takes::Path, "none"),
    option("connect_timeout", TIMEOUT, "5"),
    option("command_timeout", TIMEOUT, "30"),
    option("maxlen", COUNT, "none"),
    option("maxlen_approximate", Takes::Boolean, "true"),
    option("minid", Takes::StreamId, "none"),
    option("trim_every", Takes::Integer { min: 1, max: i64::MAX }, "1"),
    option("nomkstream", Takes::Boolean, "false"),
    option("consumer_group", Takes::TextOrBytes, "none"),
    option("tls", Takes::Boolean, "false"),
    option("tls_ca_cert", Takes::Pem, "none"),
    option("tls_cert", Takes::Pem, "none"),
    OptionSpec { name: "tls_key", takes: Takes::Pem, default: "none", secret: true },
    option("tls_server_name", Takes::Text, "none"),
    option("tls_insecure_skip_verify", Takes::Boolean, "false"),
];

/// The process-wide defaults of a defaults file: narrower than the options, as the specification has them.
pub(super) const FILE_DEFAULTS: [OptionSpec; 4] = [
    option("connect_timeout", Takes::Seconds { min: 1.0, max: 60.0 }, "none"),
    option("command_timeout", Takes::Seconds { min: 1.0, max: 300.0 }, "none"),
    option("default_db", DB, "none"),
    option("default_port", PORT, "none"),
];

/// The same in the environment.
pub(super) const ENVIRONMENT_DEFAULTS: [OptionSpec; 4] = [
    OptionSpec { name: "HEADRACE_CONNECT_TIMEOUT", ..FILE_DEFAULTS[0] },
    OptionSpec { name: "HEADRACE_COMMAND_TIMEOUT", ..FILE_DEFAULTS[1] },
    OptionSpec { name: "HEADRACE_DEFAULT_DB", ..FILE_DEFAULTS[2] },
    OptionSpec { name: "HEADRACE_DEFAULT_PORT", ..FILE_DEFAULTS[3] },
];
