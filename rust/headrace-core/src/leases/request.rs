//! The commands about leases, as bytes.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use super::doubt::Doubt;
use super::keys::{lease_key, members_key};
use crate::dead_letters::dead_letter_key;
use crate::durability::Durability;
use crate::reading::{Place, Position};
use crate::resp::{EntryId, write_array_header, write_bulk};

const LEASE: &str = concat!(include_str!("../dead_letters/letter.lua"), include_str!("lease.lua"));
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
    /// The most entries of a batch.
    pub(crate) batch: usize,
    /// How often an entry may fail before it is moved, and where to. `None`: it is returned again indefinitely.
    pub(crate) moves: Option<(u64, Vec<u8>)>,
    /// The replicas that must have what changes of a lease.
    pub(crate) durability: Option<Durability>,
}

/// What the caller has done with a stream: everything up to a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Commit {
    pub(super) place: Place,
    /// The number of entries since the commit before.
    pub(super) entries: u64,
    /// How many of them were sent before, and the reply was lost.
    pub(super) repeated: u64,
    /// Those of them that failed too often.
    pub(super) moved: Vec<Moved>,
}

/// An entry that is moved to another stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Moved {
    /// How many entries were moved under this lease, with this one: none is moved twice.
    pub(super) number: u64,
    pub(super) id: EntryId,
    pub(super) reason: String,
    pub(super) failures: u64,
}

/// What changes with a renewal, or with the end of a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Changed {
    /// How many changes were sent for this lease, with this one.
    pub(super) number: u64,
    pub(super) commit: Option<Commit>,
    /// What is known of the entries that follow, unless the server has the same.
    pub(super) doubt: Option<Doubt>,
}

/// A command for the keeper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    /// Take the lease of a stream, if nobody has it; with `from_namesake`, also if another process of this name has it; with
    /// `only_pinned`, only if it is pinned to this member.
    Take { from_namesake: bool, only_pinned: bool },
    /// Renew it, and commit.
    Keep { epoch: u64, changed: Option<Changed> },
    /// Give it up.
    Release { epoch: u64, changed: Option<Changed> },
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
            Action::Keep { changed: None, .. } => "the renewal of the lease (EVAL with TIME, HMGET and HSET)",
            Action::Keep { changed: Some(changed), .. } if changed.has_moved() => {
                "the dead letter (EVAL with TIME, HMGET, HSET, XRANGE, XADD and XGROUP SETID)"
            }
            Action::Keep { .. } => "the commit (EVAL with TIME, HMGET, HSET and XGROUP SETID)",
            Action::Release { .. } => "the end of the lease (EVAL with TIME, HMGET, HSET and XGROUP SETID)",
            Action::Beat { .. } => "the list of members (EVAL with TIME, HSET, HDEL, HGET, HGETALL and HINCRBY)",
        }
    }

    /// What it is for.
    pub(super) fn what(&self) -> &'static str {
        self.name().split_once(" (").map_or("", |(what, _)| what)
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
            let (action, epoch, changed) = match &self.action {
                Action::Take { .. } | Action::Beat { .. } => ("take", None, None),
                Action::Keep { epoch, changed } => ("keep", Some(*epoch), changed.as_ref()),
                Action::Release { epoch, changed } => ("release", Some(*epoch), changed.as_ref()),
            };
            let flag = |is_set: bool| u8::from(is_set).to_string().into_bytes();
            let to = names.moves.as_ref().filter(|_| changed.is_some_and(Changed::has_moved));
            let to = to.map(|(_, given)| dead_letter_key(given, key).into_owned());
            parts.extend(known.call(false));
            parts.extend([(2 + to.iter().len()).to_string().into(), lease_key(key, &names.group), key.to_vec()]);
            parts.extend(to);
            parts.push(action.into());
            parts.extend([names.group.clone(), names.member.clone(), names.instance.clone(), millis(names.lease)]);
            if let Action::Take { from_namesake, only_pinned } = &self.action {
                parts.extend([names.begins_after.clone().into_bytes(), flag(names.creates), flag(*from_namesake)]);
                parts.push(names.batch.to_string().into_bytes());
                parts.extend(only_pinned.then(|| flag(true)));
            }
            if let Some(epoch) = epoch {
                parts.push(epoch.to_string().into_bytes());
                match changed {
                    Some(changed) => changed.write(key, &mut parts),
                    None => parts.resize(parts.len() + 9, Vec::new()),
                }
            }
        }
        write_array_header(out, parts.len());
        for part in &parts {
            write_bulk(out, part);
        }
    }
}

impl Changed {
    /// The number of entries that it commits.
    pub(super) fn entries(&self) -> u64 {
        self.commit.as_ref().map_or(0, |commit| commit.entries)
    }

    /// Whether entries are moved.
    pub(super) fn has_moved(&self) -> bool {
        self.commit.as_ref().is_some_and(|commit| !commit.moved.is_empty())
    }

    /// Appends the arguments of the script.
    fn write(&self, key: &[u8], parts: &mut Vec<Vec<u8>>) {
        let number = |number: u64| number.to_string().into_bytes();
        parts.push(number(self.number));
        let place = self.commit.as_ref().map(|commit| commit.place);
        parts.push(place.map(|place| text_of(key, place)).unwrap_or_default().into_bytes());
        parts.push(place.map(|place| place.id.to_string()).unwrap_or_default().into_bytes());
        parts.push(place.and_then(|place| place.added).map(number).unwrap_or_default());
        match &self.doubt {
            None => parts.resize(parts.len() + 5, Vec::new()),
            Some(Doubt { limit, failures, failed, is_alone, reason }) => {
                parts.extend([number(*limit), number(*failures), number(u64::from(*is_alone)), reason.clone().into()]);
                parts.push(failed.map(|id| id.to_string()).unwrap_or_default().into_bytes());
            }
        }
        for moved in self.commit.iter().flat_map(|commit| &commit.moved) {
            parts.extend([number(moved.number), moved.id.to_string().into(), moved.reason.clone().into()]);
            parts.push(number(moved.failures));
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
