//! Bytes that must not be printed or left in memory: passwords and keys.

#[cfg(test)]
mod tests;

use std::fmt;
use std::hash::{Hash, Hasher};

use zeroize::Zeroizing;

/// Secret bytes: zeroed when dropped, never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Takes ownership of `bytes`; they are zeroed when the secret is dropped.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// The bytes, for the one place that sends them.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl Hash for Secret {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.expose().hash(state);
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}
