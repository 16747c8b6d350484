//! Columns that the first entry determines: its fields, or the columns of the rows in its payload.
//!
//! The first entry that is read counts, whichever stream it is in. From then on the columns are as if they had been named.

use std::collections::HashSet;
use std::mem::take;
use std::sync::{Arc, OnceLock};

use arrow_schema::{DataType, Field};

use super::cast::{BadValue, OnBadField};
use super::fields::FieldsPlan;
use super::packed::{PackedPlan, Unpack};
use super::{BodyPlan, ColumnsPlan, LEAST};
use crate::ipc;

/// The maximum number of columns that an entry determines: each takes memory in each batch, and the entry is not trusted.
const MOST_COLUMNS: usize = 1024;

/// The fields of an entry: names and values.
type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// How the first entry determines the columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FirstEntryPlan {
    packed: Option<Packed>,
    on_bad: OnBadField,
    /// Names of columns that are appended to those of the plan.
    others: Vec<String>,
    found: OnceLock<Arc<ColumnsPlan>>,
}

/// The options of a [`PackedPlan`].
#[derive(Debug, Clone, PartialEq, Eq)]
struct Packed {
    payload_field: String,
    limits: [usize; 3],
}

impl FirstEntryPlan {
    /// A column of text for each field of the entry.
    pub(crate) fn of_fields(on_bad: OnBadField) -> Self {
        Self { packed: None, on_bad, others: Vec::new(), found: OnceLock::new() }
    }

    /// The columns of the Arrow IPC stream in the payload. `limits`: see [`PackedPlan::new`].
    pub(crate) fn of_arrow_ipc(payload_field: String, on_bad: OnBadField, limits: [usize; 3]) -> Self {
        Self { packed: Some(Packed { payload_field, limits }), ..Self::of_fields(on_bad) }
    }

    pub(super) fn is_packed(&self) -> bool {
        self.packed.is_some()
    }

    /// The plan with the columns of the first entry, once one was read.
    pub(super) fn found(&self) -> Option<&Arc<ColumnsPlan>> {
        self.found.get()
    }

    /// The columns of this entry. The error is the end of a sentence.
    fn columns_of(&self, entry: &Pairs) -> Result<Vec<Field>, String> {
        let columns = match &self.packed {
            None => fields_of(entry)?,
            Some(packed) => packed.fields_of(entry)?,
        };
        if columns.len() > MOST_COLUMNS {
            return Err(format!("it has {} columns, more than {MOST_COLUMNS}", columns.len()));
        }
        Ok(columns)
    }

    fn body(&self, columns: Vec<Field>) -> crate::Result<BodyPlan> {
        Ok(match &self.packed {
            None => BodyPlan::Fields(FieldsPlan::new(columns, self.on_bad)?),
            Some(Packed { payload_field, limits }) => {
                let (unpack, payload_field) = (Unpack::ArrowIpc, payload_field.clone());
                BodyPlan::Packed(PackedPlan::new(unpack, payload_field, columns, self.on_bad, *limits)?)
            }
        })
    }
}

impl Packed {
    fn fields_of(&self, entry: &Pairs) -> Result<Vec<Field>, String> {
        let name = self.payload_field.as_bytes();
        let Some((_, payload)) = entry.iter().find(|(field, _)| field == name) else {
            return Err(format!("it has no field {}; name another with payload_field", self.payload_field));
        };
        let [max_entry_bytes, ..] = self.limits;
        let read = ipc::check(payload, max_entry_bytes).and_then(|claims| {
            if claims.parts.saturating_add(claims.buffers) > max_entry_bytes {
                return Err(format!("its rows take more than max_entry_bytes, which is {max_entry_bytes}"));
            }
            ipc::decode_checked(payload.clone())
        });
        let decoded = read.map_err(|reason| format!("field {}: {reason}", self.payload_field))?;
        Ok(decoded.schema.fields().iter().map(|field| field.as_ref().clone()).collect())
    }
}

/// A column for each different name.
fn fields_of(entry: &Pairs) -> Result<Vec<Field>, String> {
    let mut seen = HashSet::new();
    let names = entry.iter().map(|(name, _)| name).filter(|name| seen.insert(name.as_slice()));
    names
        .map(|name| match str::from_utf8(name) {
            Ok(name) => Ok(Field::new(name, DataType::Utf8, true)),
            Err(_) => Err(format!("the name of its field \"{}\" is not UTF-8", name.escape_ascii())),
        })
        .collect()
}

impl ColumnsPlan {
    /// Notes the names of columns that are appended to those of the plan, which the first entry must not have.
    pub(crate) fn note_others(&mut self, names: impl Iterator<Item = String>) {
        if let BodyPlan::FirstEntry(plan) = &mut self.body {
            plan.others = names.collect();
        }
    }

