//! The commands about leases, as bytes.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use super::keys::{lease_key, members_key};
use crate::reading::{Place, Position};
use crate::resp::{write_array_header, write_bulk};

const LEASE: &str = include_str!("lease.lua");
const MEMBERS: &str = include_str!("members.lua");

static LEASE_HASH: LazyLock<String> = LazyLock::new(|| redis::Script::new(LEASE).get_hash().to_owned());
static MEMBERS_HASH: LazyLock<String> = LazyLock::new(|| redis::Script::new(MEMBERS).get_hash().to_owned());

/// Who takes leases, for how long, and where a new group begins.
#[derive(Debug, Clone)]
pub(crate) struct LeaseNames {
    pub(crate) group: Vec<u8>,
    pub(crate) member: Vec<u8>,
    /// Tells this process from others of the same name.
    pub(crate) instance: Vec<u8>,
    pub(crate) lease: Duration,
    /// The ID after which a new group begins, as XGROUP CREATE takes it.
    pub(crate) begins_after: String,
    /// Whether a stream that does not exist is created.
    pub(crate) creates: bool,
}

/// What the caller has done with a stream: everything up to a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Commit {
    pub(super) place: Place,
    /// The number of entries since the commit before.
    pub(super) entries: u64,
    /// How many of them were sent before, and the reply was lost.
    pub(super) repeated: u64,
    /// How often the position of this lease was sent, with this time.
    pub(super) number: u64,
}

/// A command for the keeper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    /// Take the lease of a stream, if nobody has it; with `from_namesake`, also if another process of this name has it.
    Take { from_namesake: bool },
    /// Renew it, and commit.
    Keep { epoch: u64, commit: Option<Commit> },
    /// Give it up.
    Release { epoch: u64, commit: Option<Commit> },
    /// Say that this member is there, for how long, and how many leases it has given up since it last did.
    Beat { lease: Duration, released: u64 },
}

/// A command about the stream with this number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) stream: usize,
    pub(super) action: Action,
    /// When it was sent.
    pub(super) sent: Duration,
}

impl Request {
    /// The words of errors, with the commands whose ACL rights it needs.
    pub(super) fn name(&self) -> &'static str {
        match &self.action {
            Action::Take { .. } => "the lease (EVAL with TIME, HMGET, HSET, XGROUP CREATE and XINFO GROUPS)",
            Action::Keep { commit: None, .. } => "the renewal of the lease (EVAL with TIME, HMGET and HSET)",
            Action::Keep { .. } => "the commit (EVAL with TIME, HMGET, HSET and XGROUP SETID)",
            Action::Release { .. } => "the end of the lease (EVAL with TIME, HMGET, HSET and XGROUP SETID)",
            Action::Beat { .. } => "the list of members (EVAL with TIME, HSET, HDEL, HGET, HGETALL and HINCRBY)",
        }
    }

    /// The key of the lease, or of the members, that it changes.
    pub(super) fn key(&self, stream: &[u8], group: &[u8]) -> Vec<u8> {
        if matches!(self.action, Action::Beat { .. }) { members_key(stream, group) } else { lease_key(stream, group) }
    }

    /// Appends the command.
    pub(super) fn write(&self, out: &mut Vec<u8>, key: &[u8], names: &LeaseNames, known: &mut Known) {
        let millis = |time: Duration| time.as_millis().to_string().into_bytes();
        let mut parts: Vec<Vec<u8>> = Vec::with_capacity(12);
        if let Action::Beat { lease, released } = &self.action {
            parts.extend(known.call(true));
            parts.extend([b"1".to_vec(), members_key(key, &names.group), names.member.clone(), millis(*lease)]);
            parts.push(released.to_string().into_bytes());
        } else {
            let (action, epoch, commit) = match &self.action {
                Action::Take { .. } | Action::Beat { .. } => ("take", None, None),
                Action::Keep { epoch, commit } => ("keep", Some(*epoch), commit.as_ref()),
                Action::Release { epoch, commit } => ("release", Some(*epoch), commit.as_ref()),
            };
            let flag = |is_set: bool| u8::from(is_set).to_string().into_bytes();
            parts.extend(known.call(false));
            parts.extend([b"2".to_vec(), lease_key(key, &names.group), key.to_vec(), action.into()]);
            parts.extend([names.group.clone(), names.member.clone(), names.instance.clone(), millis(names.lease)]);
            if let Action::Take { from_namesake } = &self.action {
                parts.extend([names.begins_after.clone().into_bytes(), flag(names.creates), flag(*from_namesake)]);
            }
            parts.extend(epoch.map(|epoch| epoch.to_string().into_bytes()));
            if let Some(Commit { place, number, .. }) = commit {
                parts.extend([text_of(key, *place).into_bytes(), place.id.to_string().into_bytes()]);
                parts.push(place.added.map(|added| added.to_string()).unwrap_or_default().into_bytes());
                parts.push(number.to_string().into_bytes());
            }
        }
        write_array_header(out, parts.len());
        for part in &parts {
            write_bulk(out, part);
        }
    }
}

/// A place in a stream as the lease holds it: the position of a reader of this stream alone.
fn text_of(key: &[u8], place: Place) -> String {
    let mut position = Position::new(false);
    position.set(Arc::from(key), Some(place));
    position.to_text()
}

/// The scripts that a connection has sent in full: later calls send only the hash.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Known {
    lease: bool,
    members: bool,
}

impl Known {
    /// The beginning of a call.
    fn call(&mut self, is_of_members: bool) -> [Vec<u8>; 2] {
        let (source, hash, is_known) = if is_of_members {
            (MEMBERS, &*MEMBERS_HASH, &mut self.members)
        } else {
            (LEASE, &*LEASE_HASH, &mut self.lease)
        };
        if std::mem::replace(is_known, true) {
            [b"EVALSHA".to_vec(), hash.clone().into_bytes()]
        } else {
            [b"EVAL".to_vec(), source.as_bytes().to_vec()]
        }
    }

    /// Forgets the scripts, because the server no longer has them.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}
