//! The names of an entry's fields. Entries of a stream usually have the same names in the same order, so the names of the last
//! entry are kept in the form in which they go into the column, and only compared.

use std::collections::HashSet;

use super::escape::escaped;

/// Up to this number of names, all pairs are compared, which is cheaper than hashing.
const FEW: usize = 16;

/// The maximum memory that is kept for later names after an entry that needed more.
const KEPT: usize = 1 << 20;

/// The form in which names are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum NamesAs {
    /// As utf8: see [`escaped`].
    #[default]
    Utf8,
    /// As their raw bytes.
    Binary,
}

/// Names as they were received.
#[derive(Debug, Default)]
struct Given {
    bytes: Vec<u8>,
    /// The end of each name.
    ends: Vec<u32>,
}

impl Given {
    fn push(&mut self, name: &[u8]) {
        self.bytes.extend_from_slice(name);
        // A reply has entries of at most 4 GiB: `Limits::entry_bytes`.
        self.ends.push(self.bytes.len() as u32);
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(&0).chain(&self.ends);
        starts.zip(&self.ends).map(|(start, end)| &self.bytes[*start as usize..*end as usize])
    }
}

/// Whether two names are equal. Names of 4 to 16 bytes are compared without a call, by their first and their last half, which
/// overlap.
#[inline]
pub(super) fn are_equal(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    match one.len() {
        4..8 => one.first_chunk::<4>() == other.first_chunk() && one.last_chunk::<4>() == other.last_chunk(),
        8..=16 => one.first_chunk::<8>() == other.first_chunk() && one.last_chunk::<8>() == other.last_chunk(),
        _ => one == other,
    }
}

/// The names of one entry, compared with those of the previous one.
#[derive(Debug)]
pub(super) struct Names {
    form: NamesAs,
    /// Whether the last of several equal names replaces the others.
    are_unique: bool,
    last: Given,
    /// The names of the last entry as they go into the column, without those that were replaced.
    pub(super) written: Vec<u8>,
    pub(super) ends: Vec<u32>,
    /// Which fields of the last entry are kept. Empty: all of them.
    pub(super) kept: Vec<bool>,
    /// The number of names of this entry that were compared.
    at: usize,
    /// The start of the next name in `last`, if it is the same.
    start: usize,
    /// The names of this entry, if they differ from those of the last one.
    other: Option<Given>,
    /// Memory for the next entry whose names differ.
    spare: Given,
}

impl Names {
    pub(super) fn new(form: NamesAs, are_unique: bool) -> Self {
        Self {
            form,
            are_unique,
            last: Given::default(),
            written: Vec::new(),
            ends: Vec::new(),
            kept: Vec::new(),
            at: 0,
            start: 0,
            other: None,
            spare: Given::default(),
        }
    }

    /// Takes the next name of this entry.
    #[inline]
    pub(super) fn push(&mut self, name: &[u8]) {
        if self.other.is_none()
            && let Some(end) = self.last.ends.get(self.at)
            && are_equal(&self.last.bytes[self.start..*end as usize], name)
        {
            self.at += 1;
            self.start = *end as usize;
            return;
        }
        self.push_other(name);
    }

    #[inline(never)]
    fn push_other(&mut self, name: &[u8]) {
        if self.other.is_none() {
            self.differ();
        }
        if let Some(other) = &mut self.other {
            other.push(name);
        }
    }

    /// Copies the names of the last entry before `at`, where those of this entry begin to differ.
    fn differ(&mut self) {
        let mut other = std::mem::take(&mut self.spare);
        other.clear();
        other.bytes.extend_from_slice(&self.last.bytes[..self.start]);
        other.ends.extend_from_slice(&self.last.ends[..self.at]);
        self.other = Some(other);
    }

    /// Ends the names of this entry: they are in `written` now.
    #[inline]
    pub(super) fn end(&mut self) {
        if self.other.is_some() || self.at != self.last.ends.len() {
            self.replace();
        }
        (self.at, self.start) = (0, 0);
    }

    /// Forgets the names of this entry.
    pub(super) fn discard(&mut self) {
        if let Some(other) = self.other.take() {
            self.keep_spare(other);
        }
        (self.at, self.start) = (0, 0);
    }

    /// Keeps the memory of these names for the next entry whose names differ.
    fn keep_spare(&mut self, given: Given) {
        let is_large = given.bytes.capacity().max(given.ends.capacity()) > KEPT;
        self.spare = if is_large { Given::default() } else { given };
    }

    #[inline(never)]
    fn replace(&mut self) {
        if self.other.is_none() {
            self.differ();
        }
        let other = self.other.take().unwrap_or_default();
        let last = std::mem::replace(&mut self.last, other);
        self.keep_spare(last);
        self.find_kept();
        self.written.clear();
        self.written.shrink_to(KEPT);
        self.ends.clear();
        self.ends.shrink_to(KEPT);
        for (place, name) in self.last.iter().enumerate() {
            if self.kept.get(place) == Some(&false) {
                continue;
            }
            match self.form {
                NamesAs::Utf8 => self.written.extend_from_slice(escaped(name).as_bytes()),
                NamesAs::Binary => self.written.extend_from_slice(name),
            }
            self.ends.push(u32::try_from(self.written.len()).unwrap_or(u32::MAX));
        }
    }

    /// Finds which names stay: a later equal name replaces an earlier one.
    fn find_kept(&mut self) {
        self.kept.clear();
        if !self.are_unique {
            return;
        }
        let names: Vec<&[u8]> = self.last.iter().collect();
        let kept: Vec<bool> = if names.len() <= FEW {
            (0..names.len()).map(|place| !names[place + 1..].contains(&names[place])).collect()
        } else {
            let mut seen = HashSet::with_capacity(names.len());
            let mut kept: Vec<bool> = names.iter().rev().map(|name| seen.insert(*name)).collect();
            kept.reverse();
            kept
        };
        if kept.contains(&false) {
            self.kept = kept;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_large_names_is_released() {
        let mut names = Names::new(NamesAs::Utf8, true);
        for large in [vec![b'x'; 4 * KEPT], vec![0xff; 4 * KEPT], vec![b'x'; 4 * KEPT]] {
            names.push(&large);
            names.end();
            assert!(names.written.len() >= large.len());
        }
        for name in [b"a", b"b"] {
            names.push(name);
            names.end();
            assert_eq!((&names.written[..], &names.ends[..]), (&name[..], &[1][..]));
        }
        let kept = [&names.last, &names.spare].map(|given| given.bytes.capacity() + given.ends.capacity());
        assert!(kept.iter().sum::<usize>() + names.written.capacity() <= 3 * KEPT);
    }
}
