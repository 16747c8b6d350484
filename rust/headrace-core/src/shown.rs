//! Names in messages and reprs: in quotes, and shortened.

/// The longest name that is shown in full, in bytes.
const MAX_NAME: usize = 64;

/// The maximum number of names that are shown of a list.
const MAX_NAMES: usize = 3;

/// The key of a stream, or another name, in quotes.
pub fn quoted(name: &[u8]) -> String {
    let (shown, rest) = name.split_at(name.len().min(MAX_NAME));
    let shown = String::from_utf8_lossy(shown);
    format!("'{}{}'", shown.escape_debug(), if rest.is_empty() { "" } else { "…" })
}

/// The first three names, and how many more there are.
pub fn shown_names(names: &[Vec<u8>]) -> String {
    let shown: Vec<_> = names.iter().take(MAX_NAMES).map(|name| quoted(name)).collect();
    let more = names.len() - shown.len();
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!("{}{more}", shown.join(", "))
}
