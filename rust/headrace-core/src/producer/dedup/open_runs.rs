//! The open runs of a batch: one for each stream that has rows that are encoded but not sent yet.

use std::sync::Arc;

use super::name_lists::NameLists;
use crate::command::script::RowForm;
use crate::connection::Span;

/// A run is sent once it has this many bytes. A row of this size is a run of its own: if it is larger than the server accepts, no
/// other row fails with it.
const RUN_BYTES: usize = 64 * 1024;
/// A run is sent once it has this many sets of fields: the script makes a table for each.
const MAX_SETS: usize = 64;
/// How many buffers are kept for the next runs.
const SPARE: usize = 8;
/// The capacity that a kept buffer may have: one large run must not hold its memory forever.
const KEPT: usize = 256 * 1024;
/// The approximate memory of a run besides its bytes.
const OVERHEAD: usize = 256;
/// Runs of `2^n` bytes and more are in class `n`.
const CLASSES: usize = usize::BITS as usize;

/// Encoded rows of one stream whose run is not complete.
#[derive(Debug, Default)]
pub(crate) struct OpenRun {
    pub(crate) stream_key: Vec<u8>,
    /// The number of the run's first row in its stream.
    pub(crate) first: u64,
    /// The numbers of the run's rows among all messages.
    pub(crate) messages: Vec<Span>,
    pub(crate) rows: u64,
    pub(crate) form: Arc<RowForm>,
    /// Whether trimming is due with one of the run's rows.
    pub(crate) trims: bool,
    /// The sets of fields of the run's rows, for [`RowForm::Sparse`].
    pub(crate) sets: Vec<Box<[u8]>>,
    /// The mark of each set, by which it is found.
    marks: Vec<u64>,
    /// The set that was looked up last.
    set: Vec<u8>,
    /// The names of the run's rows, for [`RowForm::Gathered`].
    pub(crate) names: NameLists,
    pub(crate) arguments: Vec<u8>,
    pub(crate) argument_count: usize,
    whole: Whole,
    /// Whether the run has the maximum number of sets of fields.
    pub(crate) has_many_sets: bool,
    /// Whether the next row must be a run of its own.
    ends: bool,
    /// The size with which the run is counted in the total of all runs.
    counted: usize,
    /// The number of the run among all runs that were ever opened: places are reused.
    generation: u64,
    class: usize,
}

/// The part of a run that consists of complete rows.
#[derive(Debug, Default, Clone, Copy)]
struct Whole {
    /// The size of their names and arguments in bytes.
    bytes: usize,
    arguments: usize,
    lists: usize,
}

impl OpenRun {
    /// Starts a run whose first row has this number in its stream.
    pub(crate) fn begin(&mut self, stream_key: &[u8], first: u64, form: Arc<RowForm>) {
        self.stream_key.clear();
        self.stream_key.extend_from_slice(stream_key);
        (self.first, self.form) = (first, form);
    }

    /// Adds the message with this number, whose arguments are complete.
    #[inline]
    pub(crate) fn add_row(&mut self, message: u64) {
        match self.messages.last_mut() {
            Some(span) if span.first + span.count == message => span.count += 1,
            _ => self.messages.push(Span { first: message, count: 1 }),
        }
        self.rows += 1;
        self.whole = Whole { bytes: self.bytes(), arguments: self.argument_count, lists: self.names.len() };
    }

    /// The number of a set of fields, counted from 1. `mark`: a number for the set, which is unique if there are up to 64 fields.
    /// `write` writes one character for each field, `1` if the field is present.
    #[inline]
    pub(crate) fn number_of_set(&mut self, fields: usize, mark: u64, write: impl FnOnce(&mut Vec<u8>)) -> usize {
        if fields <= 64
            && let Some(at) = self.marks.iter().position(|its| *its == mark)
        {
            return at + 1;
        }
        write(&mut self.set);
        self.number_of_new_set(mark)
    }

    #[inline(never)]
    fn number_of_new_set(&mut self, mark: u64) -> usize {
        let mut known = self.marks.iter().zip(&self.sets);
        let at = known.position(|(its, known)| *its == mark && **known == *self.set).unwrap_or_else(|| {
            self.sets.push(self.set.as_slice().into());
            self.marks.push(mark);
            self.has_many_sets |= self.sets.len() >= MAX_SETS;
            self.sets.len() - 1
        });
        at + 1
    }

