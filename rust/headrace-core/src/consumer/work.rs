//! The commands about the entries of a consumer, as bytes, and their replies.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::Value;

use super::client_name::ClientName;
use crate::dead_letters::dead_letter_key;
use crate::entries::escaped;
use crate::error::{Classifier, Error, Fault, Kind};
use crate::resp::value::{bytes, list};
use crate::resp::{EntryId, entry_id, write_array_header, write_bulk};

/// Acknowledges entries or claims them again, after checking their owner in the same step.
const OWN: &str = include_str!("own.lua");
/// Moves an entry to the stream of dead letters.
const DEAD: &str = concat!(include_str!("../dead_letters/letter.lua"), include_str!("dead.lua"));

static OWN_HASH: LazyLock<String> = LazyLock::new(|| redis::Script::new(OWN).get_hash().to_owned());
static DEAD_HASH: LazyLock<String> = LazyLock::new(|| redis::Script::new(DEAD).get_hash().to_owned());

/// The maximum number of entries of one command: a script blocks the server for about 2 µs per entry.
pub(super) const MAX_IDS: usize = 1_000;

/// An action on entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    Ack,
    /// Acknowledge the entries and remove them from the stream.
    AckDelete,
    /// Acknowledge an entry that was deleted while it was pending: there is nothing to return.
    AckLost,
    /// Keep the entries with this consumer: another one must not claim them yet.
    Renew,
    /// Give the entries back, as if they had been idle for `idle` and delivered `deliveries` times.
    Release {
        idle: Duration,
        deliveries: u64,
    },
    /// Give back entries that this consumer has not read, or got again after it had released them: their counters of deliveries
    /// stay.
    Return {
        idle: Duration,
    },
    /// Mark an entry that is about to be delivered alone: its deliveries count as failures from now on.
    Isolate {
        deliveries: u64,
    },
    /// Move one entry to the stream of dead letters; `deletes`: and remove it from its own.
    Dead {
        reason: String,
        failures: u64,
        deletes: bool,
    },
    /// Look for another consumer of the same name. This action has no entries.
    Look(Arc<ClientName>),
}

impl Action {
    /// Whether entries of both actions can be in one command. Acknowledgements and renewals, the most frequent ones, are compared
    /// inline.
    #[inline]
    pub(super) fn is_same(&self, other: &Self) -> bool {
        matches!((self, other), (Self::Ack, Self::Ack) | (Self::Renew, Self::Renew)) || self == other
    }

    /// Whether the action ends the delivery of its entries to this consumer, as the caller or a rule decided.
    pub(super) fn is_decision(&self) -> bool {
        match self {
            Self::Ack | Self::AckDelete | Self::Release { .. } | Self::Dead { .. } => true,
            Self::AckLost | Self::Renew | Self::Return { .. } | Self::Isolate { .. } | Self::Look(_) => false,
        }
    }
}

/// A command about entries of one stream.
#[derive(Debug, Clone)]
pub(super) struct Work {
    pub(super) stream: usize,
    pub(super) action: Action,
    /// The IDs of the entries, ascending.
    pub(super) ids: Vec<EntryId>,
    /// Whether the command was sent before, and its reply was lost.
    pub(super) is_repeated: bool,
    /// When the work was queued.
    pub(super) since: Duration,
}

/// The reason that work had no effect on an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missed {
    /// The entry is not pending: it was acknowledged.
    Gone,
    /// Another consumer has claimed the entry.
    Other,
    /// The stream no longer has the entry.
    Deleted,
}

/// The group and the consumer that own the entries.
#[derive(Debug, Clone)]
pub(super) struct Names {
    pub(super) group: Vec<u8>,
    pub(super) consumer: Vec<u8>,
    pub(super) dead_letter_key: Option<Vec<u8>>,
}

/// The scripts that a connection has sent in full: later calls send only the hash.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Known {
    own: bool,
    dead: bool,
}

