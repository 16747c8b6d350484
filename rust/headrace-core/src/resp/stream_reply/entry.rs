//! The next entry, as far as its bytes have arrived.

use super::part::{Bulk, Found, Header, LEAST_BULK, bulk, header, short_bulk};
use super::{EntrySink, Limits};
use crate::resp::decode::Violation;
use crate::resp::{EntryId, EntryIdReader};

/// The maximum size of an ID as a bulk string: 41, and a length of 20 digits.
const MOST_ID: usize = 66;
/// How many fields an entry may have before the memory for their places is freed: 1 MiB.
const KEPT_SLOTS: usize = 65_536;
const TOO_LARGE: Violation = Violation("an entry that is larger than allowed");
const NO_ID: Violation = Violation("something else where an entry ID belongs");

/// Where a name or value starts and ends. An entry has at most 4 GiB: see `StreamReply::new`.
#[derive(Debug, Clone, Copy)]
struct Place(u32, u32);

impl Place {
    fn of(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.0 as usize..self.1 as usize]
    }
}

/// Where a field is within the bytes of its entry.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    name: Place,
    value: Place,
}

/// The field at the start of `rest`, which is at the place `at` of its entry, and the bytes after it. `None`: [`any_field`] must
/// look at it, since it is long, incomplete, or one of the last parts of a reply.
#[inline(always)]
#[allow(clippy::inline_always)] // it is most of the work of a scan
fn short_field(rest: &[u8], at: usize) -> Option<(Slot, &[u8])> {
    let (name, name_end, behind) = short_bulk(rest)?;
    let (value, end, after) = short_bulk(behind)?;
    let name = Place((at + name) as u32, (at + name_end) as u32);
    let at = at + name_end + 2;
    Some((Slot { name, value: Place((at + value) as u32, (at + end) as u32) }, after))
}

/// The field at the place `at`, and where it ends; `None`: it is incomplete.
#[inline(never)]
fn any_field(bytes: &[u8], at: usize, most: usize) -> Result<Option<(Slot, usize)>, Violation> {
    let Bulk::Whole(name, name_end) = bulk(bytes, at, most)? else { return Ok(None) };
    let Bulk::Whole(value, end) = bulk(bytes, name_end + 2, most)? else { return Ok(None) };
    let slot = Slot { name: Place(name as u32, name_end as u32), value: Place(value as u32, end as u32) };
    Ok(Some((slot, end + 2)))
}

/// How far an entry has been read. This is kept while bytes are missing, so that none of its parts is read twice.
#[derive(Debug, Default)]
pub(super) struct Entry {
    /// Where the next field starts. 0: the ID and the number of fields have not been read yet.
    at: usize,
    id: Option<EntryId>,
    ids: EntryIdReader,
    /// `None`: the entry was deleted.
    fields: Option<usize>,
    slots: Vec<Slot>,
}

impl Entry {
    /// Continues to read. `bytes`: those that have arrived since the start of the entry.
    #[inline]
    pub(super) fn find(&mut self, bytes: &[u8], limits: &Limits) -> Result<Found, Violation> {
        if self.at == 0
            && let Found::Missing(needed) = self.find_start(bytes, limits)?
        {
            return Ok(Found::Missing(needed));
        }
        let most = limits.entry_bytes;
        let mut rest = bytes.get(self.at..).unwrap_or_default();
        for _ in self.slots.len()..self.fields.unwrap_or(0) {
            let at = bytes.len() - rest.len();
            let (slot, after) = match short_field(rest, at) {
                Some(found) => found,
                None => match any_field(bytes, at, most)? {
                    Some((slot, end)) => (slot, bytes.get(end..).unwrap_or_default()),
                    None => return self.missing(bytes, at, most),
                },
            };
            self.slots.push(slot);
            rest = after;
        }
        let at = bytes.len() - rest.len();
        if at > most { Err(TOO_LARGE) } else { Ok(Found::Whole(at)) }
    }

    /// Reads the ID and the number of fields.
    #[inline]
    fn find_start(&mut self, bytes: &[u8], limits: &Limits) -> Result<Found, Violation> {
        let incomplete = Ok(Found::Missing(bytes.len() + 1));
        let at = match header(bytes, 0, b'*')? {
            Header::Number(2, at) => at,
            Header::Missing => return incomplete,
            _ => return Err(Violation("an entry that is not an array of an ID and fields")),
        };
        let (start, end) = match bulk(bytes, at, limits.entry_bytes)? {
            Bulk::Whole(start, end) => (start, end),
            Bulk::Missing(needed) if needed > at + MOST_ID => return Err(NO_ID),
            Bulk::Missing(needed) => return Ok(Found::Missing(needed)),
        };
        let id = self.ids.read(&bytes[start..end]).ok_or(NO_ID)?;
        let nil = if bytes.get(end + 2) == Some(&b'$') { b'$' } else { b'*' };
        let (fields, at) = match header(bytes, end + 2, nil)? {
            Header::Nil(at) => (None, at),
            Header::Number(parts, at) if nil == b'*' => {
                if parts % 2 != 0 {
                    return Err(Violation("an entry with a name and no value"));
                }
                if parts / 2 > limits.fields {
                    return Err(Violation("an entry with more fields than allowed"));
                }
                (Some((parts / 2) as usize), at)
            }
            Header::Number(..) => return Err(Violation("an entry without an array of fields")),
            Header::Missing => return incomplete,
        };
        (self.id, self.fields, self.at) = (Some(id), fields, at);
        Ok(Found::Whole(at))
    }

    /// Returns how many bytes are needed: the field at the place `at` is incomplete.
    #[cold]
    #[inline(never)]
    fn missing(&mut self, bytes: &[u8], at: usize, most: usize) -> Result<Found, Violation> {
        self.at = at;
        let (needed, behind) = match bulk(bytes, at, most)? {
            Bulk::Missing(needed) => (needed, 1),
            Bulk::Whole(_, name_end) => match bulk(bytes, name_end + 2, most)? {
                Bulk::Missing(needed) => (needed, 0),
                Bulk::Whole(..) => (bytes.len() + 1, 0),
            },
        };
        let later = self.fields.unwrap_or(0).saturating_sub(self.slots.len() + 1);
        let least = later.saturating_mul(2).saturating_add(behind).saturating_mul(LEAST_BULK);
        let needed = needed.saturating_add(least);
        if needed > most { Err(TOO_LARGE) } else { Ok(Found::Missing(needed)) }
    }

    /// Passes on the entry, all of which is in `bytes`, and prepares for the next one.
    #[inline]
    pub(super) fn pass_on(&mut self, bytes: &[u8], sink: &mut impl EntrySink) {
        let Some(id) = self.id else { return };
        pass_on(id, self.fields, &self.slots, bytes, sink);
        self.at = 0;
        self.slots.clear();
        if self.slots.capacity() > KEPT_SLOTS {
            self.slots = Vec::new();
        }
    }

    /// Adds the places of the fields to `slots`, and prepares for the next entry. Returns the ID and the number of fields.
    #[inline]
    pub(super) fn take(&mut self, slots: &mut Vec<Slot>) -> Option<(EntryId, Option<usize>)> {
        self.at = 0;
        slots.append(&mut self.slots);
        Some((self.id?, self.fields))
    }
}

/// Passes on an entry at the start of `bytes`.
#[inline]
pub(super) fn pass_on(id: EntryId, fields: Option<usize>, slots: &[Slot], bytes: &[u8], sink: &mut impl EntrySink) {
    sink.entry(id, fields);
    for Slot { name, value } in slots {
        sink.field(name.of(bytes), value.of(bytes));
    }
    sink.end();
}
