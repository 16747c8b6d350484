//! Option values, the rows of the tables of options, and the table of the endpoint: names, types, ranges, defaults, texts.

use std::fmt;
use std::time::Duration;

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
    /// A provider to ask for a password.
    Provider(Provider),
    /// Column names.
    Names(Vec<String>),
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
            Self::Names(_) => "names",
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
            Self::Null | Self::Bytes(_) | Self::Provider(_) | Self::Names(_) => self.type_name().to_owned(),
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
    /// Text or bytes of at least one byte, which are never shown; or a provider to ask for them.
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
    /// The name of a column.
    Column,
    /// The names of columns; as text, with commas between them or as a JSON array.
    Columns,
    /// A boolean, or the names of columns.
    BooleanOrColumns,
}

/// What holds where an option is not given.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum OptionDefault {
    /// Nothing: there is no such thing.
    None,
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A number, or seconds.
    Float(f64),
    /// Text.
    Text(&'static str),
}

impl OptionDefault {
    /// The default as a value that could have been given; [`OptionValue::Null`] for none.
    pub fn value(self) -> OptionValue {
        match self {
            Self::None => OptionValue::Null,
            Self::Bool(value) => OptionValue::Bool(value),
            Self::Int(value) => OptionValue::Int(value.into()),
            Self::Float(value) => OptionValue::Float(value),
            Self::Text(text) => OptionValue::text(text),
        }
    }
}

/// One option: a row of a table such as [`OPTIONS`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OptionSpec {
    /// Its name: Python keyword, JSON key, Spark option and URL query parameter alike.
    pub name: &'static str,
    /// The type and range of its values.
    pub takes: Takes,
    /// What holds where it is not given.
    pub default: OptionDefault,
    /// Whether the default is another one in some cases, which the text names, so that giving it is not the same as giving
    /// nothing.
    pub depends: bool,
    /// Whether its value must not be shown.
    pub secret: bool,
    /// What it is for: sentences for the documentation.
    pub text: &'static str,
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
            Takes::Column => "the name of a column".to_owned(),
            Takes::Columns => {
                "column names: a sequence, or as text names with commas between them or a JSON array of names".to_owned()
            }
            Takes::BooleanOrColumns => {
                "a boolean, or column names: a sequence, or as text names with commas between them or a JSON array of names"
                    .to_owned()
            }
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
            | Takes::Column
            | Takes::Columns
            | Takes::BooleanOrColumns
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

/// A row without default and secret; the table adds its name and text.
pub(crate) const fn option(takes: Takes) -> OptionSpec {
    OptionSpec { name: "", takes, default: OptionDefault::None, depends: false, secret: false, text: "" }
}

impl OptionSpec {
    /// The row with this default.
    pub(crate) const fn or(self, default: OptionDefault) -> Self {
        Self { default, ..self }
    }

    /// The row with this default, which is another one in the cases that the text names.
    pub(crate) const fn or_depends(self, default: OptionDefault) -> Self {
        Self { default, depends: true, ..self }
    }

    const fn secret(self) -> Self {
        Self { secret: true, ..self }
    }
}