impl Names {
    /// The stream that receives the dead letters of the stream `key`.
    fn dead_letter_key(&self, key: &[u8]) -> Option<Cow<'_, [u8]>> {
        self.dead_letter_key.as_deref().map(|given| dead_letter_key(given, key))
    }
}

impl Work {
    /// Returns the work to send after the server did not know the script. The read behind an isolation was executed all the same,
    /// and counted.
    pub(super) fn after_unknown_script(mut self) -> Self {
        if let Action::Isolate { deliveries } = &mut self.action {
            *deliveries += 1;
        }
        self
    }

    /// The name of the work for errors, with the commands whose ACL rights it needs.
    pub(super) fn name(&self) -> &'static str {
        match self.action {
            Action::Ack | Action::AckLost => "the acknowledgement (EVAL with XPENDING and XACK)",
            Action::AckDelete => "the acknowledgement (EVAL with XPENDING, XINFO GROUPS, XACK and XDEL)",
            Action::Renew => "the renewal of leases (EVAL with XPENDING and XCLAIM)",
            Action::Release { .. } | Action::Return { .. } | Action::Isolate { .. } => {
                "the release (EVAL with XPENDING and XCLAIM)"
            }
            Action::Dead { deletes: false, .. } => "the dead letter (EVAL with XPENDING, XRANGE, XADD and XACK)",
            Action::Dead { .. } => "the dead letter (EVAL with XPENDING, XRANGE, XADD, XINFO GROUPS, XACK and XDEL)",
            Action::Look(_) => "the look for a consumer of the same name (CLIENT LIST)",
        }
    }

    /// Appends the command.
    pub(super) fn write(&self, out: &mut Vec<u8>, key: &[u8], names: &Names, known: &mut Known) {
        let millis = |idle: Duration| idle.as_millis().to_string();
        let (texts, keys): ([String; 3], &[u8]) = match &self.action {
            Action::Ack | Action::AckLost => (["ack".into(), String::new(), String::new()], b"1"),
            Action::AckDelete => (["delete".into(), String::new(), String::new()], b"1"),
            Action::Renew => (["claim".into(), "0".into(), String::new()], b"1"),
            Action::Release { idle, deliveries } => (["claim".into(), millis(*idle), deliveries.to_string()], b"1"),
            Action::Return { idle } => (["claim".into(), millis(*idle), String::new()], b"1"),
            Action::Isolate { deliveries } => (["claim".into(), "0".into(), deliveries.to_string()], b"1"),
            Action::Dead { reason, failures, deletes } => {
                let action = if *deletes { "delete" } else { "ack" };
                ([reason.clone(), failures.to_string(), action.to_owned()], b"2")
            }
            Action::Look(_) => {
                write_array_header(out, 2);
                write_bulk(out, b"CLIENT");
                write_bulk(out, b"LIST");
                return;
            }
        };
        let is_dead = matches!(self.action, Action::Dead { .. });
        let (source, hash, is_known) =
            if is_dead { (DEAD, &*DEAD_HASH, &mut known.dead) } else { (OWN, &*OWN_HASH, &mut known.own) };
        let script = if *is_known { [&b"EVALSHA"[..], hash.as_bytes()] } else { [&b"EVAL"[..], source.as_bytes()] };
        *is_known = true;
        let dead_letter_key = if is_dead { names.dead_letter_key(key) } else { None };
        let front = script
            .into_iter()
            .chain([keys, key])
            .chain(dead_letter_key.as_deref())
            .chain([&*names.group, &*names.consumer]);
        let texts = texts.iter().map(String::as_bytes);
        // The ID of a dead letter's entry precedes the texts.
        let (before, behind): (Vec<&[u8]>, Vec<&[u8]>) =
            if is_dead { (front.collect(), texts.collect()) } else { (front.chain(texts).collect(), Vec::new()) };
        write_array_header(out, before.len() + self.ids.len() + behind.len());
        for part in before {
            write_bulk(out, part);
        }
        let mut text = Vec::new();
        for id in &self.ids {
            text.clear();
            id.write(&mut text);
            write_bulk(out, &text);
        }
        for part in behind {
            write_bulk(out, part);
        }
    }
}

