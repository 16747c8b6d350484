//! Option values, and the rows of the option tables: names, types, ranges, defaults, texts.

use std::fmt;

use zeroize::Zeroizing;

use crate::error::Error;

use super::provider::Provider;

/// A value given for an option, before any check.
#[derive(Clone, PartialEq)]
pub enum OptionValue {
    /// Python's `None`: equivalent to an option that is not given.
    Null,
    /// A boolean. Never used as an integer.
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
    /// Names of columns.
    Names(Vec<String>),
    /// A value of a type that no option takes, represented by the name of that type.
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

    /// The kind of the value, for messages about secrets and for `Debug`.
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

    /// The value for a message. Bytes are never shown: they are stream keys at best, and private keys at worst.
    fn shown(&self) -> String {
        match self {
            Self::Bool(true) => "True".to_owned(),
            Self::Bool(false) => "False".to_owned(),
            Self::Int(value) => value.to_string(),
            Self::Float(value) => value.to_string(),
            Self::Text(text) => quoted(text),
            Self::Other(name) => format!("a value of type {name}"),
            Self::Null | Self::Bytes(_) | Self::Provider(_) | Self::Names(_) => self.type_name().to_owned(),
        }
    }
}

/// Shows the type without the value, which may be a secret.
impl fmt::Debug for OptionValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.type_name())
    }
}

/// The longest value that a message repeats, in characters.
const MAX_SHOWN: usize = 80;

/// `text` in single quotes, with control characters escaped, truncated after [`MAX_SHOWN`] characters.
pub(super) fn quoted(text: &str) -> String {
    let shown: String = text.chars().take(MAX_SHOWN).flat_map(char::escape_debug).collect();
    let dots = if text.chars().nth(MAX_SHOWN).is_some() { "…" } else { "" };
    format!("'{shown}{dots}'")
}

/// How option values arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// With their types (Python keywords, JSON): a number is a number, and `"6379"` is not.
    Typed,
    /// All as text (URL query, Spark options, environment): `6379` and `true` are parsed from it.
    Text,
}

/// The type and the range of an option's values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Takes {
    /// An integer in this range.
    Integer {
        /// The smallest.
        min: i64,
        /// The largest.
        max: i64,
    },
    /// An integer of at least 0, or the text `all`.
    CountOrAll,
    /// Seconds, with or without a fraction, in this range.
    Seconds {
        /// The minimum.
        min: f64,
        /// The maximum.
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
    /// Non-empty text.
    Text,
    /// Text or bytes, of 1 byte to 512 MiB.
    TextOrBytes,
    /// Text or bytes of at least one byte, which are never shown; or a provider to ask for them.
    Secret,
    /// The name of an environment variable.
    Variable,
    /// The path of a file.
    Path,
    /// The path of a PEM file, or PEM itself: bytes, or text that contains `-----BEGIN`.
    Pem,
    /// An integer, or text of the form `ms` or `ms-seq`.
    StreamId,
    /// Text of the form `ms` or `ms-seq`, optionally with `(` before it.
    EntryId,
    /// Like `EntryId`, or one of the texts `earliest` and `latest`.
    Start,
    /// One of these texts.
    Choice(&'static [&'static str]),
    /// The addresses of nodes; as text, separated by commas.
    Nodes,
    /// A mapping; the text says what it maps to what. As text, a JSON object.
    Mapping(&'static str),
    /// The name of a column.
    Column,
    /// The names of columns; as text, separated by commas or as a JSON array.
    Columns,
    /// The same, or `*` for all.
    ColumnsOrAll,
    /// The names of columns, or a mapping from columns to new names; as text, the mapping is a JSON object.
    RenamedColumns,
    /// A boolean, or the names of columns.
    BooleanOrColumns,
}

/// The default of an option.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum OptionDefault {
    /// No value.
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
    /// The default as a value that could have been given; [`OptionValue::Null`] if there is none.
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

/// One option: a row of a table such as [`OPTIONS`](super::OPTIONS).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OptionSpec {
    /// The option's name: the same as Python keyword, JSON key, Spark option and URL query parameter.
    pub name: &'static str,
    /// The type and range of its values.
    pub takes: Takes,
    /// The value if none is given.
    pub default: OptionDefault,
    /// Whether the default differs in some cases, which the text names. Giving the default explicitly is then not the same as
    /// giving no value.
    pub depends: bool,
    /// Whether the value must not be shown.
    pub secret: bool,
    /// The option's purpose, in sentences for the documentation.
    pub text: &'static str,
}

