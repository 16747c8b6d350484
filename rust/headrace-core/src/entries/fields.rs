//! The columns of an entry's fields: finds the column of a field by its name.

use std::collections::HashMap;
use std::mem::{replace, take};

use arrow_array::ArrayRef;
use arrow_schema::Field;

use super::cast::{BadValue, FieldColumn, OnBadField, ValueForm};
use super::misspelt::Misspelt;
use super::names::are_equal;
use crate::nearest::nearest;

/// Up to this number of columns, a name is compared with each of them, which is cheaper than hashing.
const FEW: usize = 8;

/// The number of fields of an entry whose columns are remembered. It is limited because an entry may have millions of fields.
const MOST_PLACES: usize = 1024;

/// The maximum length of a name that is remembered; longer ones are looked up each time.
const LONGEST_NAME: usize = 256;

/// The requested fields as columns, and what happens to values that do not fit them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FieldsPlan {
    fields: Vec<Field>,
    form: ValueForm,
    on_bad: OnBadField,
}

impl FieldsPlan {
    /// Creates a plan for values as text. Fails for a type that cannot be read from it. The names must be different.
    pub(crate) fn new(fields: Vec<Field>, on_bad: OnBadField) -> crate::Result<Self> {
        Self::of(fields, ValueForm::Text, on_bad)
    }

    /// Creates a plan for values in this form. Fails for a type that cannot be read from it. The names must be different.
    pub(crate) fn of(fields: Vec<Field>, form: ValueForm, on_bad: OnBadField) -> crate::Result<Self> {
        fields.iter().try_for_each(|field| FieldColumn::of(field, form, on_bad).map(drop))?;
        Ok(Self { fields, form, on_bad })
    }

    pub(crate) fn fields(&self) -> &[Field] {
        &self.fields
    }
}

/// Builds one column for each requested field. Other fields of an entry are ignored; fields that it does not have are null.
#[derive(Debug)]
pub(crate) struct FieldColumns {
    columns: Vec<FieldColumn>,
    /// The columns by name; `None` if there are only a few.
    by_name: Option<HashMap<Box<[u8]>, usize>>,
    /// The fields of an earlier entry by their place, because the entries of a stream usually have the same names in the same
    /// order.
    places: Vec<Place>,
    /// The place of the next field in its entry.
    next: usize,
    /// The number of columns that have a value from this entry.
    filled: usize,
    rows: usize,
    /// The values of this entry that do not fit, with the indexes of their columns.
    bad: Vec<(usize, BadValue)>,
    /// The misspelt field of the first record batch, until it is taken.
    misspelt: Option<Misspelt>,
    has_finished: bool,
}

/// The field that an earlier entry had at this place.
#[derive(Debug, Default)]
struct Place {
    name: Vec<u8>,
    /// `None` if the field was not requested.
    column: Option<usize>,
}

impl FieldColumns {
    pub(crate) fn new(plan: &FieldsPlan) -> Self {
        // The plan has checked that each column can be built.
        let columns: Vec<FieldColumn> =
            plan.fields.iter().filter_map(|field| FieldColumn::of(field, plan.form, plan.on_bad).ok()).collect();
        let names = columns.iter().map(|column| Box::from(column.name().as_bytes()));
        Self {
            by_name: (columns.len() > FEW).then(|| names.zip(0..).collect()),
            columns,
            places: Vec::new(),
            next: 0,
            filled: 0,
            rows: 0,
            bad: Vec::new(),
            misspelt: None,
            has_finished: false,
        }
    }

    /// Takes a field of the entry. The last of several equal names replaces the others.
    #[inline]
    pub(crate) fn field(&mut self, name: &[u8], value: &[u8]) {
        let column = match self.places.get(self.next) {
            Some(place) if are_equal(&place.name, name) => place.column,
            _ => self.look_up(name),
        };
        self.next += 1;
        if let Some(column) = column {
            self.push(column, value);
        }
    }

