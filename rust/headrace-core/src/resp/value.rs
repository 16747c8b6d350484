//! The parts of a reply that redis-rs has parsed. A part of another type counts as missing.

use redis::Value;

/// The parts of an array.
pub(crate) fn list(value: &Value) -> Option<&[Value]> {
    match value {
        Value::Array(parts) => Some(parts),
        _ => None,
    }
}

/// The value of `name` in a flat list of names and values, as XINFO replies in RESP2.
pub(crate) fn field<'a>(reply: &'a Value, name: &str) -> Option<&'a Value> {
    list(reply)?.chunks_exact(2).find_map(|pair| match pair {
        [Value::BulkString(known), value] if known == name.as_bytes() => Some(value),
        _ => None,
    })
}

/// An integer.
pub(crate) fn integer(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        _ => None,
    }
}

/// A bulk string.
pub(crate) fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_name_and_type() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let reply = Value::Array(vec![text("name"), text("length"), text("length"), Value::Int(7), text("odd")]);
        assert_eq!(field(&reply, "name").and_then(bytes), Some(&b"length"[..]), "a value is no name");
        assert_eq!(field(&reply, "length").and_then(integer), Some(7));
        assert_eq!(field(&reply, "length").and_then(bytes), None);
        assert_eq!(field(&reply, "odd"), None);
        assert_eq!(field(&Value::Int(7), "name"), None);
        assert_eq!(list(&Value::Nil), None);
    }
}