impl OptionSpec {
    /// The type and the range in words, for messages and documentation.
    pub fn allowed(&self) -> String {
        match self.takes {
            Takes::Integer { min, max: i64::MAX } => format!("an integer of at least {min}"),
            Takes::Integer { min, max } => format!("an integer from {min} to {max}"),
            Takes::CountOrAll => "an integer of at least 0, or 'all'".to_owned(),
            Takes::Seconds { min, max } => format!("a number of seconds from {min} to {max}"),
            Takes::Number { min, max } => format!("a number from {min} to {max}"),
            Takes::Boolean => "a boolean (true or false)".to_owned(),
            Takes::Text => "non-empty text".to_owned(),
            Takes::TextOrBytes => "text or bytes, of 1 byte to 512 MiB".to_owned(),
            Takes::Secret => "non-empty text or bytes, or a callable that returns them".to_owned(),
            Takes::Variable => "the name of an environment variable".to_owned(),
            Takes::Path => "the path of a file".to_owned(),
            Takes::Pem => "the path of a PEM file, or PEM itself (bytes, or text with -----BEGIN)".to_owned(),
            Takes::Choice(names) => format!("one of '{}'", names.join("', '")),
            Takes::Mapping(what) => format!("a mapping from {what}"),
            Takes::Column => "the name of a column".to_owned(),
            Takes::Columns => format!("a sequence of names{AS_TEXT}"),
            Takes::ColumnsOrAll => format!("'*' or a sequence of names{AS_TEXT}"),
            Takes::Nodes => "a sequence of addresses 'host:port' (as text: separated by commas)".to_owned(),
            Takes::RenamedColumns => {
                format!("a sequence of names{AS_TEXT}, or a mapping from columns to the names that they get")
            }
            Takes::BooleanOrColumns => {
                format!("a boolean, or a sequence of names{AS_TEXT}")
            }
            Takes::StreamId => {
                "an integer of at least 0, or text of the form 'ms' or 'ms-seq' (64 bits each)".to_owned()
            }
            Takes::EntryId => ENTRY_ID.to_owned(),
            Takes::Start => format!("'earliest', 'latest', {ENTRY_ID}"),
        }
    }

    /// Whether the value is a path, so that a path object of the caller's language is accepted.
    pub fn takes_path(&self) -> bool {
        matches!(self.takes, Takes::Path | Takes::Pem)
    }

    /// Whether `value` must not be shown: a password, or PEM that was given directly (whether or not it is a key).
    pub fn hides(&self, value: &OptionValue) -> bool {
        match self.takes {
            Takes::Secret => !matches!(value, OptionValue::Provider(_)),
            Takes::Pem => matches!(value, OptionValue::Bytes(_)),
            Takes::Integer { .. }
            | Takes::CountOrAll
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
            | Takes::ColumnsOrAll
            | Takes::Nodes
            | Takes::RenamedColumns
            | Takes::BooleanOrColumns
            | Takes::StreamId
            | Takes::EntryId
            | Takes::Start => false,
        }
    }

    /// The error for a value of this option that is not names.
    pub(super) fn refuse_names(&self, form: Form, value: &OptionValue) -> Error {
        match (form, value) {
            (Form::Typed, OptionValue::Text(text)) if self.takes != Takes::Nodes => {
                let allowed = self.allowed().replace(AS_TEXT, ", such as ['id']");
                Error::config(self.name, format!("{} must be {allowed}, got {}", self.name, quoted(text)))
            }
            _ => self.refuse(value),
        }
    }

    /// The error for a value of this option that has another type or is out of range.
    pub(super) fn refuse(&self, value: &OptionValue) -> Error {
        // The value given as a variable's name may be the password itself, given for the wrong option.
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

/// How text gives the names of columns.
const AS_TEXT: &str = " (as text: names separated by commas, or a JSON array)";

/// The texts that denote an entry.
const ENTRY_ID: &str = "an entry ID ('ms-seq' or 'ms', 64 bits each), '(' and an entry ID for the entry after it, or a \
                        datetime with a time zone";

/// A row that has no default and is not secret; the table adds its name and text.
pub(crate) const fn option(takes: Takes) -> OptionSpec {
    OptionSpec { name: "", takes, default: OptionDefault::None, depends: false, secret: false, text: "" }
}

impl OptionSpec {
    /// The row with this default.
    pub(crate) const fn or(self, default: OptionDefault) -> Self {
        Self { default, ..self }
    }

    /// The row with this default, which differs in the cases that the text names.
    pub(crate) const fn or_depends(self, default: OptionDefault) -> Self {
        Self { default, depends: true, ..self }
    }

    pub(super) const fn secret(self) -> Self {
        Self { secret: true, ..self }
    }
}

/// Defines a table of options. Each row has the form `name => row;`, and its doc comment is the row's text.
macro_rules! option_table {
    ($(#[$meta:meta])* $vis:vis $table:ident: $($(#[doc = $text:literal])+ $name:ident => $row:expr;)+) => {
        $(#[$meta])*
        $vis const $table: &[$crate::endpoint::OptionSpec] = &[$(
            $crate::endpoint::OptionSpec { name: stringify!($name), text: concat!($($text),+), ..$row }
        ),+];
    };
}
pub(crate) use option_table;