/// Makes a table of options: `name => row;`, where the doc comment is the row's text.
macro_rules! option_table {
    ($(#[$meta:meta])* $vis:vis $table:ident: $($(#[doc = $text:literal])+ $name:ident => $row:expr;)+) => {
        $(#[$meta])*
        $vis const $table: &[$crate::endpoint::OptionSpec] = &[$(
            $crate::endpoint::OptionSpec { name: stringify!($name), text: concat!($($text),+), ..$row }
        ),+];
    };
}
pub(crate) use option_table;

use OptionDefault::{Bool, Float, Int};

pub(super) const DEFAULT_PORT: u16 = 6379;
pub(super) const DEFAULT_DB: u32 = 0;
pub(super) const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
pub(super) const DEFAULT_COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

const PORT: Takes = Takes::Integer { min: 1, max: 65_535 };
/// Servers read the number of SELECT as a C `int`. 16 databases are only their default.
const DB: Takes = Takes::Integer { min: 0, max: i32::MAX as i64 };
const TIMEOUT: Takes = Takes::Seconds { min: 0.001, max: 3600.0 };
const COUNT: Takes = Takes::Integer { min: 0, max: i64::MAX };
const EVERY: Takes = Takes::Integer { min: 1, max: i64::MAX };

option_table! {
    /// Every option of an endpoint.
    pub OPTIONS:

    /// Name or IP address of the server; IPv6 with or without brackets. Either this or `unix_socket` is required.
    host => option(Takes::Text);
    /// TCP port. The process-wide default comes before this one.
    port => option(PORT).or_depends(Int(DEFAULT_PORT as i64));
    /// Path of the server's Unix socket, at most 107 bytes (macOS: 103), in place of `host`. Not with `port` or `tls`.
    unix_socket => option(Takes::Path);
    /// Key of the stream, required: the key of [XADD](https://redis.io/docs/latest/commands/xadd/). Text is sent as UTF-8.
    stream_key => option(Takes::TextOrBytes);
    /// Number of the database: [SELECT](https://redis.io/docs/latest/commands/select/), which is not sent for 0. Servers have 16
    /// databases by default. The process-wide default comes before this one.
    db => option(DB).or_depends(Int(DEFAULT_DB as i64));
    /// ACL user, Redis 6.0 and later: [AUTH](https://redis.io/docs/latest/commands/auth/) then has two arguments. Needs one of
    /// `password`, `password_env`, `password_file`.
    username => option(Takes::Text);
    /// Password of AUTH; text is sent as UTF-8. A callable returns it at each connect. At most one of the three password options
    /// is given.
    password => option(Takes::Secret).secret();
    /// Environment variable that holds the password, read at each connect.
    password_env => option(Takes::Variable);
    /// File that holds the password (at most 64 KiB), read at each connect. One line end at its end is left out, as at the
    /// variable's.
    password_file => option(Takes::Path);
    /// Longest time for connecting, from name resolution to the last reply of the handshake. The process-wide default comes
    /// before this one.
    connect_timeout => option(TIMEOUT).or_depends(Float(DEFAULT_CONNECT_TIMEOUT.as_secs_f64()));
    /// Longest silence of the server while replies are pending. The process-wide default comes before this one.
    command_timeout => option(TIMEOUT).or_depends(Float(DEFAULT_COMMAND_TIMEOUT.as_secs_f64()));
    /// Entries that the stream keeps: MAXLEN of XADD. 0 is no trimming.
    maxlen => option(COUNT);
    /// Whether trimming may keep a little more (`~`), for `minid` too, which is much faster.
    maxlen_approximate => option(Takes::Boolean).or(Bool(true));
    /// Smallest entry ID that the stream keeps: MINID of XADD, Redis 6.2 and later, sent as written. 0 and `0-0` are no trimming.
    /// Takes precedence over `maxlen`.
    minid => option(Takes::StreamId);
    /// The first XADD of a stream key and every n-th after it trim; the others cost the server less. At most `maxlen`.
    trim_every => option(EVERY).or(Int(1));
    /// Whether a stream that does not exist is left so (NOMKSTREAM of XADD, Redis 6.2 and later); messages then fail with the
    /// code `NO_STREAM`.
    nomkstream => option(Takes::Boolean).or(Bool(false));
    /// Consumer group to create at each connect if there is none of that name, from new entries on:
    /// [XGROUP CREATE](https://redis.io/docs/latest/commands/xgroup-create/) `key group $ MKSTREAM`. It creates the stream
    /// even with `nomkstream`.
    consumer_group => option(Takes::TextOrBytes);
    /// Whether to use TLS, 1.2 or later, and check the server's certificate and its name. The name must be a subject alternative
    /// name, of kind IP where `host` is an address.
    tls => option(Takes::Boolean).or(Bool(false));
    /// The only CA certificates to trust, in place of the system's. A path is checked at once, and read at each connect. Needs
    /// `tls`, like the options below.
    tls_ca_cert => option(Takes::Pem);
    /// The client's certificate chain, where the server asks for one. Needs `tls_key`.
    tls_cert => option(Takes::Pem);
    /// The private key of `tls_cert`, not encrypted.
    tls_key => option(Takes::Pem).secret();
    /// Name that the server's certificate must have, in place of `host`.
    tls_server_name => option(Takes::Text);
    /// Whether to accept any certificate, of any name and age: for a test server at most. TLS is still needed. Not with
    /// `tls_ca_cert` or `tls_server_name`, and not in a URL.
    tls_insecure_skip_verify => option(Takes::Boolean).or(Bool(false));
}

/// The process-wide defaults of a defaults file. Their ranges are narrower than those of the options: a default that is out of
/// the ordinary is more likely a mistake.
pub(super) const FILE_DEFAULTS: [OptionSpec; 4] = [
    OptionSpec { name: "connect_timeout", ..option(Takes::Seconds { min: 1.0, max: 60.0 }) },
    OptionSpec { name: "command_timeout", ..option(Takes::Seconds { min: 1.0, max: 300.0 }) },
    OptionSpec { name: "default_db", ..option(DB) },
    OptionSpec { name: "default_port", ..option(PORT) },
];

/// The same in the environment.
pub(super) const ENVIRONMENT_DEFAULTS: [OptionSpec; 4] = [
    OptionSpec { name: "HEADRACE_CONNECT_TIMEOUT", ..FILE_DEFAULTS[0] },
    OptionSpec { name: "HEADRACE_COMMAND_TIMEOUT", ..FILE_DEFAULTS[1] },
    OptionSpec { name: "HEADRACE_DEFAULT_DB", ..FILE_DEFAULTS[2] },
    OptionSpec { name: "HEADRACE_DEFAULT_PORT", ..FILE_DEFAULTS[3] },
];