    /// The plan with the columns of the first entry. It is this entry, unless another builder has read one before.
    pub(super) fn determined_by(self: &Arc<Self>, entry: &Pairs) -> Result<Arc<Self>, BadValue> {
        let BodyPlan::FirstEntry(plan) = &self.body else { return Ok(Arc::clone(self)) };
        if let Some(found) = plan.found() {
            return Ok(Arc::clone(found));
        }
        let before = self.schema.fields();
        let determined = plan.columns_of(entry).and_then(|columns| {
            let others = before.iter().map(|field| field.name()).chain(&plan.others);
            if let Some(name) = others.into_iter().find(|name| columns.iter().any(|column| column.name() == *name)) {
                return Err(format!("it has {name:?}, which is also a metadata column: give that another name"));
            }
            let metadata: Vec<Field> = before.iter().map(|field| field.as_ref().clone()).collect();
            let body = plan.body(columns);
            let whole = body.and_then(|body| Self::with_body(self.metadata.clone(), self.raw.clone(), metadata, body));
            whole.map_err(|error| error.to_string())
        });
        let determined = determined.map_err(BadValue::of_first_entry)?;
        Ok(Arc::clone(plan.found.get_or_init(|| Arc::new(determined))))
    }
}

/// The fields of an entry, until its end.
#[derive(Debug, Default)]
pub(super) struct FirstEntry {
    entry: Pairs,
    bytes: usize,
    /// See [`PackedColumns::hold`](super::packed::PackedColumns::hold).
    pub(super) is_held: bool,
}

impl FirstEntry {
    pub(super) fn field(&mut self, name: &[u8], value: &[u8]) {
        self.bytes += LEAST + name.len() + value.len();
        self.entry.push((name.to_vec(), value.to_vec()));
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn take(&mut self) -> Pairs {
        self.bytes = 0;
        take(&mut self.entry)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use arrow_array::cast::AsArray;

    use super::*;
    use crate::entries::{EntryColumns, MapPlan, MetadataColumn, RawPlan};
    use crate::resp::EntryId;
    use crate::resp::stream_reply::EntrySink;

    const ID: EntryId = EntryId { ms: 1, seq: 0 };

    fn plan(raw: Option<RawPlan>) -> Arc<ColumnsPlan> {
        let body = BodyPlan::FirstEntry(FirstEntryPlan::of_fields(OnBadField::Fail));
        let metadata = vec![(MetadataColumn::EntryId, "id".to_owned())];
        Arc::new(ColumnsPlan::new(metadata, raw, body).unwrap())
    }

    fn push(columns: &mut EntryColumns, fields: &[(&str, &str)]) {
        columns.entry(ID, Some(fields.len()));
        for (name, value) in fields {
            columns.field(name.as_bytes(), value.as_bytes());
        }
        columns.end();
    }

    fn texts(columns: &mut EntryColumns, name: &str) -> Vec<Option<String>> {
        let batch = columns.finish().unwrap();
        let column = batch.column_by_name(name).unwrap().as_string::<i32>();
        column.iter().map(|text| text.map(str::to_owned)).collect()
    }

    #[test]
    fn the_first_entry_of_any_builder_counts_for_all() {
        let plan = plan(None);
        let [mut first, mut second] = [0, 1].map(|_| EntryColumns::new(&plan));
        first.stream(b"s");
        second.stream(b"t");
        assert_eq!(plan.known_schema(), None);
        // Its connection was lost within the entry.
        second.entry(ID, Some(2));
        second.field(b"other", b"9");
        push(&mut first, &[("a", "1"), ("b", "2"), ("a", "3")]);
        let schema = plan.known_schema().unwrap();
        let names: Vec<_> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        assert_eq!(names, ["id", "a", "b"]);
        push(&mut second, &[("b", "4")]);
        push(&mut second, &[("a", "5"), ("c", "6")]);
        assert_eq!((first.rows(), second.rows()), (1, 2));
        assert_eq!(texts(&mut first, "a"), [Some("3".to_owned())]);
        assert_eq!(texts(&mut second, "a"), [None, Some("5".to_owned())]);
        // A builder is used again, and a new one knows the columns.
        push(&mut first, &[("b", "7")]);
        assert_eq!(texts(&mut first, "b"), [Some("7".to_owned())]);
        assert_eq!(EntryColumns::new(&plan).finish().unwrap().schema(), schema);
    }

    #[test]
    fn an_entry_without_columns_is_bad_and_the_next_one_is_the_first() {
        let raw = RawPlan { place: 1, name: "raw".to_owned(), map: MapPlan::default() };
        let plan = plan(Some(raw));
        let mut columns = EntryColumns::new(&plan);
        columns.stream(b"s");
        for bad in ["id", "raw"] {
            push(&mut columns, &[(bad, "1")]);
            assert!(columns.is_full());
            let (id, reason) = columns.take_bad().unwrap();
            assert_eq!(id, ID);
            assert!(reason.to_string().contains("which is also a metadata column"), "{reason}");
        }
        assert_eq!((columns.rows(), columns.bytes() < 1_000_000), (0, true));
        push(&mut columns, &[("a", "1")]);
        push(&mut columns, &[("a", "2")]);
        assert!(columns.take_bad().is_none());
        assert_eq!(texts(&mut columns, "a"), [Some("1".to_owned()), Some("2".to_owned())]);
    }

    #[test]
    fn the_entry_takes_memory_until_its_columns_are_known() {
        let plan = plan(None);
        let mut columns = EntryColumns::new(&plan);
        columns.stream(b"s");
        let before = columns.bytes();
        columns.entry(ID, Some(1));
        columns.field(b"a", &[b'x'; 10_000]);
        assert!(columns.bytes() >= before + 10_000);
        columns.end();
        assert_eq!(columns.rows(), 1);
    }
}
