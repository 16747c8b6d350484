//! The rows of entries that hold several rows, or one row in a payload, in the layouts of the writer.
//!
//! | [`Unpack`] | the writer's layout | the fields of an entry |
//! |---|---|---|
//! | `Payload` | `payload=`, also with `rows_per_entry` | `payload`, or `payload:0`, `payload:1`, … in this order |
//! | `Json` | `json=`, also with `rows_per_entry` | the same, each a JSON object |
//! | `ArrowIpc` | `arrow_ipc` | `payload`: an Arrow IPC stream |
//!
//! Other fields, such as the time, are ignored.
//!
//! The rows of an entry take at most `max_entry_bytes`, whatever its bytes claim: their size is computed first, and memory is
//! allocated only if they fit.

mod arrow;
mod json;
mod room;
mod size;

use arrow_array::ArrayRef;
use arrow_schema::Field;

use self::arrow::ArrowColumns;
use self::room::Room;
use self::size::Size;
use super::cast::{BadValue, OnBadField, ValueForm};
use super::fields::{FieldColumns, FieldsPlan};
use super::misspelt::Misspelt;
use crate::Error;

/// The form in which the rows of an entry are stored in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unpack {
    /// Each payload is the value of the only column.
    Payload,
    /// Each payload is a JSON object with the columns.
    Json,
    /// The payload is an Arrow IPC stream.
    ArrowIpc,
}

impl Unpack {
    /// The names that the option accepts; they match the writer's keywords.
    pub(crate) const NAMES: [&'static str; 3] = ["payload", "json", "arrow_ipc"];

    pub(crate) fn named(name: &str) -> Option<Self> {
        let [payload, json, arrow_ipc] = Self::NAMES;
        [(payload, Self::Payload), (json, Self::Json), (arrow_ipc, Self::ArrowIpc)]
            .into_iter()
            .find_map(|(known, unpack)| (known == name).then_some(unpack))
    }
}

/// How entries are unpacked; already checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PackedPlan {
    rows: RowsPlan,
    payload_field: String,
    on_bad: OnBadField,
    /// The maximum size of the row of a payload.
    row_size: Size,
    /// The maximum size of the rows of an entry in bytes.
    max_entry_bytes: usize,
    /// The number of rows and of bytes at which a record batch is full.
    batch_rows: usize,
    batch_bytes: usize,
}

/// The form that the rows are read from.
#[derive(Debug, Clone, PartialEq, Eq)]
enum RowsPlan {
    Payload(FieldsPlan),
    Json(FieldsPlan),
    ArrowIpc(Vec<Field>),
}

impl PackedPlan {
    /// Creates a plan. Fails for types that cannot be unpacked. The names of the fields must be different.
    pub(crate) fn new(
        unpack: Unpack,
        payload_field: String,
        fields: Vec<Field>,
        on_bad: OnBadField,
        [max_entry_bytes, batch_rows, batch_bytes]: [usize; 3],
    ) -> crate::Result<Self> {
        match unpack {
            Unpack::Payload if fields.len() != 1 => {
                let message = format!(
                    "unpack 'payload' has one column, the payload, but the fields or the schema name {}; unpack 'json' or \
                     'arrow_ipc' has several",
                    fields.len()
                );
                return Err(Error::config("unpack", message));
            }
            Unpack::ArrowIpc => fields.iter().try_for_each(arrow::check)?,
            Unpack::Payload | Unpack::Json => {}
        }
        let row_size = match unpack {
            Unpack::Payload => fields.first().map(|field| Size::of_value(field.data_type())).unwrap_or_default(),
            Unpack::Json => Size::of_json(&fields),
            Unpack::ArrowIpc => Size::default(),
        };
        let rows = match unpack {
            Unpack::Payload => RowsPlan::Payload(FieldsPlan::new(fields, on_bad)?),
            Unpack::Json => RowsPlan::Json(FieldsPlan::of(fields, ValueForm::Json, on_bad)?),
            Unpack::ArrowIpc => RowsPlan::ArrowIpc(fields),
        };
        Ok(Self { rows, payload_field, on_bad, row_size, max_entry_bytes, batch_rows, batch_bytes })
    }

    pub(crate) fn fields(&self) -> &[Field] {
        match &self.rows {
            RowsPlan::Payload(plan) | RowsPlan::Json(plan) => plan.fields(),
            RowsPlan::ArrowIpc(fields) => fields,
        }
    }
}

