//! Entry IDs that are known before the outcome of a message before theirs, each in the place of its message's number.

use crate::command::EntryId;

/// How many messages behind the first one have a place: as many as are in a window by default.
pub(super) const PLACES: usize = 8_192;

/// No stream has it: <https://redis.io/docs/latest/commands/xadd/>, "the minimum ID that can be specified is 0-1".
const NONE: EntryId = EntryId { ms: 0, seq: 0 };

#[derive(Debug, Default)]
pub(super) struct EarlyIds {
    /// By the number of the message, modulo their count. None before the first one came early.
    places: Box<[EntryId]>,
    len: usize,
}

impl EarlyIds {
    /// How many there are.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Keeps the ID of the message with this number, behind the one at the `front`. Returns whether there is a place for it.
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

    /// Takes out the ID of the message at the front, if it is known.
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

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
