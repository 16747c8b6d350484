//! The reply to XINFO STREAM.

use redis::{Value, parse_redis_value};

use super::errors::protocol;
use super::input::Input;
use super::loss::StreamInfo;
use crate::error::{Fault, ReplyText};
use crate::resp::entry_id;
use crate::resp::framing::{Framing, MAX_REPLY};
use crate::resp::value::{bytes, field, integer, list};

/// Takes the reply out of what has arrived; `None`: it is not there as a whole. A stream that does not exist is empty.
pub(super) fn take(input: &mut Input, framing: &mut Framing) -> Result<Option<StreamInfo>, Fault> {
    let unread = input.unread();
    let Some(length) = framing.find(unread).map_err(protocol)? else {
        return if unread.len() > MAX_REPLY { Err(protocol("a reply that is too large")) } else { Ok(None) };
    };
    *framing = Framing::default();
    let reply = unread.get(..length).unwrap_or_default();
    let info = match reply.strip_prefix(b"-") {
        Some(line) => {
            let fault = Fault::from_reply(line.strip_suffix(b"\r\n").unwrap_or(line));
            if fault.text != ReplyText::NoSuchKey {
                return Err(fault.of_command("XINFO STREAM"));
            }
            StreamInfo { added: Some(0), ..StreamInfo::default() }
        }
        None => parse_redis_value(reply)
            .ok()
            .and_then(|value| read(&value))
            .ok_or_else(|| protocol("a reply that is none to XINFO STREAM"))?,
    };
    input.consume(length);
    Ok(Some(info))
}

/// Reads the reply; `None`: it is none, or lacks what every server sends.
fn read(reply: &Value) -> Option<StreamInfo> {
    let number = |name| field(reply, name).and_then(integer).and_then(|number| u64::try_from(number).ok());
    let id = |name| field(reply, name).and_then(bytes).and_then(entry_id);
    let first_id = match list(field(reply, "first-entry")?) {
        Some(entry) => Some(bytes(entry.first()?).and_then(entry_id)?),
        None => None,
    };
    Some(StreamInfo {
        length: number("length")?,
        last_id: id("last-generated-id")?,
        first_id,
        added: number("entries-added"),
        max_deleted_id: id("max-deleted-entry-id").unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::resp::EntryId;

    fn reply(fields: &[(&str, Value)]) -> Value {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        Value::Array(fields.iter().flat_map(|(name, value)| [text(name), value.clone()]).collect())
    }

    #[test]
    fn old_servers_do_not_count_and_empty_streams_have_no_first_entry() {
        let id = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let entry = |text| Value::Array(vec![id(text), Value::Array(vec![id("a"), id("b")])]);
        let mut fields = vec![
            ("length", Value::Int(2)),
            ("last-generated-id", id("7-18446744073709551615")),
            ("first-entry", entry("5-0")),
            ("last-entry", entry("7-0")),
        ];
        let last_id = EntryId { ms: 7, seq: u64::MAX };
        let expected =
            StreamInfo { length: 2, last_id, first_id: Some(EntryId { ms: 5, seq: 0 }), ..StreamInfo::default() };
        assert_eq!(read(&reply(&fields)).unwrap(), expected);
        fields.push(("entries-added", Value::Int(9)));
        fields.push(("max-deleted-entry-id", id("6-1")));
        let max_deleted_id = EntryId { ms: 6, seq: 1 };
        assert_eq!(read(&reply(&fields)).unwrap(), StreamInfo { added: Some(9), max_deleted_id, ..expected.clone() });
        fields[2].1 = Value::Nil;
        assert_eq!(read(&reply(&fields)).unwrap().first_id, None);
        assert_eq!(read(&reply(&fields[1..])), None);
        assert_eq!(read(&Value::Nil), None);
    }
}