/// Builds the columns of rows that are packed into entries.
#[derive(Debug)]
pub(crate) struct PackedColumns {
    plan: PackedPlan,
    /// The name of the payload field.
    name: Vec<u8>,
    columns: Columns,
    entry: Entry,
    /// The number of rows up to and including each entry.
    ends: Vec<usize>,
    /// Whether the record batch takes more entries even when it is full.
    is_held: bool,
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // only one exists
enum Columns {
    Fields(FieldColumns),
    Arrow(ArrowColumns),
}

/// The entry that is being unpacked.
#[derive(Debug, Default)]
struct Entry {
    first_row: usize,
    /// The bytes of the columns before this entry.
    bytes: usize,
    /// The memory of a row besides its columns.
    row_bytes: usize,
    room: Room,
    payloads: usize,
    is_single: bool,
    is_deleted: bool,
    /// Whether a row of nulls replaces a payload, or the whole entry.
    has_stand_in: bool,
    fault: Option<Fault>,
}

/// The reason that an entry did not become rows.
#[derive(Debug)]
enum Fault {
    /// The whole entry is unreadable: a row of nulls may replace it.
    Broken(BadValue),
    /// A value that no null may replace.
    Value(BadValue),
}

impl PackedColumns {
    pub(crate) fn new(plan: &PackedPlan) -> Self {
        let columns = match &plan.rows {
            RowsPlan::Payload(plan) | RowsPlan::Json(plan) => Columns::Fields(FieldColumns::new(plan)),
            RowsPlan::ArrowIpc(fields) => Columns::Arrow(ArrowColumns::new(fields, plan.on_bad)),
        };
        Self {
            name: plan.payload_field.clone().into_bytes(),
            plan: plan.clone(),
            columns,
            entry: Entry::default(),
            ends: Vec::new(),
            is_held: false,
        }
    }

    fn rows(&self) -> usize {
        match &self.columns {
            Columns::Fields(columns) => columns.rows(),
            Columns::Arrow(columns) => columns.rows(),
        }
    }

    /// See [`FieldColumns::take_misspelt`].
    pub(crate) fn take_misspelt(&mut self) -> Option<Misspelt> {
        match &mut self.columns {
            Columns::Fields(columns) => columns.take_misspelt(),
            Columns::Arrow(_) => None,
        }
    }

    /// Starts an entry; `is_deleted`: only its ID is known. `row_bytes`: the memory of a row besides its columns.
    pub(crate) fn entry(&mut self, is_deleted: bool, row_bytes: usize) {
        let room = Room::new(self.plan.max_entry_bytes);
        let (first_row, bytes) = (self.rows(), self.bytes());
        self.entry = Entry { first_row, bytes, row_bytes, room, is_deleted, ..Entry::default() };
    }

    pub(crate) fn field(&mut self, name: &[u8], value: &[u8]) {
        let Some(place) = name.strip_prefix(self.name.as_slice()) else { return };
        let place = match place {
            [] => None,
            [b':', digits @ ..] if !digits.is_empty() && digits.iter().all(u8::is_ascii_digit) => Some(digits),
            _ => return,
        };
        if self.entry.fault.is_some() {
            return;
        }
        let is_next = match place {
            None => self.entry.payloads == 0,
            Some(digits) => {
                !self.entry.is_single && digits == itoa::Buffer::new().format(self.entry.payloads).as_bytes()
            }
        };
        let unpacked = if is_next {
            self.entry.is_single = place.is_none();
            self.entry.payloads += 1;
            self.unpack(value, place.is_some())
        } else {
            let payloads = self.entry.payloads;
            Err(broken(format!(
                "field {} is out of sequence, after {payloads} of the payloads; they are {field}, or {field}:0, {field}:1 \
                 and so on",
                name.escape_ascii(),
                field = self.plan.payload_field,
            )))
        };
        self.entry.fault = unpacked.err();
    }

    /// Appends the rows of a payload.
    fn unpack(&mut self, payload: &[u8], is_several: bool) -> Result<(), Fault> {
        let (row, most) = (self.entry.payloads - 1, self.plan.row_size);
        let Entry { room, row_bytes, .. } = &mut self.entry;
        let outcome = match (&mut self.columns, &self.plan.rows) {
            (Columns::Arrow(_), _) if is_several => {
                Err(Unreadable::Payload("it has several payloads, not one Arrow IPC stream".to_owned()))
            }
            (Columns::Arrow(columns), _) => columns.push(payload, room, *row_bytes),
            (Columns::Fields(columns), RowsPlan::Json(plan)) => json::push(columns, plan, most, payload, *room),
            (Columns::Fields(_), _) if most.with_text(payload.len()) > room.bytes() => Err(Unreadable::TooLarge),
            (Columns::Fields(columns), _) => {
                columns.push(0, payload);
                columns.end().map_err(Unreadable::Value)
            }
        };
        let outcome = match (outcome, &mut self.columns) {
            (Err(Unreadable::Payload(_)), Columns::Fields(columns)) if self.plan.on_bad == OnBadField::Null => {
                self.entry.has_stand_in = true;
                let has_room = most.with_text(0) <= self.entry.room.bytes();
                if has_room { columns.end().map_err(Unreadable::Value) } else { Err(Unreadable::TooLarge) }
            }
            (outcome, _) => outcome,
        };
        let measured = outcome.and_then(|()| self.measure());
        measured.map_err(|unreadable| match unreadable {
            Unreadable::Value(bad) => Fault::Value(bad),
            Unreadable::TooLarge => {
                broken(format!("its rows take more than max_entry_bytes, which is {}", self.plan.max_entry_bytes))
            }
            Unreadable::Payload(reason) => {
                let place = if is_several { format!(":{row}") } else { String::new() };
                broken(format!("field {}{place}: {reason}", self.plan.payload_field))
            }
        })
    }

