//! Entry IDs that became known before the outcome of an earlier message, stored by message number.

use crate::command::EntryId;

/// How many messages after the first one have a place: as many as the window holds by default.
pub(super) const PLACES: usize = 8_192;

/// Marks a free place. No stream has this ID: <https://redis.io/docs/latest/commands/xadd/>, "the minimum ID that can be
/// specified is 0-1".
const NONE: EntryId = EntryId { ms: 0, seq: 0 };

#[derive(Debug, Default)]
pub(super) struct EarlyIds {
    /// Indexed by message number, modulo the number of places. Empty until the first ID comes early.
    places: Box<[EntryId]>,
    len: usize,
}

impl EarlyIds {
    /// The number of IDs.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Keeps the ID of the message with this number, which comes after the one at the `front`. Returns whether there is a place
    /// for it.
    #[inline]
    pub(super) fn insert(&mut self, number: u64, front: u64, id: EntryId) -> bool {
        if number - front >= PLACES as u64 || id == NONE {
            return false;
        }
        match self.places.get_mut(number as usize % PLACES) {
            Some(place) => *place = id,
            None => self.begin(number, id),
        }
        self.len += 1;
        true
    }

    #[cold]
    fn begin(&mut self, number: u64, id: EntryId) {
        self.places = vec![NONE; PLACES].into();
        self.places[number as usize % PLACES] = id;
    }

    /// Removes and returns the ID of the message at the front, if it is known.
    #[inline]
    pub(super) fn take(&mut self, front: u64) -> Option<EntryId> {
        if self.len == 0 {
            return None;
        }
        let place = self.places.get_mut(front as usize % PLACES)?;
        let id = std::mem::replace(place, NONE);
        if id == NONE {
            return None;
        }
        self.len -= 1;
        Some(id)
    }

    /// Forgets all IDs.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
