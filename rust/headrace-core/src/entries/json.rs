//! Reads JSON objects and arrays part by part, without a copy.

use std::borrow::Cow;
use std::fmt;

use serde_core::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// Passes on the name and the value of each member of an object, in order.
pub(crate) fn for_each_member<'a>(
    object: &'a str,
    take: &mut dyn FnMut(&str, &'a RawValue),
) -> Result<(), serde_json::Error> {
    let mut parser = serde_json::Deserializer::from_str(object);
    parser.deserialize_map(Members(take))?;
    parser.end()
}

/// Passes on each element of an array, in order.
pub(super) fn for_each_element<'a>(
    array: &'a str,
    take: &mut dyn FnMut(&'a RawValue),
) -> Result<(), serde_json::Error> {
    let mut parser = serde_json::Deserializer::from_str(array);
    parser.deserialize_seq(Elements(take))?;
    parser.end()
}

/// The text of a value: the content of a string, or the JSON of anything else. `None` for a null.
pub(super) fn text_of(value: &RawValue) -> Option<Cow<'_, str>> {
    let json = value.get();
    match json.strip_prefix('"').and_then(|json| json.strip_suffix('"')) {
        Some(text) if !text.contains('\\') => Some(Cow::Borrowed(text)),
        // An unpaired surrogate has no UTF-8: as in the writer, the replacement character stands for it.
        Some(_) => Some(Cow::Owned(serde_json::from_str(json).unwrap_or_else(|_| char::REPLACEMENT_CHARACTER.into()))),
        None => (json != "null").then_some(Cow::Borrowed(json)),
    }
}

struct Members<'a, 'de>(&'a mut dyn FnMut(&str, &'de RawValue));

impl<'de> Visitor<'de> for Members<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        while let Some((Name(name), value)) = members.next_entry()? {
            (self.0)(&name, value);
        }
        Ok(())
    }
}

struct Elements<'a, 'de>(&'a mut dyn FnMut(&'de RawValue));

impl<'de> Visitor<'de> for Elements<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        while let Some(element) = elements.next_element()? {
            (self.0)(element);
        }
        Ok(())
    }
}

/// The name of a member, copied only if it has escapes.
struct Name<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(parser: D) -> Result<Self, D::Error> {
        parser.deserialize_str(NameVisitor)
    }
}

struct NameVisitor;

impl<'de> Visitor<'de> for NameVisitor {
    type Value = Name<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Name<'de>, E> {
        Ok(Name(Cow::Borrowed(name)))
    }

    fn visit_str<E>(self, name: &str) -> Result<Name<'de>, E> {
        Ok(Name(Cow::Owned(name.to_owned())))
    }
}
