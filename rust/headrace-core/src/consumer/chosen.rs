//! The rows of a batch that a decision is about.

/// Some rows of a batch, each of which is an entry.
#[derive(Debug, Clone, Copy)]
pub enum Chosen<'a> {
    /// All rows.
    All,
    /// The rows for which the mask is true. It has a value for each row.
    Mask(&'a [bool]),
    /// The row with this number. A mask would cost as much as a batch.
    Row(usize),
}

impl Chosen<'_> {
    /// The numbers of the rows, of a batch with `rows` rows.
    pub(super) fn of(self, rows: usize) -> Vec<usize> {
        match self {
            Self::All => (0..rows).collect(),
            Self::Mask(mask) => (0..rows).filter(|row| mask.get(*row).copied().unwrap_or(false)).collect(),
            Self::Row(row) => (row < rows).then_some(row).into_iter().collect(),
        }
    }
}

impl<'a> From<Option<&'a [bool]>> for Chosen<'a> {
    fn from(mask: Option<&'a [bool]>) -> Self {
        mask.map_or(Self::All, Self::Mask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_the_batch_does_not_have_are_not_chosen() {
        assert_eq!(Chosen::All.of(3), [0, 1, 2]);
        assert_eq!(Chosen::Mask(&[true, false, true, true]).of(3), [0, 2]);
        assert_eq!(Chosen::Mask(&[true]).of(3), [0]);
        assert_eq!((Chosen::Row(2).of(3), Chosen::Row(3).of(3)), (vec![2], vec![]));
    }
}
