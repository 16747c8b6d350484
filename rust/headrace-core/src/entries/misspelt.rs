//! A requested field whose name is probably wrong.

use std::fmt;

/// A column that is null in a whole record batch. No entry has its field, but some have one with a similar name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Misspelt {
    pub(crate) column: String,
    pub(crate) similar: String,
}

impl fmt::Display for Misspelt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { column, similar } = self;
        write!(f, "no entry has the field '{column}', so its column is null; did you mean '{similar}'?")
    }
}
