//! The limit on the memory of an entry's rows.

use super::Unreadable;

/// The bytes that the rows of an entry may still take. Bytes are taken from the room before they are allocated.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Room(usize);

impl Room {
    pub(super) fn new(bytes: usize) -> Self {
        Self(bytes)
    }

    pub(super) fn bytes(self) -> usize {
        self.0
    }

    pub(super) fn take(&mut self, bytes: usize) -> Result<(), Unreadable> {
        self.0 = self.0.checked_sub(bytes).ok_or(Unreadable::TooLarge)?;
        Ok(())
    }
}