    /// The number of a list of `count` names, counted from 1. `write` appends them as bulk strings.
    pub(crate) fn number_of_names(&mut self, count: usize, write: impl FnOnce(&mut Vec<u8>)) -> usize {
        let number = self.names.number_of(count, write);
        self.has_many_sets |= self.names.are_full(self.rows + 1);
        number
    }

    /// The size of the names and arguments of all rows in bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.arguments.len() + self.names.bytes()
    }

    /// Whether the run must be sent before another row joins it.
    #[inline]
    pub(crate) fn is_full(&self, max_rows: u64) -> bool {
        self.rows >= max_rows || self.arguments.len() >= RUN_BYTES || self.has_many_sets || self.ends
    }

    /// If the row whose arguments were added last must be a run of its own, takes them back, which makes this run full. Returns
    /// whether it did.
    #[inline]
    pub(crate) fn ends_before_large(&mut self) -> bool {
        self.ends = self.rows > 0 && self.bytes() - self.whole.bytes >= RUN_BYTES;
        if self.ends {
            self.take_back();
        }
        self.ends
    }

    /// Takes back the arguments of an incomplete row.
    pub(crate) fn take_back(&mut self) {
        let Whole { bytes, arguments, lists } = self.whole;
        self.names.truncate(lists);
        self.arguments.truncate(bytes - self.names.bytes());
        self.argument_count = arguments;
    }

    /// The run's approximate size in bytes.
    fn size(&self) -> usize {
        OVERHEAD + self.stream_key.len() + self.whole.bytes + size_of::<Span>() * self.messages.len()
    }

    fn clear(&mut self) {
        let Self { messages, sets, marks, names, arguments, .. } = self;
        messages.clear();
        sets.clear();
        marks.clear();
        names.clear(KEPT);
        arguments.clear();
        arguments.shrink_to(KEPT);
        (self.rows, self.argument_count, self.whole) = (0, 0, Whole::default());
        (self.trims, self.has_many_sets, self.ends) = (false, false, false);
    }
}

/// The place of an open run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    index: usize,
    generation: u64,
}

/// The open runs.
#[derive(Debug)]
pub(crate) struct OpenRuns {
    runs: Vec<Option<OpenRun>>,
    free: Vec<usize>,
    spare: Vec<OpenRun>,
    /// Runs by a size that they once had: those that have been closed or have grown since are skipped.
    classes: [Vec<Place>; CLASSES],
    /// How many places are in `classes`.
    listed: usize,
    /// The size of all open runs in bytes.
    bytes: usize,
    generation: u64,
}

impl Default for OpenRuns {
    fn default() -> Self {
        Self {
            runs: Vec::new(),
            free: Vec::new(),
            spare: Vec::new(),
            classes: std::array::from_fn(|_| Vec::new()),
            listed: 0,
            bytes: 0,
            generation: 0,
        }
    }
}

