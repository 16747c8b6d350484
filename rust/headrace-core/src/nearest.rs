//! The known name that someone may have meant.

/// The minimum similarity (0 to 1, Jaro-Winkler) of two names for a suggestion.
const LIKENESS: f64 = 0.8;

/// The one of `names` that is most similar to `name`, if one is similar at all. Case does not count.
///
/// A part of a name (`timeout`, `ca_cert`) counts for more than letters in common.
pub(crate) fn nearest<'n>(names: impl IntoIterator<Item = &'n str>, name: &str) -> Option<&'n str> {
    let name = name.to_lowercase();
    let likeness = |known: &str| {
        let part = if name.len() > 2 && known.contains(&name) { 1.0 } else { 0.0 };
        strsim::jaro_winkler(&known.to_lowercase(), &name) + part
    };
    let (known, likeness) =
        names.into_iter().map(|known| (known, likeness(known))).max_by(|a, b| a.1.total_cmp(&b.1))?;
    (likeness > LIKENESS).then_some(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_suggested_only_if_it_is_near() {
        let options =
            ["host", "password", "connect_timeout", "sentinel_password_env", "start", "maxlen", "tls_ca_cert"];
        let near = |name| nearest(options, name);
        for (name, meant) in [
            ("hots", "host"),
            ("MaxLen", "maxlen"),
            ("max_len", "maxlen"),
            ("timeout", "connect_timeout"),
            ("ca_cert", "tls_ca_cert"),
            ("pasword", "password"),
        ] {
            assert_eq!(near(name), Some(meant), "{name}");
        }
        for name in ["ssl", "decode_responses", "stream", "nope", "total", "", "colour"] {
            assert_eq!(near(name), None, "{name}");
        }
        assert_eq!(nearest([], "host"), None);
    }
}
