//! The names of rows that bring their own names, as a script call carries them: each list once, however many rows have it.

use std::ops::Range;

use crate::command::script::NameList;

/// A run is sent once it has this many lists: the script makes a table for each.
const MAX_LISTS: usize = 64;
/// A run is also sent once lists times names reach this number: the script checks each name for each list.
const MAX_CELLS: usize = 16_384;
/// A run is also sent once all names together have this many bytes.
const MAX_BYTES: usize = 16 * 1024;
/// This many lists show whether most rows have a list of their own.
const ENOUGH_LISTS: usize = 16;

/// The lists of names of the rows of a run.
#[derive(Debug, Default)]
pub(crate) struct NameLists {
    /// The names of all lists, one list after the other.
    names: NameList,
    /// Where each list ends: in bytes and in names.
    ends: Vec<(usize, usize)>,
    /// The list of the last row.
    last: usize,
}

impl NameLists {
    /// The number of lists.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// All names.
    pub(crate) fn names(&self) -> &NameList {
        &self.names
    }

    /// The number of a list of `count` names, counted from 1. `write` appends them as bulk strings.
    pub(crate) fn number_of(&mut self, count: usize, write: impl FnOnce(&mut Vec<u8>)) -> usize {
        let start = self.names.bulks.len();
        write(&mut self.names.bulks);
        let (known, list) = self.names.bulks.split_at(start);
        let is_same = |at: &usize| known.get(self.span(*at)) == Some(list);
        // Rows with the same names mostly follow each other.
        let found = Some(self.last).filter(is_same).or_else(|| (0..self.len()).find(is_same));
        if found.is_some() {
            self.names.bulks.truncate(start);
        } else {
            self.names.count += count;
            self.ends.push((self.names.bulks.len(), self.names.count));
        }
        self.last = found.unwrap_or(self.len() - 1);
        self.last + 1
    }

    /// The size in bytes and the number of the names of the first `lists` lists.
    fn end(&self, lists: usize) -> (usize, usize) {
        lists.checked_sub(1).and_then(|at| self.ends.get(at)).copied().unwrap_or_default()
    }

    /// The position of a list, in bytes.
    fn span(&self, at: usize) -> Range<usize> {
        self.end(at).0..self.end(at + 1).0
    }

    /// The size of all names in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.names.bulks.len()
    }

    /// Keeps only the first `lists` lists.
    pub(crate) fn truncate(&mut self, lists: usize) {
        let (bytes, count) = self.end(lists);
        self.names.bulks.truncate(bytes);
        self.names.count = count;
        self.ends.truncate(lists);
    }

    /// Removes all lists, and keeps at most `kept` bytes of memory.
    pub(crate) fn clear(&mut self, kept: usize) {
        self.truncate(0);
        self.names.bulks.shrink_to(kept);
    }

    /// Whether a run of this many rows must be sent before another list joins it.
    pub(crate) fn are_full(&self, rows: u64) -> bool {
        let most = if self.differ(rows) { ENOUGH_LISTS } else { MAX_LISTS };
        self.len() >= most || self.len() * self.names.count >= MAX_CELLS || self.bytes() >= MAX_BYTES
    }

    /// Whether most of this many rows have a list of their own, so that sending each list once saves nothing.
    pub(crate) fn differ(&self, rows: u64) -> bool {
        rows < 2 * self.len() as u64
    }

    /// Each list as a subset of all names: one character for each name, `1` if the list has it, otherwise `0`.
    pub(crate) fn sets(&self) -> Vec<Box<[u8]>> {
        let set = |at: usize| {
            let mut set = vec![b'0'; self.names.count];
            set[self.end(at).1..self.end(at + 1).1].fill(b'1');
            set.into()
        };
        (0..self.len()).map(set).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::write_bulk;

    fn number(lists: &mut NameLists, names: &[&str]) -> usize {
        lists.number_of(names.len(), |out| names.iter().for_each(|name| write_bulk(out, name.as_bytes())))
    }

    #[test]
    fn a_list_has_one_number_and_its_order_matters() {
        let mut lists = NameLists::default();
        let rows: [&[&str]; 7] = [&["a", "b"], &["a", "b"], &["b", "a"], &["a"], &["a", "b"], &["a", "a"], &["a"]];
        assert_eq!(rows.map(|names| number(&mut lists, names)), [1, 1, 2, 3, 1, 4, 3]);
        assert_eq!((lists.len(), lists.names().count), (4, 7));
        let sets: Vec<_> = lists.sets().into_iter().map(|set| String::from_utf8_lossy(&set).into_owned()).collect();
        assert_eq!(sets, ["1100000", "0011000", "0000100", "0000011"]);
    }

    #[test]
    fn removed_lists_leave_no_trace() {
        let mut lists = NameLists::default();
        number(&mut lists, &["a"]);
        let bytes = lists.bytes();
        assert_eq!(number(&mut lists, &["long name", "b"]), 2);
        lists.truncate(1);
        assert_eq!((lists.len(), lists.names().count, lists.bytes()), (1, 1, bytes));
        assert_eq!([number(&mut lists, &["b"]), number(&mut lists, &["a"])], [2, 1]);
        lists.clear(4);
        assert_eq!((lists.len(), lists.names()), (0, &NameList::default()));
        assert!(lists.names().bulks.capacity() < 16);
    }

    #[test]
    fn lists_are_bounded_in_number_and_in_names() {
        let mut lists = NameLists::default();
        for list in 0..MAX_LISTS {
            assert!(!lists.are_full(1_000));
            number(&mut lists, &[&list.to_string()]);
            assert_eq!(
                (lists.are_full(list as u64 + 1), lists.differ(list as u64 + 1)),
                (list + 1 >= ENOUGH_LISTS, true)
            );
        }
        assert!(lists.are_full(1_000) && !lists.differ(1_000));
        lists.clear(0);
        for list in 0..13 {
            assert!(!lists.are_full(1_000));
            number(&mut lists, &vec![""; 100 + list]);
        }
        assert!(lists.are_full(1_000), "13 lists with 1,378 names");
        lists.clear(0);
        number(&mut lists, &[&"x".repeat(MAX_BYTES)]);
        assert!(lists.are_full(1_000), "a long name");
    }
}
