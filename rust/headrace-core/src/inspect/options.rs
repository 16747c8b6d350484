//! The options of an inspection, all checked before a command is sent.

use std::collections::HashSet;

use crate::endpoint::given::Given;
use crate::endpoint::{Form, OptionSpec, OptionValue, Takes, option};
use crate::error::Result;

/// The maximum of `pending_limit`: a reply with this many pending entries is about 10 MB.
const MAX_PENDING: i64 = 100_000;

static OPTIONS: [OptionSpec; 3] = [
    OptionSpec { name: "streams", ..option(Takes::TextOrBytes) },
    OptionSpec { name: "groups", ..option(Takes::Boolean) },
    OptionSpec { name: "pending_limit", ..option(Takes::Integer { min: 0, max: MAX_PENDING }) },
];

/// The streams to inspect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Streams {
    /// The streams with these keys, without duplicates.
    Keys(Vec<Vec<u8>>),
    /// The streams whose keys match a glob-style pattern.
    Pattern(Vec<u8>),
}

/// The options of an inspection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InspectOptions {
    pub(super) streams: Option<Streams>,
    pub(super) groups: bool,
    pub(super) pending_limit: usize,
}

impl Streams {
    /// Checks a list of keys.
    pub fn keys(values: impl IntoIterator<Item = OptionValue>) -> Result<Self> {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        let mut seen = HashSet::new();
        for value in values {
            let key = key(&value)?;
            if seen.insert(key.clone()) {
                keys.push(key);
            }
        }
        Ok(Self::Keys(keys))
    }

    /// Checks a pattern. A pattern without special characters is a key, which needs no search.
    pub fn pattern(value: &OptionValue) -> Result<Self> {
        let key = key(value)?;
        let is_pattern = key.iter().any(|byte| matches!(byte, b'*' | b'?' | b'[' | b'\\'));
        Ok(if is_pattern { Self::Pattern(key) } else { Self::Keys(vec![key]) })
    }
}

impl InspectOptions {
    /// Checks `options`, which must contain both `groups` and `pending_limit`. Without `streams`, the endpoint's stream is
    /// inspected.
    pub fn new(streams: Option<Streams>, options: impl IntoIterator<Item = (String, OptionValue)>) -> Result<Self> {
        let mut given = Given::collect(&OPTIONS, options, Form::Typed)?;
        let (groups, limit) = (given.boolean("groups")?, given.integer("pending_limit")?);
        let missing = |name| given.refuse(name, &OptionValue::Null);
        let groups = groups.ok_or_else(|| missing("groups"))?;
        let pending_limit = limit.ok_or_else(|| missing("pending_limit"))?;
        Ok(Self { streams, groups, pending_limit })
    }
}

fn key(value: &OptionValue) -> Result<Vec<u8>> {
    let mut given = Given::new(&OPTIONS, Form::Typed);
    given.add("streams", value.clone())?;
    given.bytes("streams")?.ok_or_else(|| given.refuse("streams", value))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_text_with_special_characters_is_a_pattern() {
        let text = OptionValue::text;
        for pattern in ["*", "orders-?", "[ab]", "a\\*"] {
            assert_eq!(Streams::pattern(&text(pattern)), Ok(Streams::Pattern(pattern.as_bytes().to_vec())));
        }
        assert_eq!(Streams::pattern(&text("orders")), Ok(Streams::Keys(vec![b"orders".to_vec()])));
        let keys = Streams::keys([text("b"), text("a*"), OptionValue::bytes(b"b")]).unwrap();
        assert_eq!(keys, Streams::Keys(vec![b"b".to_vec(), b"a*".to_vec()]));
    }

    #[test]
    fn wrong_options_are_refused() {
        let new = |name: &str, value| InspectOptions::new(None, [(name.to_owned(), value)]).unwrap_err().to_string();
        let limit = "pending_limit must be an integer from 0 to 100000, got ";
        assert_eq!(new("pending_limit", OptionValue::Int(-1)), format!("{limit}-1"));
        assert_eq!(new("pending_limit", OptionValue::Int(100_001)), format!("{limit}100001"));
        assert_eq!(new("groups", OptionValue::Bool(true)), format!("{limit}nothing"));
        assert_eq!(new("groups", OptionValue::Int(1)), "groups must be a boolean (true or false), got 1");
        let key = "streams must be text or bytes, of 1 byte to 512 MiB, got ";
        for (value, got) in
            [(OptionValue::text(""), "'' (empty)"), (OptionValue::Int(7), "7"), (OptionValue::Null, "nothing")]
        {
            assert_eq!(Streams::keys([value]).unwrap_err().to_string(), format!("{key}{got}"));
        }
    }
}