    /// Appends a value to a column.
    #[inline]
    pub(crate) fn push(&mut self, index: usize, value: &[u8]) {
        let column = &mut self.columns[index];
        if column.rows() > self.rows {
            column.pop();
            self.filled -= 1;
        } else if !self.bad.is_empty() {
            self.forget_bad(index);
        }
        match self.columns[index].push(Some(value)) {
            Ok(()) => self.filled += 1,
            Err(bad) => self.bad.push((index, bad)),
        }
    }

    /// Forgets the bad value of a column because another value replaces it.
    #[cold]
    fn forget_bad(&mut self, index: usize) {
        self.bad.retain(|(column, _)| *column != index);
    }

    /// The column of a name that is not at its expected place; the place is updated for the next entry.
    #[inline(never)]
    fn look_up(&mut self, name: &[u8]) -> Option<usize> {
        let column = match &self.by_name {
            Some(by_name) => by_name.get(name).copied(),
            None => self.columns.iter().position(|column| column.name().as_bytes() == name),
        };
        if self.next < MOST_PLACES && name.len() <= LONGEST_NAME {
            if self.places.len() <= self.next {
                self.places.resize_with(self.next + 1, Place::default);
            }
            let place = &mut self.places[self.next];
            place.name.clear();
            place.name.extend_from_slice(name);
            place.column = column;
        }
        column
    }

    /// Completes the entry, which becomes a row. If one of its values does not fit, or a column without nulls has no value, it
    /// becomes no row.
    #[inline]
    pub(crate) fn end(&mut self) -> Result<(), BadValue> {
        if self.filled < self.columns.len() {
            self.fill();
        }
        self.next = 0;
        self.filled = 0;
        if !self.bad.is_empty() {
            return Err(self.take_back());
        }
        self.rows += 1;
        Ok(())
    }

    /// Appends nulls to the columns that have no value from this entry.
    fn fill(&mut self) {
        for (index, column) in self.columns.iter_mut().enumerate() {
            if column.rows() == self.rows
                && !self.bad.iter().any(|(bad, _)| *bad == index)
                && let Err(bad) = column.push(None)
            {
                self.bad.push((index, bad));
            }
        }
    }

