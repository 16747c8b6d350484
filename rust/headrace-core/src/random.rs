//! Random numbers: no other module draws any.

/// A number from 0 to 1; 0 if the system has no randomness.
pub(crate) fn jitter() -> f64 {
    f64::from(getrandom::u32().unwrap_or_default()) / f64::from(u32::MAX)
}

/// A random token, for a batch that was given none: it outlives a connection, not the process.
pub(crate) fn token() -> String {
    let mut bytes = [0; 16];
    // Without randomness, the time and the process ID make a token that no other process has.
    if getrandom::fill(&mut bytes).is_err() {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        bytes = (since.as_nanos() ^ (u128::from(std::process::id()) << 96)).to_be_bytes();
    }
    format!("{:032x}", u128::from_be_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_tokens_differ_and_jitter_is_in_its_range() {
        assert_ne!(token(), token());
        assert_eq!(token().len(), 32);
        assert!((0..99).all(|_| (0.0..=1.0).contains(&jitter())));
    }
}
