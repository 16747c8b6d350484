//! A reader's position in each of its streams, as a text that users store with their rows.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rpds::RedBlackTreeMapSync;
use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::resp::{EntryId, entry_id};

/// The version of the text format.
const VERSION: u64 = 1;

/// The place in one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Place {
    /// Reading continues after this ID.
    pub(crate) id: EntryId,
    /// Whether the stream has had an entry with this ID. Otherwise the ID is a start between entries, and 0-0 is before all of
    /// them.
    pub(crate) is_entry: bool,
    /// The number of entries added to the stream up to `id`, including removed ones; `None`: unknown.
    pub(crate) added: Option<u64>,
    /// If `added` is unknown: the number of entries removed from the stream at a time when none after `id` had been. `None`:
    /// unknown too.
    pub(crate) removed: Option<u64>,
}

/// The place in each stream, by its key. A copy shares all places that do not change: each batch of a reader has one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Position {
    places: RedBlackTreeMapSync<Arc<[u8]>, Place>,
    /// Whether the reader goes from new entries to old ones.
    pub(crate) is_reverse: bool,
}

impl Position {
    /// Creates a position without any place.
    pub(crate) fn new(is_reverse: bool) -> Self {
        Self { is_reverse, ..Self::default() }
    }

    pub(crate) fn get(&self, stream: &[u8]) -> Option<Place> {
        self.places.get(stream).copied()
    }

    /// Sets the place in a stream; `None`: no entry of it was read, and its beginning has no ID.
    pub(crate) fn set(&mut self, stream: Arc<[u8]>, place: Option<Place>) {
        match place {
            Some(place) => self.places.insert_mut(stream, place),
            None => {
                self.places.remove_mut(&stream);
            }
        }
    }

    pub(crate) fn streams(&self) -> impl Iterator<Item = &[u8]> {
        self.places.keys().map(AsRef::as_ref)
    }

    /// Formats the position as `{"v":1,"streams":{"orders":{"id":"1795324724029-361","n":1000000}}}`. A key that is not UTF-8 is
    /// in `binary`, in Base64. `n` is `added`; if that is unknown, `removed` takes its place. `"start":true` marks the ID of no
    /// entry.
    pub(crate) fn to_text(&self) -> String {
        let (mut streams, mut binary) = (Map::new(), Map::new());
        for (key, place) in &self.places {
            let mut shown = Map::from_iter([("id".to_owned(), json!(place.id.to_string()))]);
            if let Some(added) = place.added {
                shown.insert("n".to_owned(), json!(added));
            } else if let Some(removed) = place.removed {
                shown.insert("removed".to_owned(), json!(removed));
            }
            if !place.is_entry && place.id > EntryId::default() {
                shown.insert("start".to_owned(), json!(true));
            }
            match std::str::from_utf8(key) {
                Ok(key) => streams.insert(key.to_owned(), Value::Object(shown)),
                Err(_) => binary.insert(STANDARD.encode(key), Value::Object(shown)),
            };
        }
        let mut whole =
            Map::from_iter([("v".to_owned(), json!(VERSION)), ("streams".to_owned(), Value::Object(streams))]);
        if !binary.is_empty() {
            whole.insert("binary".to_owned(), Value::Object(binary));
        }
        if self.is_reverse {
            whole.insert("reverse".to_owned(), json!(true));
        }
        Value::Object(whole).to_string()
    }

