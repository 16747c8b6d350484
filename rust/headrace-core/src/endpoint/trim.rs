//! How a stream is trimmed when entries are added: <https://redis.io/docs/latest/commands/xadd/>.

use std::borrow::Cow;

use crate::error::{Error, Result};

use super::given::Given;
use super::option::OptionValue;

/// The trim options of XADD. If none are given there is no `Trim`: a threshold of 0 would delete every entry.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Trim {
    keep: Keep,
    approximate: bool,
}

/// The entries that trimming keeps: this many of the newest (never 0), or all from this ID on (never 0-0).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Keep {
    MaxLen(u64),
    MinId(MinId),
}

impl Trim {
    /// `MAXLEN`, or `MINID` (Redis 6.2 and later).
    pub fn strategy(&self) -> &'static str {
        match &self.keep {
            Keep::MaxLen(_) => "MAXLEN",
            Keep::MinId(_) => "MINID",
        }
    }

    /// Whether the server may keep slightly more (`~`), which is faster.
    pub fn approximate(&self) -> bool {
        self.approximate
    }

    /// The threshold as it is sent.
    pub fn threshold(&self) -> Cow<'_, str> {
        match &self.keep {
            Keep::MaxLen(maxlen) => Cow::Owned(maxlen.to_string()),
            Keep::MinId(minid) => Cow::Borrowed(&minid.text),
        }
    }

    /// The smallest ID that is kept, as milliseconds and sequence number, if the stream is trimmed by ID.
    pub fn min_id(&self) -> Option<(u64, u64)> {
        match &self.keep {
            Keep::MaxLen(_) => None,
            Keep::MinId(minid) => Some(minid.id),
        }
    }
}

/// The option `minid`: the smallest entry ID that is kept.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct MinId {
    /// As the caller wrote it, which is also what is sent: `1713091234567` gets no `-0`.
    text: String,
    /// Milliseconds and sequence number.
    id: (u64, u64),
}

impl MinId {
    /// The option `minid`, if it was given.
    pub(super) fn read(given: &mut Given) -> Result<Option<Self>> {
        let Some(value) = given.value("minid") else { return Ok(None) };
        let text = match &value {
            OptionValue::Int(number) => number.to_string(),
            OptionValue::Text(text) => text.to_string(),
            _ => return Err(given.refuse("minid", &value)),
        };
        match parse_id(&text) {
            Some(id) => Ok(Some(Self { text, id })),
            None => Err(given.refuse("minid", &value)),
        }
    }

    /// The value as it was given: an integer if the text is one.
    pub(super) fn to_option(&self) -> OptionValue {
        match self.text.parse::<u64>() {
            Ok(ms) if ms.to_string() == self.text => OptionValue::Int(ms.into()),
            _ => OptionValue::text(&self.text),
        }
    }
}

/// Parses `ms` or `ms-seq`, digits only: servers also accept a leading `+`, but that is not to be relied on.
fn parse_id(text: &str) -> Option<(u64, u64)> {
    let number =
        |digits: &str| if digits.bytes().all(|b| b.is_ascii_digit()) { digits.parse::<u64>().ok() } else { None };
    match text.split_once('-') {
        Some((ms, seq)) => Some((number(ms)?, number(seq)?)),
        None => Some((number(text)?, 0)),
    }
}

/// The trimming that results from the options: `minid` takes precedence over `maxlen`, as the server accepts only one of
/// them.
pub(super) fn effective(
    maxlen: Option<u64>,
    minid: Option<&MinId>,
    approximate: bool,
    every: u64,
) -> Result<Option<Trim>> {
    let keep = match (minid.filter(|minid| minid.id != (0, 0)), maxlen.unwrap_or(0)) {
        (Some(minid), _) => Keep::MinId(minid.clone()),
        (None, 0) => return Ok(None),
        (None, maxlen) if every > maxlen => {
            let message = format!(
                "trim_every must be at most maxlen, got trim_every {every} with maxlen {maxlen}: the stream would \
                 grow past twice its maximum"
            );
            return Err(Error::config("trim_every", message));
        }
        (None, maxlen) => Keep::MaxLen(maxlen),
    };
    Ok(Some(Trim { keep, approximate }))
}
