//! The connection for the commands of each slot.

use super::slot::SLOTS;

/// The number of a connection for each slot: 32 KiB.
#[derive(Debug, Clone)]
pub(crate) struct Routes(Box<[u16]>);

impl Default for Routes {
    /// All slots lead to the first connection.
    fn default() -> Self {
        Self(vec![0; usize::from(SLOTS)].into())
    }
}

impl Routes {
    #[inline]
    pub(crate) fn get(&self, slot: u16) -> usize {
        self.0.get(usize::from(slot)).copied().unwrap_or_default().into()
    }

    pub(crate) fn set(&mut self, slot: u16, connection: usize) {
        if let (Some(route), Ok(connection)) = (self.0.get_mut(usize::from(slot)), u16::try_from(connection)) {
            *route = connection;
        }
    }

    /// The slots whose commands go to this connection.
    pub(crate) fn slots(&self, connection: usize) -> impl Iterator<Item = u16> {
        (0..SLOTS).filter(move |slot| self.get(*slot) == connection)
    }
}