impl Known {
    /// Forgets the scripts, because the server no longer has them.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}

/// Returns the entries on which a script had no effect. `None`: the reply does not fit the command.
pub(super) fn missed(reply: &Value) -> Option<Vec<(EntryId, Missed)>> {
    let read = |pair: &[Value]| {
        let [id, reason] = pair else { return None };
        let reason = match bytes(reason)? {
            b"gone" => Missed::Gone,
            b"other" => Missed::Other,
            b"deleted" => Missed::Deleted,
            _ => return None,
        };
        Some((entry_id(bytes(id)?)?, reason))
    };
    list(reply)?.chunks(2).map(read).collect()
}

/// The advice about a missing group.
pub(super) const MAKES_GROUP: &str = "a new consumer with create=True, or Group.create(), makes it";

/// Classifies the refusal of a piece of work: a fault of the connection, or an error for the caller. `None`: the work must be
/// sent again.
pub(super) fn refusal(key: &[u8], work: &Work, fault: &Fault) -> Result<Option<Error>, Fault> {
    if fault.code == "NOSCRIPT" {
        return Ok(None);
    }
    let fault = &fault.of_script();
    if let ("GROUPS", Some((_, groups))) = (fault.code.as_ref(), fault.message.split_once("GROUPS ")) {
        let message = format!(
            "stream {}: ack_delete needs a stream with one consumer group, or Redis 8.2 and later with the right +xackdel; \
             got one with {groups} groups: the entries stay pending",
            escaped(key)
        );
        let (stream, code) = (key.to_vec(), fault.code.to_string());
        return Ok(Some(Error::StreamRefused { stream, code, kind: Kind::Permanent, message }));
    }
    if fault.code == "NOGROUP" {
        let said = fault.message.split(" script: ").next().unwrap_or_default();
        let message = format!("stream {}: {} was refused: {said}; {MAKES_GROUP}", escaped(key), work.name());
        return Ok(Some(Error::GroupMissing { stream: key.to_vec(), message }));
    }
    let kind = Classifier::default().kind(fault);
    // Out of memory, the server cannot add to the stream of dead letters; another connection would not help.
    if (kind == Kind::Retryable && fault.code != "OOM") || fault.ends_connection() {
        return Err(fault.clone());
    }
    let (name, said) = (work.name(), &fault.message);
    let message = format!("stream {}: {name} was refused, so the entries stay pending: {said}", escaped(key));
    Ok(Some(Error::stream_refused(key, fault, &message)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn id(ms: u64) -> EntryId {
        EntryId { ms, seq: 0 }
    }

    fn text(action: Action, known: &mut Known) -> String {
        let names = Names { group: b"g".to_vec(), consumer: b"c".to_vec(), dead_letter_key: Some(b"d".to_vec()) };
        let work = Work { stream: 0, action, ids: vec![id(1)], is_repeated: false, since: Duration::ZERO };
        let mut out = Vec::new();
        work.write(&mut out, b"s", &names, known);
        let text = String::from_utf8_lossy(&out).replace(OWN, "<own>").replace(DEAD, "<dead>");
        let lines: Vec<_> = text.lines().filter(|line| !line.starts_with(['*', '$'])).collect();
        lines.join(" ").replace(&*OWN_HASH, "<own>").replace(&*DEAD_HASH, "<dead>")
    }

    #[test]
    fn scripts_are_sent_in_full_once_per_connection() {
        let mut known = Known::default();
        assert_eq!(text(Action::Ack, &mut known), "EVAL <own> 1 s g c ack   1-0");
        assert_eq!(text(Action::AckDelete, &mut known), "EVALSHA <own> 1 s g c delete   1-0");
        let idle = Duration::from_millis(1_500);
        assert_eq!(text(Action::Release { idle, deliveries: 3 }, &mut known), "EVALSHA <own> 1 s g c claim 1500 3 1-0");
        assert_eq!(text(Action::Renew, &mut known), "EVALSHA <own> 1 s g c claim 0  1-0");
        let dead = |deletes| Action::Dead { reason: "why".to_owned(), failures: 2, deletes };
        assert_eq!(text(dead(false), &mut known), "EVAL <dead> 2 s d g c 1-0 why 2 ack");
        assert_eq!(text(dead(true), &mut known), "EVALSHA <dead> 2 s d g c 1-0 why 2 delete");
        let name = Names { group: b"g".to_vec(), consumer: b"c".to_vec(), dead_letter_key: None };
        known.forget();
        assert_eq!(
            text(Action::Look(Arc::new(ClientName::new(&name.group, &name.consumer))), &mut known),
            "CLIENT LIST"
        );
        assert_eq!(text(Action::Isolate { deliveries: 20 }, &mut known), "EVAL <own> 1 s g c claim 0 20 1-0");
    }

    #[test]
    fn an_isolation_that_is_sent_again_includes_the_delivery_behind_it() {
        let again = |action| {
            let work = Work { stream: 0, action, ids: vec![id(1)], is_repeated: false, since: Duration::ZERO };
            work.after_unknown_script().action
        };
        assert_eq!(again(Action::Isolate { deliveries: 20 }), Action::Isolate { deliveries: 21 });
        let idle = Duration::ZERO;
        assert_eq!(again(Action::Release { idle, deliveries: 3 }), Action::Release { idle, deliveries: 3 });
    }

    #[test]
    fn script_errors_of_every_server_are_distinguished_from_lost_connections() {
        let ids = vec![id(1)];
        let work = Work { stream: 0, action: Action::Ack, ids, is_repeated: false, since: Duration::ZERO };
        let refused = |line: &str| refusal(b"s", &work, &Fault::from_reply(line.as_bytes()));
        let code = |line: &str| match refused(line) {
            Ok(Some(Error::StreamRefused { code, .. })) => code,
            other => format!("{other:?}"),
        };
        assert_eq!(code("WRONGTYPE Operation against a key script: f1, on @user_script:20."), "WRONGTYPE");
        let old = "ERR Error running script (call to f_1): @user_script:20: ";
        for (text, expected) in [("WRONGTYPE Operation", "WRONGTYPE"), ("-OOM command", "OOM"), ("OOM command", "OOM")]
        {
            assert_eq!(code(&format!("{old}{text}")), expected);
            assert_eq!(code(&format!("{old}@user_script: 20: {text}")), expected);
        }
        let denied = "The user executing the script can't run this command or subcommand";
        for line in [format!("{old}@user_script: 20: {denied}"), format!("ERR {denied}")] {
            assert_eq!(code(&line), "NOPERM");
        }
        assert_eq!(code("GROUPS 2"), "GROUPS");
        for line in ["NOGROUP No such key 's' script: on @user_script:12.", &format!("{old}NOGROUP No such key")] {
            let message = match refused(line) {
                Ok(Some(Error::GroupMissing { message, .. })) => message,
                other => format!("{other:?}"),
            };
            assert!(message.contains("was refused: NOGROUP No such key"), "{message}");
            assert!(message.ends_with(&format!("; {MAKES_GROUP}")) && !message.contains("script:"), "{message}");
        }
        assert!(refused("LOADING Redis is loading").is_err());
        assert!(matches!(refused("NOSCRIPT No matching script"), Ok(None)));
    }

    #[test]
    fn replies_name_the_missed_entries() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let reply = Value::Array(vec![text("1-0"), text("gone"), text("2-0"), text("other")]);
        assert_eq!(missed(&reply), Some(vec![(id(1), Missed::Gone), (id(2), Missed::Other)]));
        assert_eq!(missed(&Value::Array(Vec::new())), Some(Vec::new()));
        for wrong in [Value::Nil, Value::Array(vec![text("1-0")]), Value::Array(vec![text("1-0"), text("lost")])] {
            assert_eq!(missed(&wrong), None);
        }
    }
}