    /// Measures the room that the rows leave, if their payloads are read one by one.
    fn measure(&mut self) -> Result<(), Unreadable> {
        let Columns::Fields(columns) = &self.columns else { return Ok(()) };
        let rows = (columns.rows() - self.entry.first_row).saturating_mul(self.entry.row_bytes);
        self.entry.room = Room::new(self.plan.max_entry_bytes);
        self.entry.room.take((columns.bytes() - self.entry.bytes).saturating_add(rows))
    }

    /// Completes the entry. Returns the number of rows that it became; an entry that does not fit becomes none.
    pub(crate) fn end(&mut self) -> Result<usize, BadValue> {
        let mut fault = self.entry.fault.take();
        if fault.is_none() && self.entry.payloads == 0 {
            fault =
                Some(broken(format!("it has no field {}; name another with payload_field", self.plan.payload_field)));
        }
        if let Some(fault) = fault {
            self.truncate(self.entry.first_row);
            match fault {
                Fault::Broken(_) if self.entry.is_deleted || self.plan.on_bad == OnBadField::Null => {
                    self.entry.has_stand_in = !self.entry.is_deleted;
                    match &mut self.columns {
                        Columns::Fields(columns) => columns.end()?,
                        Columns::Arrow(columns) => columns.push_nulls()?,
                    }
                }
                Fault::Broken(bad) | Fault::Value(bad) => return Err(bad),
            }
        }
        let rows = self.rows();
        self.ends.push(rows);
        Ok(rows - self.entry.first_row)
    }

    fn truncate(&mut self, rows: usize) {
        match &mut self.columns {
            Columns::Fields(columns) => columns.truncate(rows),
            Columns::Arrow(columns) => columns.truncate(rows),
        }
    }

    /// Whether a row of nulls replaces the last entry, or a payload of it.
    pub(crate) fn has_stand_in(&self) -> bool {
        self.entry.has_stand_in
    }

    /// The number of rows of the first `entries` entries.
    pub(crate) fn rows_of(&self, entries: usize) -> usize {
        entries.min(self.ends.len()).checked_sub(1).and_then(|last| self.ends.get(last)).copied().unwrap_or(0)
    }

    pub(crate) fn entries(&self) -> usize {
        self.ends.len()
    }

    /// Sets whether the record batch takes more entries even when it is full.
    pub(crate) fn hold(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    pub(crate) fn is_full(&self) -> bool {
        !self.is_held && self.has_enough()
    }

    /// Whether the record batch is held and full.
    pub(crate) fn is_overfull(&self) -> bool {
        self.is_held && self.has_enough()
    }

    fn has_enough(&self) -> bool {
        self.rows() >= self.plan.batch_rows || self.bytes() >= self.plan.batch_bytes
    }

    pub(crate) fn bytes(&self) -> usize {
        match &self.columns {
            Columns::Fields(columns) => columns.bytes(),
            Columns::Arrow(columns) => columns.bytes(),
        }
    }

    pub(crate) fn bad_values(&self) -> u64 {
        match &self.columns {
            Columns::Fields(columns) => columns.bad_values(),
            Columns::Arrow(columns) => columns.bad_values(),
        }
    }

    pub(crate) fn finish(&mut self, columns: &mut Vec<ArrayRef>) -> crate::Result<()> {
        self.ends.clear();
        self.is_held = false;
        match &mut self.columns {
            Columns::Fields(fields) => fields.finish(columns),
            Columns::Arrow(arrow) => arrow.finish(columns),
        }
    }
}

#[cold]
fn broken(reason: String) -> Fault {
    Fault::Broken(BadValue::of_entry(reason))
}

/// The reason that a payload did not become rows.
#[derive(Debug)]
enum Unreadable {
    /// The whole payload is unreadable.
    Payload(String),
    /// The rows of the entry would take more than `max_entry_bytes`.
    TooLarge,
    /// A value that no null may replace.
    Value(BadValue),
}