    /// Removes the values of this entry, and returns the first one that did not fit.
    #[cold]
    fn take_back(&mut self) -> BadValue {
        for column in &mut self.columns {
            if column.rows() > self.rows {
                column.pop();
            }
        }
        let (_, first) = self.bad.swap_remove(0);
        self.bad.clear();
        first
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Removes the values of this entry.
    #[cold]
    pub(crate) fn discard(&mut self) {
        (self.next, self.filled) = (0, 0);
        self.bad.clear();
        self.truncate(self.rows);
    }

    /// Removes the rows after the first `rows`.
    pub(crate) fn truncate(&mut self, rows: usize) {
        self.rows = rows;
        self.columns.iter_mut().for_each(|column| column.truncate(rows));
    }

    /// The memory that the columns take.
    pub(crate) fn bytes(&self) -> usize {
        self.columns.iter().map(FieldColumn::bytes).sum()
    }

    /// The total number of values that became null because they did not fit their column.
    pub(crate) fn bad_values(&self) -> u64 {
        self.columns.iter().map(FieldColumn::bad_values).sum()
    }

    /// Appends the columns to `columns` in the order in which they were requested. Resets the builder.
    pub(crate) fn finish(&mut self, columns: &mut Vec<ArrayRef>) -> crate::Result<()> {
        let rows = take(&mut self.rows);
        let is_first = rows > 0 && !replace(&mut self.has_finished, rows > 0);
        for index in 0..self.columns.len() {
            let values = self.columns[index].finish()?;
            if is_first && values.null_count() == rows {
                self.misspelt = self.misspelt.take().or_else(|| self.similar(index));
            }
            columns.push(values);
        }
        Ok(())
    }

    /// Finds a field with a name similar to that of a column that is null in the first record batch. `None` if the entries have
    /// the column's field, or no other one that is similar.
    #[cold]
    fn similar(&self, index: usize) -> Option<Misspelt> {
        let column = &self.columns[index];
        let has_field = self.places.iter().any(|place| place.column == Some(index)) || column.bad_values() > 0;
        let others = self.places.iter().filter(|place| place.column.is_none() && !has_field);
        let names = others.filter_map(|place| str::from_utf8(&place.name).ok());
        let similar = nearest(names, column.name())?.to_owned();
        Some(Misspelt { column: column.name().to_owned(), similar })
    }

    /// The column of the first record batch that is null because its field is probably misspelt. Returned once.
    pub(crate) fn take_misspelt(&mut self) -> Option<Misspelt> {
        self.misspelt.take()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::HashMap;

    use arrow_array::cast::AsArray;
    use arrow_array::types::Int64Type;
    use arrow_schema::DataType;
    use proptest::prelude::*;

    use super::*;

    fn columns(fields: &[Field], on_bad: OnBadField) -> FieldColumns {
        FieldColumns::new(&FieldsPlan::new(fields.to_vec(), on_bad).unwrap())
    }

    fn int(name: &str) -> Field {
        Field::new(name, DataType::Int64, true)
    }

    fn push(columns: &mut FieldColumns, entry: &[(&str, &str)]) -> Result<(), BadValue> {
        for (name, value) in entry {
            columns.field(name.as_bytes(), value.as_bytes());
        }
        columns.end()
    }

    /// The rows of columns of integers.
    fn rows(columns: &mut FieldColumns) -> Vec<Vec<Option<i64>>> {
        let count = columns.rows;
        let mut arrays = Vec::new();
        columns.finish(&mut arrays).unwrap();
        assert!(arrays.iter().all(|array| array.len() == count));
        let value = |array: &ArrayRef, row| array.is_valid(row).then(|| array.as_primitive::<Int64Type>().value(row));
        (0..count).map(|row| arrays.iter().map(|array| value(array, row)).collect()).collect()
    }

    #[test]
    fn fields_are_found_in_any_order_and_other_fields_are_ignored() {
        let mut columns = columns(&[int("a"), int("b")], OnBadField::Fail);
        for entry in [
            &[("a", "1"), ("b", "2")][..],
            &[("b", "4"), ("a", "3")],
            &[("x", "no"), ("b", "6"), ("B", "no"), ("a", "5"), ("", "no")],
            &[("b", "7")],
            &[],
            &[("a", "8"), ("b", "9")],
        ] {
            push(&mut columns, entry).unwrap();
        }
        let both = |a, b| vec![Some(a), Some(b)];
        let expected = [both(1, 2), both(3, 4), both(5, 6), vec![None, Some(7)], vec![None, None], both(8, 9)];
        assert_eq!(rows(&mut columns), expected);
        push(&mut columns, &[("a", "1")]).unwrap();
        assert_eq!(rows(&mut columns), [vec![Some(1), None]], "a new record batch");
    }

    #[test]
    fn the_last_of_equal_names_wins() {
        let mut columns = columns(&[int("a"), int("b")], OnBadField::Fail);
        for _ in 0..2 {
            push(&mut columns, &[("a", "1"), ("b", "2"), ("a", "3"), ("a", "4"), ("x", ""), ("x", "")]).unwrap();
        }
        assert_eq!(rows(&mut columns), vec![vec![Some(4), Some(2)]; 2]);
        push(&mut columns, &[("a", "bad"), ("b", "bad"), ("a", "5"), ("b", "6")]).unwrap();
        assert_eq!(rows(&mut columns), [vec![Some(5), Some(6)]]);
        let bad = push(&mut columns, &[("a", "bad"), ("b", "worse"), ("a", "5")]).unwrap_err().to_string();
        assert!(bad.contains("\"worse\""), "{bad}");
        assert!(push(&mut columns, &[("a", "5"), ("a", "bad")]).is_err());
    }

    #[test]
    fn an_entry_with_a_bad_value_in_a_required_column_becomes_no_row() {
        let required = Field::new("b", DataType::Int64, false);
        for on_bad in [OnBadField::Fail, OnBadField::Null] {
            let mut columns = columns(&[int("a"), required.clone(), int("c")], on_bad);
            push(&mut columns, &[("a", "1"), ("b", "2")]).unwrap();
            let bad = push(&mut columns, &[("a", "3"), ("c", "4")]).unwrap_err().to_string();
            assert!(bad.starts_with("field \"b\" is missing"), "{bad}");
            assert!(push(&mut columns, &[("a", "3"), ("b", "x"), ("c", "4")]).is_err());
            assert_eq!(push(&mut columns, &[("a", "x"), ("b", "5")]).is_err(), on_bad == OnBadField::Fail);
            assert_eq!(columns.bad_values(), u64::from(on_bad == OnBadField::Null));
            push(&mut columns, &[("b", "6"), ("c", "7")]).unwrap();
            let mut expected = vec![vec![Some(1), Some(2), None], vec![None, Some(6), Some(7)]];
            if on_bad == OnBadField::Null {
                expected.insert(1, vec![None, Some(5), None]);
            }
            assert_eq!(rows(&mut columns), expected);
        }
    }

    #[test]
    fn a_type_that_cannot_be_read_is_refused() {
        let list = DataType::new_list(DataType::Int64, true);
        let error = FieldsPlan::new(vec![int("a"), Field::new("b", list, true)], OnBadField::Fail).unwrap_err();
        assert!(error.to_string().starts_with("column \"b\" cannot be read from a field"), "{error}");
    }

    #[test]
    fn the_memory_for_names_is_bounded() {
        let mut columns = columns(&[int("a")], OnBadField::Fail);
        let long = "n".repeat(LONGEST_NAME + 1);
        for _ in 0..2 {
            columns.field(long.as_bytes(), b"no");
            for number in 0..2 * MOST_PLACES {
                columns.field(number.to_string().as_bytes(), b"no");
            }
            columns.field(b"a", b"1");
            columns.end().unwrap();
        }
        assert!(columns.places.len() <= MOST_PLACES);
        assert!(columns.places.iter().all(|place| place.name.len() <= LONGEST_NAME));
        assert_eq!(rows(&mut columns), [[Some(1)], [Some(1)]]);
    }

    proptest! {
        #[test]
        fn entries_of_any_shape_give_the_same_rows_as_a_hash_map(
            asked in prop::sample::subsequence((0..12).collect::<Vec<_>>(), 1..12),
            entries in prop::collection::vec(prop::collection::vec((0..14, prop_oneof![9 => 0..100_i64, 1 => Just(-1)]), 0..14), 0..20),
            on_bad in prop::sample::select(vec![OnBadField::Fail, OnBadField::Null]),
        ) {
            let fields: Vec<Field> = asked.iter().map(|name| int(&name.to_string())).collect();
            let mut columns = columns(&fields, on_bad);
            let (mut expected, mut bad_values) = (Vec::new(), 0);
            for entry in &entries {
                let texts: Vec<_> = entry.iter().map(|(name, value): &(i32, i64)| {
                    (name.to_string(), if *value < 0 { "bad".to_owned() } else { value.to_string() })
                }).collect();
                let borrowed: Vec<_> = texts.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
                let map: HashMap<i32, i64> = entry.iter().copied().collect();
                let row: Vec<Option<i64>> = asked.iter().map(|name| map.get(name).copied()).collect();
                let bad = row.iter().flatten().filter(|value| **value < 0).count();
                let is_row = bad == 0 || on_bad == OnBadField::Null;
                prop_assert_eq!(push(&mut columns, &borrowed).is_ok(), is_row);
                if is_row {
                    bad_values += bad as u64;
                    expected.push(row.into_iter().map(|value| value.filter(|value| *value >= 0)).collect::<Vec<_>>());
                }
            }
            prop_assert_eq!(columns.bad_values(), bad_values);
            prop_assert_eq!(rows(&mut columns), expected);
        }
    }
}
