//! The scripts `lease.lua` and `members.lua`, as their comments describe them, and the stream that they change.

use std::collections::BTreeMap;

use redis::Value;

use super::super::liar::Liar;
use super::super::reply::id;
use super::lie::Lie;
use crate::resp::EntryId;

/// A hash by its fields.
pub type Hash = BTreeMap<Vec<u8>, Vec<u8>>;

/// What the scripts see of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stream {
    pub exists: bool,
    /// The ID of the last entry.
    pub last: EntryId,
    pub group: Option<Group>,
    pub lease: Hash,
    /// The entries that were moved, each with the epoch under which it was.
    pub letters: Vec<(u64, EntryId)>,
}

/// The consumer group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Group {
    pub last: EntryId,
    /// The number of entries up to there, if it is known.
    pub read: Option<u64>,
    /// The number of pending entries.
    pub pending: u64,
}

impl Stream {
    fn text(&self, field: &str) -> Vec<u8> {
        self.lease.get(field.as_bytes()).cloned().unwrap_or_default()
    }

    fn number(&self, field: &str) -> u64 {
        number(&self.text(field))
    }

    fn set(&mut self, field: &str, value: impl ToString + Copy) {
        self.lease.insert(field.as_bytes().to_vec(), value.to_string().into_bytes());
    }

    pub fn owner(&self) -> Vec<u8> {
        self.text("owner")
    }

    pub fn until(&self) -> u64 {
        self.number("until")
    }

    /// The last entry that is committed.
    pub fn committed(&self) -> EntryId {
        match self.lease.get(&b"position"[..]) {
            Some(position) => id_of(position),
            None => self.group.as_ref().map_or(EntryId::default(), |group| group.last),
        }
    }
}

pub fn number(text: &[u8]) -> u64 {
    std::str::from_utf8(text).unwrap().parse().unwrap_or(0)
}

/// The ID in a position.
pub fn id_of(position: &[u8]) -> EntryId {
    let text = std::str::from_utf8(position).unwrap();
    let behind = text.split_once("\"id\":\"").expect("a position has an ID").1;
    id(behind.split('"').next().unwrap().as_bytes())
}

pub fn bulk(text: &[u8]) -> Value {
    Value::BulkString(text.to_vec())
}

/// An error of a command, as the script returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused(pub String);

/// `arguments`: those of the script. `now`: the server's time in ms.
pub fn lease(stream: &mut Stream, now: u64, arguments: &[Vec<u8>], liar: &mut Liar<Lie>) -> Result<Value, Refused> {
    let [action, _, member, instance, lease, rest @ ..] = arguments else { panic!("{arguments:?}") };
    let until = now + number(lease);
    if action == b"take" {
        return take(stream, now, until, (member, instance), rest, liar);
    }
    let epoch = number(&rest[0]);
    let (owner, is_other) = (stream.owner(), stream.number("epoch") != epoch);
    let was_released = owner.is_empty() && action == b"release";
    if (is_other || (&owner != member && !was_released)) && !liar.lies(Lie::KeepOld) {
        let is_older = stream.number("epoch") < epoch || stream.text("instance") == *instance;
        return Ok(bulk(if is_older { b"" } else { &owner }));
    }
    let pinned = stream.lease.get(&b"pinned"[..]);
    let kept = Value::Int(pinned.map_or(1, |pinned| if pinned == member { 2 } else { 3 }));
    let [number_of, position, last, read, limit, failures, alone, reason, failed, moves @ ..] = &rest[1..] else {
        panic!("{rest:?}")
    };
    for moved in moves.chunks(4) {
        let (which, id) = (number(&moved[0]), id(&moved[1]));
        if which > stream.number("moved") || liar.lies(Lie::MoveTwice) {
            let is_there = id.seq == 0 && (1..=stream.last.ms).contains(&id.ms);
            if is_there && !liar.lies(Lie::LoseLetter) {
                stream.letters.push((epoch, id));
            }
            stream.set("moved", which);
        }
    }
    if action == b"release" {
        if !liar.lies(Lie::ReleaseNothing) {
            stream.set("owner", "");
            stream.set("until", 0);
        }
    } else if !liar.lies(Lie::RenewNothing) {
        stream.set("until", until);
    }
    if number_of.is_empty() || (number(number_of) <= stream.number("commit") && !liar.lies(Lie::MoveBack)) {
        return Ok(kept);
    }
    if !position.is_empty() && liar.lies(Lie::CommitNothing) {
        return Ok(kept);
    }
    stream.lease.insert(b"commit".to_vec(), number_of.clone());
    if !limit.is_empty() {
        let fields =
            [("limit", limit), ("failures", failures), ("alone", alone), ("reason", reason), ("failed", failed)];
        stream.lease.extend(fields.map(|(field, value)| (field.as_bytes().to_vec(), value.clone())));
    }
    if !position.is_empty() {
        stream.lease.insert(b"position".to_vec(), position.clone());
        stream.set("committed_at", now);
        let read = (!read.is_empty()).then(|| number(read));
        let pending = stream.group.as_ref().map_or(0, |group| group.pending);
        if stream.exists {
            let read = if stream.group.is_some() { read } else { None };
            stream.group = Some(Group { last: id(last), read, pending });
        }
        if liar.lies(Lie::DenyCommit) {
            return Ok(bulk(b""));
        }
    }
    Ok(kept)
}

