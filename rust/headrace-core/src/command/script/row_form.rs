//! The form of the rows of a run: what they share is sent once.

use crate::resp::write_bulk;

/// What the rows of a run share.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum RowForm {
    /// Rows share nothing: each brings the arguments of its XADD. For rows with entry IDs of their own.
    #[default]
    Whole,
    /// One field, whose name this is as a bulk string. A row is its value.
    One(Box<[u8]>),
    /// Several fields. A row is their values.
    All(NameList),
    /// Several fields of which a row may lack some. A row is the number of its set of fields, and their values.
    Sparse(NameList),
    /// Several fields whose names each row brings. Its run gathers them, and a row is the number of its list of names, which is a
    /// subset of all names, and its values.
    Gathered,
}

/// A list of field names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct NameList {
    /// As bulk strings.
    pub(crate) bulks: Vec<u8>,
    pub(crate) count: usize,
}

impl RowForm {
    /// The script's word for the form, depending on whether the values of several fields are packed.
    fn word(&self, is_packed: bool) -> &'static [u8] {
        match (self, is_packed) {
            (Self::Whole, _) => b"whole",
            (Self::One(_), _) => b"one",
            (Self::All(_), false) => b"all",
            (Self::All(_), true) => b"all packed",
            (Self::Sparse(_) | Self::Gathered, false) => b"sparse",
            (Self::Sparse(_) | Self::Gathered, true) => b"sparse packed",
        }
    }

    /// Appends the arguments of a run up to its first row: `shared` are those that apply to every row, `sets` the sets of fields
    /// that occur, `gathered` the names of [`Self::Gathered`]. Returns how many arguments were appended.
    pub(crate) fn write(
        &self,
        out: &mut Vec<u8>,
        (shared, shared_count): (&[u8], usize),
        gathered: &NameList,
        sets: &[Box<[u8]>],
        is_packed: bool,
    ) -> usize {
        write_bulk(out, self.word(is_packed));
        if matches!(self, Self::Whole) {
            return 1;
        }
        out.extend_from_slice(shared);
        let more = match self {
            Self::Whole => 0,
            Self::One(name) => {
                out.extend_from_slice(name);
                1
            }
            Self::All(names) => names.write(out),
            Self::Sparse(names) => write_sets(out, names, sets),
            Self::Gathered => write_sets(out, gathered, sets),
        };
        1 + shared_count + more
    }
}

fn write_sets(out: &mut Vec<u8>, names: &NameList, sets: &[Box<[u8]>]) -> usize {
    let count = names.write(out);
    write_bulk(out, itoa::Buffer::new().format(sets.len()).as_bytes());
    for set in sets {
        write_bulk(out, set);
    }
    count + 1 + sets.len()
}

impl NameList {
    fn write(&self, out: &mut Vec<u8>) -> usize {
        write_bulk(out, itoa::Buffer::new().format(self.count).as_bytes());
        out.extend_from_slice(&self.bulks);
        1 + self.count
    }
}