    /// Parses the result of [`to_text`](Self::to_text). Errors name `option`.
    pub(crate) fn parse(option: &str, text: &str) -> Result<Self> {
        let wrong = |reason: &str| Error::config(option, format!("{option} is not a position of a reader: {reason}"));
        let whole: Value = serde_json::from_str(text).map_err(|error| wrong(&error.to_string()))?;
        let Value::Object(mut whole) = whole else { return Err(wrong("it must be a JSON object")) };
        match whole.remove("v").and_then(|version| version.as_u64()) {
            Some(VERSION) => {}
            Some(other) => {
                return Err(wrong(&format!("its version is {other}, but this headrace reads version {VERSION}")));
            }
            None => return Err(wrong("it has no version \"v\"")),
        }
        let mut position = Self::new(whole.remove("reverse") == Some(Value::Bool(true)));
        for (name, is_binary) in [("streams", false), ("binary", true)] {
            let places = match whole.remove(name) {
                Some(Value::Object(places)) => places,
                None if is_binary => continue,
                _ => return Err(wrong(&format!("{name:?} must be an object"))),
            };
            for (key, place) in places {
                let key = if is_binary {
                    STANDARD.decode(&key).map_err(|_| wrong(&format!("{key:?} is not Base64")))?
                } else {
                    key.into_bytes()
                };
                let id = place.get("id").and_then(Value::as_str).and_then(|id| entry_id(id.as_bytes()));
                let id = id.ok_or_else(|| wrong("a stream has no entry ID \"id\" such as \"1795324724029-0\""))?;
                let number = |name: &str| match place.get(name) {
                    None => Ok(None),
                    Some(number) if number.is_u64() => Ok(number.as_u64()),
                    Some(_) => Err(wrong(&format!("{name:?} must be an integer of at least 0"))),
                };
                let (added, removed) = (number("n")?, number("removed")?);
                // Positions of the first versions lack `start`. One that begins at a time has the last ID before that time, which
                // is not the last one of all.
                let is_before_a_time = id.seq == u64::MAX && id < EntryId::MAX;
                let is_start = place.get("start") == Some(&Value::Bool(true)) || is_before_a_time;
                let is_entry = id > EntryId::default() && !is_start;
                position.set(Arc::from(key), Some(Place { id, is_entry, added, removed }));
            }
        }
        match whole.keys().next() {
            None => Ok(position),
            Some(unknown) => Err(wrong(&format!("it has an unknown member {unknown:?}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn position(places: &[(&[u8], u64, u64, Option<u64>)], is_reverse: bool) -> Position {
        let mut position = Position::new(is_reverse);
        for (key, ms, seq, added) in places {
            let id = EntryId { ms: *ms, seq: *seq };
            // An entry may have the last ID of all.
            let is_entry = id > EntryId::default() && (*seq < u64::MAX || *ms == u64::MAX);
            position.set(Arc::from(*key), Some(Place { id, is_entry, added: *added, removed: None }));
        }
        position
    }

    #[test]
    fn a_position_survives_a_round_trip() {
        for position in [
            position(&[], false),
            position(&[(b"orders", 1_795_324_724_029, 361, Some(1_000_000))], false),
            position(
                &[(b"", 0, 0, None), (b"\xff\0", u64::MAX, u64::MAX, Some(u64::MAX)), (b"a\"b", 1, 2, None)],
                true,
            ),
        ] {
            assert_eq!(Position::parse("start", &position.to_text()), Ok(position.clone()), "{}", position.to_text());
        }
        let one = position(&[(b"orders", 5, 6, Some(7))], false);
        assert_eq!(one.to_text(), r#"{"streams":{"orders":{"id":"5-6","n":7}},"v":1}"#);
    }

    #[test]
    fn invalid_positions_are_refused() {
        for (text, reason) in [
            ("", "EOF"),
            ("[]", "JSON object"),
            ("{}", "no version"),
            (r#"{"v":2,"streams":{}}"#, "its version is 2"),
            (r#"{"v":1}"#, "\"streams\" must be"),
            (r#"{"v":1,"streams":{"a":{"n":1}}}"#, "no entry ID"),
            (r#"{"v":1,"streams":{"a":{"id":"1"}}}"#, "no entry ID"),
            (r#"{"v":1,"streams":{"a":{"id":"1-1","n":-1}}}"#, "\"n\" must be"),
            (r#"{"v":1,"streams":{},"binary":{"*":{"id":"1-1"}}}"#, "not Base64"),
            (r#"{"v":1,"streams":{},"more":1}"#, "unknown member \"more\""),
        ] {
            let error = Position::parse("start", text).unwrap_err().to_string();
            assert!(
                error.starts_with("start is not a position of a reader") && error.contains(reason),
                "{text}: {error}"
            );
        }
    }
}