fn take(
    stream: &mut Stream,
    now: u64,
    until: u64,
    (member, instance): (&Vec<u8>, &Vec<u8>),
    rest: &[Vec<u8>],
    liar: &mut Liar<Lie>,
) -> Result<Value, Refused> {
    let [begins, creates, from_namesake, batch, only_pinned @ ..] = rest else { panic!("{rest:?}") };
    let (pinned, is_asked) = (stream.text("pinned"), only_pinned == [b"1".to_vec()]);
    if (!pinned.is_empty() || is_asked) && pinned != *member && !liar.lies(Lie::IgnorePin) {
        return Ok(Value::Array(vec![Value::Int(-1), Value::Int(0), bulk(&pinned)]));
    }
    let owner = stream.owner();
    let is_own = owner == *member && (stream.text("instance") == *instance || from_namesake == b"1");
    if !owner.is_empty() && !is_own && stream.until() > now && !liar.lies(Lie::Steal) {
        let left = Value::Int((stream.until() - now) as i64);
        return Ok(Value::Array(vec![Value::Int(0), left, bulk(&owner)]));
    }
    if !stream.exists && creates != b"1" {
        return Err(Refused("ERR The XGROUP subcommand requires the key to exist.".to_owned()));
    }
    stream.exists = true;
    let begins = if begins == b"$" { stream.last } else { id(begins) };
    let group = stream.group.get_or_insert(Group { last: begins, ..Group::default() }).clone();
    if group.pending > 0 {
        return Err(Refused(format!("PENDING {}", group.pending)));
    }
    let before = stream.number("epoch");
    let epoch = if before > 0 && liar.lies(Lie::RepeatEpoch) { before } else { now.max(before + 1) };
    let (mut limit, mut failures, mut reason) =
        (stream.number("limit"), stream.number("failures"), stream.text("reason"));
    if !owner.is_empty() && (owner != *member || stream.text("instance") != *instance) {
        limit = (if limit > 0 { limit } else { number(batch) } / 2).max(1);
        if stream.text("alone") == b"1" {
            (failures, reason) = (failures + 1, b"the process that had it ended".to_vec());
        }
    }
    stream.lease.insert(b"owner".to_vec(), member.clone());
    stream.lease.insert(b"instance".to_vec(), instance.clone());
    stream.set("epoch", epoch);
    stream.set("until", until);
    for (field, value) in [("commit", 0), ("moved", 0), ("limit", limit), ("failures", failures), ("alone", 0)] {
        stream.set(field, value);
    }
    stream.lease.insert(b"reason".to_vec(), reason.clone());
    let mut position = stream.text("position");
    if !position.is_empty() {
        let id = id_of(&position);
        let ms = id.ms + u64::from(liar.lies(Lie::StartLater));
        let ms = ms.saturating_sub(u64::from(liar.lies(Lie::StartEarlier)));
        if ms != id.ms {
            let text = String::from_utf8(position).unwrap();
            position = text.replace(&format!("\"{id}\""), &format!("\"{ms}-{}\"", id.seq)).into_bytes();
        }
    }
    let read = group.read.map_or(bulk(b""), |read| Value::Int(read as i64));
    let last = bulk(group.last.to_string().as_bytes());
    let [limit, failures] = [limit, failures].map(|count| Value::Int(count as i64));
    Ok(Value::Array(vec![
        Value::Int(epoch as i64),
        bulk(&position),
        last,
        read,
        limit,
        failures,
        bulk(&reason),
        bulk(&stream.text("failed")),
    ]))
}

/// Who is there. `arguments`: those of the script.
pub fn members(hash: &mut Hash, now: u64, arguments: &[Vec<u8>], liar: &mut Liar<Lie>) -> Value {
    let [member, lasts, gave_up] = arguments else { panic!("{arguments:?}") };
    if lasts == b"0" {
        hash.remove(member);
    } else {
        hash.insert(member.clone(), (now + number(lasts)).to_string().into_bytes());
    }
    let before = hash.get(&b""[..]).map_or(0, |text| number(text));
    let released = before + number(gave_up);
    if gave_up != b"0" {
        hash.insert(Vec::new(), released.to_string().into_bytes());
    }
    if !liar.lies(Lie::KeepMember) {
        hash.retain(|name, until| name.is_empty() || number(until) > now);
    }
    let mut names: Vec<_> = hash.keys().filter(|name| !name.is_empty()).map(|name| bulk(name)).collect();
    if names.len() > 1 && liar.lies(Lie::ForgetMember) {
        names.remove(0);
    }
    if liar.lies(Lie::RepeatMember) {
        names.extend(names.first().cloned());
    }
    Value::Array([Value::Int(released as i64)].into_iter().chain(names).collect())
}