impl OpenRuns {
    /// The number of open runs.
    pub(crate) fn len(&self) -> usize {
        self.runs.len() - self.free.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The size of all open runs in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The run at a place, if it is still open.
    pub(crate) fn get(&mut self, place: Place) -> Option<&mut OpenRun> {
        self.runs.get_mut(place.index)?.as_mut().filter(|run| run.generation == place.generation)
    }

    /// Opens a run whose first row has this number in its stream.
    pub(crate) fn open(&mut self, stream_key: &[u8], first: u64, form: &Arc<RowForm>) -> Place {
        let mut run = self.spare.pop().unwrap_or_default();
        self.generation += 1;
        run.begin(stream_key, first, Arc::clone(form));
        (run.generation, run.class, run.counted) = (self.generation, CLASSES, run.size());
        self.bytes += run.counted;
        let index = self.free.pop().unwrap_or_else(|| {
            self.runs.push(None);
            self.runs.len() - 1
        });
        self.runs[index] = Some(run);
        Place { index, generation: self.generation }
    }

    /// Counts the size of the rows that were added to the run at this place.
    pub(crate) fn count(&mut self, place: Place) {
        let Some(run) = self.runs.get_mut(place.index).and_then(Option::as_mut) else { return };
        let size = run.size();
        self.bytes += size - run.counted;
        run.counted = size;
        let class = size.ilog2() as usize;
        if class != run.class {
            run.class = class;
            self.list(place, class);
        }
    }

    fn list(&mut self, place: Place, class: usize) {
        if self.listed > 1_024 + 4 * self.len() {
            // Most of the listed runs are closed.
            self.classes.iter_mut().for_each(Vec::clear);
            for (index, run) in self.runs.iter().enumerate() {
                if let Some(run) = run.as_ref().filter(|run| run.rows > 0) {
                    self.classes[run.class].push(Place { index, generation: run.generation });
                }
            }
            self.listed = self.classes.iter().map(Vec::len).sum();
        } else {
            self.classes[class].push(place);
            self.listed += 1;
        }
    }

    /// Removes and returns the run at a place, if it is still open.
    pub(crate) fn close(&mut self, place: Place) -> Option<OpenRun> {
        self.get(place)?;
        let run = self.runs[place.index].take()?;
        self.bytes -= run.counted;
        self.free.push(place.index);
        Some(run)
    }

    /// Keeps the buffers of a run for another one.
    pub(crate) fn recycle(&mut self, mut run: OpenRun) {
        if self.spare.len() < SPARE {
            run.clear();
            self.spare.push(run);
        }
    }

    /// The place of the largest run; any of several whose sizes differ by less than a factor of two.
    pub(crate) fn largest(&mut self) -> Option<Place> {
        for class in (0..CLASSES).rev() {
            while let Some(place) = self.classes[class].last().copied() {
                if self.get(place).is_some_and(|run| run.class == class) {
                    return Some(place);
                }
                self.classes[class].pop();
                self.listed -= 1;
            }
        }
        None
    }

    /// The places of all open runs, in the order in which they were opened.
    pub(crate) fn places(&self) -> Vec<Place> {
        let open = self
            .runs
            .iter()
            .enumerate()
            .filter_map(|(index, run)| run.as_ref().map(|run| Place { index, generation: run.generation }));
        let mut places: Vec<_> = open.collect();
        places.sort_by_key(|place| place.generation);
        places
    }

    /// Forgets all runs.
    pub(crate) fn clear(&mut self) {
        *self = Self { generation: self.generation, ..Self::default() };
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn add(runs: &mut OpenRuns, place: Place, bytes: usize, message: u64) {
        let run = runs.get(place).unwrap();
        run.arguments.resize(bytes, b'x');
        run.add_row(message);
        runs.count(place);
    }

    #[test]
    fn the_largest_run_is_found_as_runs_grow_and_close() {
        let mut runs = OpenRuns::default();
        let [a, b, c] = [b"a", b"b", b"c"].map(|key| runs.open(key, 0, &Arc::default()));
        add(&mut runs, a, 100, 0);
        add(&mut runs, b, 1_000, 1);
        add(&mut runs, c, 10, 2);
        assert_eq!((runs.largest(), runs.bytes()), (Some(b), 1_110 + 3 * (OVERHEAD + 1 + 16)));
        add(&mut runs, a, 5_000, 3);
        assert_eq!(runs.largest(), Some(a));
        let closed = runs.close(a).unwrap();
        assert_eq!(closed.messages, [(0, 1), (3, 1)].map(|(first, count)| Span { first, count }));
        runs.recycle(closed);
        assert_eq!((runs.close(a).map(|run| run.rows), runs.largest()), (None, Some(b)));
        let again = runs.open(b"a", 2, &Arc::default());
        assert!(runs.get(a).is_none() && runs.get(again).is_some(), "the place is used again");
        assert_eq!(runs.places(), [b, c, again]);
        for place in [b, c, again] {
            runs.close(place).unwrap();
        }
        assert_eq!((runs.bytes(), runs.largest(), runs.is_empty()), (0, None, true));
    }

    #[test]
    fn closed_runs_are_forgotten() {
        let mut runs = OpenRuns::default();
        let kept = runs.open(b"kept", 0, &Arc::default());
        add(&mut runs, kept, 10, 0);
        for message in 1..100_000 {
            let place = runs.open(b"closed", 0, &Arc::default());
            add(&mut runs, place, 100, message);
            let closed = runs.close(place).unwrap();
            runs.recycle(closed);
            assert!(runs.listed < 2_000 && runs.runs.len() == 2);
        }
        assert_eq!((runs.len(), runs.largest()), (1, Some(kept)));
    }
}
