//! Entries as columns: values, types, names, and the state after a record batch was taken.
#![allow(clippy::unwrap_used)]

use arrow_array::cast::AsArray as _;
use arrow_array::types::{Int32Type, TimestampMillisecondType, UInt64Type};
use arrow_array::{Array as _, StructArray};
use arrow_schema::{DataType, TimeUnit};

use super::*;

type Pairs<'a> = &'a [(&'a [u8], &'a [u8])];

fn plan(metadata: &[MetadataColumn], fields_as: FieldsAs, names_as: NamesAs) -> Arc<ColumnsPlan> {
    Arc::new(plan_of(metadata, BodyPlan::Map(MapPlan { fields_as, names_as })).unwrap())
}

/// Metadata columns under their default names, without a column for entries that do not fit.
fn plan_of(metadata: &[MetadataColumn], body: BodyPlan) -> Result<ColumnsPlan> {
    ColumnsPlan::new(metadata.iter().map(|column| (*column, column.name().to_owned())).collect(), None, body)
}

fn default_plan() -> Arc<ColumnsPlan> {
    plan(&ColumnsPlan::METADATA_OF_MAP, FieldsAs::default(), NamesAs::default())
}

fn push(columns: &mut EntryColumns, ms: u64, seq: u64, fields: Option<Pairs<'_>>) {
    columns.entry(EntryId { ms, seq }, fields.map(<[_]>::len));
    for (name, value) in fields.unwrap_or_default() {
        columns.field(name, value);
    }
    columns.end();
}

/// The pairs of each row, as text.
fn rows(batch: &RecordBatch) -> Vec<Option<Vec<String>>> {
    rows_of(batch, FIELDS)
}

fn rows_of(batch: &RecordBatch, column: &str) -> Vec<Option<Vec<String>>> {
    let column = batch.column_by_name(column).unwrap();
    let pairs = |pairs: &StructArray| {
        let name = |row| match pairs.column(0).as_string_opt::<i32>() {
            Some(names) => names.value(row).to_owned(),
            None => pairs.column(0).as_binary::<i32>().value(row).escape_ascii().to_string(),
        };
        let values = pairs.column(1).as_binary::<i32>();
        let pair = |row| format!("{}={}", name(row), values.value(row).escape_ascii());
        (0..pairs.len()).map(pair).collect::<Vec<_>>()
    };
    let of_row = |row| match column.as_map_opt() {
        Some(map) => pairs(&map.value(row)),
        None => pairs(column.as_list::<i32>().value(row).as_struct()),
    };
    (0..column.len()).map(|row| column.is_valid(row).then(|| of_row(row))).collect()
}

fn texts(batch: &RecordBatch, name: &str) -> Vec<String> {
    batch.column_by_name(name).unwrap().as_string::<i32>().iter().map(|text| text.unwrap().to_owned()).collect()
}

#[test]
fn the_ids_of_the_rows_are_those_of_the_last_record_batch() {
    let mut columns = EntryColumns::new(&default_plan());
    push(&mut columns, 5, 1, Some(&[(&b"a"[..], &b"1"[..])]));
    push(&mut columns, 6, 0, None);
    assert!(columns.take_ids().is_none());
    columns.finish().unwrap();
    let ids = columns.take_ids().unwrap();
    let expected = [Some(EntryId { ms: 5, seq: 1 }), Some(EntryId { ms: 6, seq: 0 }), None];
    assert_eq!([ids.get(0), ids.get(1), ids.get(2)], expected);
    assert!(columns.take_ids().is_none());
}

#[test]
fn the_fields_are_in_one_column_or_in_all_but_those_of_the_metadata() {
    let at = |plan: ColumnsPlan| EntryColumns::new(&Arc::new(plan)).fields_at();
    let id = |name: &str| (MetadataColumn::EntryId, name.to_owned());
    let map = MapPlan::default();
    assert_eq!(at(ColumnsPlan::new(vec![id("id")], None, BodyPlan::Map(map)).unwrap()), FieldsAt::Column(1));
    let body = || {
        let fields = ["a", "b"].map(|name| Field::new(name, DataType::Utf8, true)).to_vec();
        BodyPlan::Fields(FieldsPlan::new(fields, OnBadField::Null).unwrap())
    };
    let raw = RawPlan { place: 0, name: "raw".to_owned(), map };
    assert_eq!(at(ColumnsPlan::new(Vec::new(), None, body()).unwrap()), FieldsAt::Columns(vec![0, 1]));
    assert_eq!(at(ColumnsPlan::new(vec![id("id")], Some(raw), body()).unwrap()), FieldsAt::Columns(vec![2, 3, 0]));
}

#[test]
fn the_default_columns_are_stream_entry_id_timestamp_and_fields() {
    let plan = default_plan();
    let mut columns = EntryColumns::new(&plan);
    columns.stream(b"orders");
    push(&mut columns, 1_795_249_090_487, 0, Some(&[(b"id", b"1"), (b"total", b"\xff")]));
    push(&mut columns, 1_795_249_090_487, 1, Some(&[(b"id", b"2"), (b"total", b"")]));
    columns.stream(b"re\\turns\xff");
    push(&mut columns, 1_795_249_090_488, 12, Some(&[]));
    push(&mut columns, 1_795_249_090_489, 0, None);
    assert_eq!(columns.rows(), 4);
    let batch = columns.finish().unwrap();
    assert_eq!(batch.schema(), plan.schema());
    let names: Vec<_> = plan.schema().fields().iter().map(|field| field.name().clone()).collect();
    assert_eq!(names, ["stream", "entry_id", "timestamp", "fields"]);
    assert_eq!(texts(&batch, "stream"), ["orders", "orders", r"re\\turns\xff", r"re\\turns\xff"]);
    let ids = ["1795249090487-0", "1795249090487-1", "1795249090488-12", "1795249090489-0"];
    assert_eq!(texts(&batch, "entry_id"), ids);
    let fields = |fields: &[&str]| Some(fields.iter().map(|&field| field.to_owned()).collect::<Vec<_>>());
    let expected = [fields(&["id=1", r"total=\xff"]), fields(&["id=2", "total="]), fields(&[]), None];
    assert_eq!(rows(&batch), expected);

    // The stream stays the same for the next record batch.
    push(&mut columns, 0, u64::MAX, Some(&[(b"id", b"3")]));
    let batch = columns.finish().unwrap();
    assert_eq!(texts(&batch, "stream"), [r"re\\turns\xff"]);
    assert_eq!(rows(&batch), [fields(&["id=3"])]);
    assert_eq!(columns.finish().unwrap().num_rows(), 0);
}

#[test]
fn each_metadata_column_has_its_type() {
    let mut columns = EntryColumns::new(&plan(&MetadataColumn::ALL, FieldsAs::Map, NamesAs::Utf8));
    columns.stream(b"s");
    let ids =
        [(0, 0), (253_402_300_799_999, 9), (253_402_300_800_000, 10), (u64::MAX, u64::MAX), (u64::MAX, 99), (3, 0)];
    for (ms, seq) in ids {
        push(&mut columns, ms, seq, Some(&[]));
    }
    let batch = columns.finish().unwrap();
    let names = ["stream", "entry_id", "entry_ms", "entry_seq", "timestamp", "row_in_entry", "fields"];
    assert_eq!(batch.schema().fields().iter().map(|field| field.name().as_str()).collect::<Vec<_>>(), names);
    assert!(MetadataColumn::ALL.iter().all(|column| MetadataColumn::named(column.name()) == Some(*column)));
    assert_eq!(MetadataColumn::named("fields"), None);
    assert_eq!(texts(&batch, "entry_id"), ids.map(|(ms, seq)| format!("{ms}-{seq}")));
    let numbers = |name: &str| batch.column_by_name(name).unwrap().as_primitive::<UInt64Type>().values().to_vec();
    assert_eq!(numbers("entry_ms"), ids.map(|id| id.0));
    assert_eq!(numbers("entry_seq"), ids.map(|id| id.1));
    let times = batch.column_by_name("timestamp").unwrap();
    assert_eq!(times.data_type(), &DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into())));
    let times: Vec<_> = times.as_primitive::<TimestampMillisecondType>().iter().collect();
    assert_eq!(times, [Some(0), Some(253_402_300_799_999), None, None, None, Some(3)]);
    assert_eq!(batch.column_by_name("row_in_entry").unwrap().as_primitive::<Int32Type>().values(), &[0; 6]);
}

#[test]
fn the_fields_column_is_an_arrow_map_or_list() {
    let shown = |fields_as, names_as| MapPlan { fields_as, names_as }.field().data_type().to_string();
    assert_eq!(
        shown(FieldsAs::Map, NamesAs::Utf8),
        r#"Map("entries": non-null Struct("key": non-null Utf8, "value": Binary), unsorted)"#
    );
    assert_eq!(shown(FieldsAs::List, NamesAs::Binary), r#"List(Struct("name": Binary, "value": Binary))"#);
}

#[test]
fn a_map_keeps_the_last_of_equal_names_and_a_list_keeps_all() {
    let many: Vec<_> = (0..40).map(|n| (format!("name{}", n % 30).into_bytes(), n.to_string().into_bytes())).collect();
    let many: Vec<(&[u8], &[u8])> = many.iter().map(|(name, value)| (&name[..], &value[..])).collect();
    let entries: [Pairs<'_>; 6] = [
        &[(b"a", b"1"), (b"b", b"22"), (b"a", b"333")],
        &[(b"a", b"4"), (b"b", b"5"), (b"a", b"")],
        &[(b"a", b"6"), (b"a", b"7"), (b"a", b"8")],
        &[(b"b", b"9")],
        &many,
        &[(b"b", b"9")],
    ];
    for (fields_as, names_as) in [
        (FieldsAs::Map, NamesAs::Utf8),
        (FieldsAs::Map, NamesAs::Binary),
        (FieldsAs::List, NamesAs::Utf8),
        (FieldsAs::List, NamesAs::Binary),
    ] {
        let mut columns = EntryColumns::new(&plan(&[], fields_as, names_as));
        for fields in entries {
            push(&mut columns, 1, 1, Some(fields));
        }
        let is_kept = |fields: Pairs<'_>, place: usize| {
            fields_as == FieldsAs::List || fields[place + 1..].iter().all(|(name, _)| *name != fields[place].0)
        };
        let expected = entries.map(|fields| {
            let kept: Vec<_> = (0..fields.len()).filter(|place| is_kept(fields, *place)).collect();
            let text = |place: usize| format!("{}={}", fields[place].0.escape_ascii(), fields[place].1.escape_ascii());
            Some(kept.into_iter().map(text).collect::<Vec<_>>())
        });
        assert_eq!(rows(&columns.finish().unwrap()), expected, "{fields_as:?} {names_as:?}");
        let all: usize = entries.iter().map(|fields| fields.len()).sum();
        let kept: usize = expected.iter().flatten().map(Vec::len).sum();
        assert_eq!(all - kept, if fields_as == FieldsAs::Map { 1 + 1 + 2 + 10 } else { 0 });
    }
}

#[test]
fn names_that_are_not_utf8_are_escaped_or_binary() {
    let fields: Pairs<'_> = &[(b"\xff", b"1"), (b"\\xff", b"2"), ("größe".as_bytes(), b"3")];
    for (names_as, expected) in [
        (NamesAs::Utf8, [r"\xff=1", r"\\xff=2", "größe=3"]),
        (NamesAs::Binary, [r"\xff=1", r"\\xff=2", r"gr\xc3\xb6\xc3\x9fe=3"]),
    ] {
        let mut columns = EntryColumns::new(&plan(&[], FieldsAs::Map, names_as));
        push(&mut columns, 1, 1, Some(fields));
        push(&mut columns, 1, 2, Some(fields));
        let expected = Some(expected.map(str::to_owned).to_vec());
        assert_eq!(rows(&columns.finish().unwrap()), [expected.clone(), expected]);
    }
}

#[test]
fn a_column_that_would_be_too_large_is_an_error() {
    let mut texts = var_bytes::VarBytes::new();
    texts.push(b"a");
    // None of the bytes are stored.
    texts.push_repeated(&vec![b'x'; 1 << 20], 1 << 11);
    assert_eq!((texts.count(), texts.bytes()), (2049, 1 + 2050 * 4));
    let error = texts.take().finish_utf8("fields", None).unwrap_err();
    assert_eq!(error, Error::schema("column 'fields' of one record batch would hold 2 GiB or more"));
    texts.push_repeated(b"abc", 5);
    texts.push_repeated(b"", 2);
    texts.push_repeated(b"abc", 0);
    let array = texts.take().finish_utf8("fields", None).unwrap();
    let values: Vec<_> = array.as_string::<i32>().iter().flatten().collect();
    assert_eq!(values, ["abc", "abc", "abc", "abc", "abc", "", ""]);
}

#[test]
fn the_memory_is_known_before_the_record_batch_is_made() {
    let mut columns = EntryColumns::new(&default_plan());
    columns.stream(&[b'k'; 100]);
    for seq in 0..100 {
        push(&mut columns, 1, seq, Some(&[(b"name", &[b'v'; 500])]));
    }
    let before = columns.bytes();
    let buffers: usize =
        columns.finish().unwrap().columns().iter().map(|c| c.to_data().get_slice_memory_size().unwrap()).sum();
    assert!((buffers..2 * buffers).contains(&before), "{before}, then {buffers}");
    assert!(columns.bytes() < 100);
    // A key is stored once, but counted for each of its rows.
    columns.stream(&vec![b'k'; 1 << 20]);
    for seq in 0..1_024 {
        assert!(!columns.is_full());
        push(&mut columns, 1, seq, None);
    }
    assert!(columns.is_full());
}

#[test]
fn a_column_that_is_named_twice_is_refused() {
    let body = BodyPlan::Map(MapPlan::default());
    let error = plan_of(&[MetadataColumn::EntryId, MetadataColumn::EntryId], body).unwrap_err();
    assert_eq!(error.to_string(), "metadata must name each column once, got 'entry_id' twice");
}

#[test]
fn requested_fields_are_columns_after_the_metadata() {
    let fields = vec![Field::new("id", DataType::Int32, false), Field::new("city", DataType::Utf8, true)];
    let body = BodyPlan::Fields(FieldsPlan::new(fields, OnBadField::Fail).unwrap());
    let plan = Arc::new(plan_of(&[MetadataColumn::EntryId], body).unwrap());
    let mut columns = EntryColumns::new(&plan);
    columns.stream(b"s");
    push(&mut columns, 1, 0, Some(&[(b"id", b"7"), (b"city", b"Oslo"), (b"more", b"\xff")]));
    push(&mut columns, 2, 0, Some(&[(b"city", b"Rome"), (b"id", b"8"), (b"id", b"9")]));
    assert!(!columns.is_full() && columns.take_bad().is_none());

    // An entry that does not fit becomes no row and ends the scan; so does a deleted one if a column does not allow nulls.
    push(&mut columns, 3, 1, Some(&[(b"city", b"Bonn"), (b"id", b"x")]));
    assert!(columns.is_full());
    push(&mut columns, 4, 0, None);
    let (id, bad) = columns.take_bad().unwrap();
    assert_eq!(
        format!("{id}: {bad}").split(" (").next(),
        Some(r#"3-1: field "id" does not fit its column of type Int32: "x""#)
    );
    assert!(!columns.is_full());
    push(&mut columns, 5, 0, Some(&[(b"id", b"-1")]));
    assert_eq!((columns.rows(), columns.bad_values()), (3, 0));
    let batch = columns.finish().unwrap();
    assert_eq!(batch.schema(), plan.schema());
    assert_eq!(texts(&batch, "entry_id"), ["1-0", "2-0", "5-0"]);
    assert_eq!(batch.column(1).as_primitive::<Int32Type>().values(), &[7, 9, -1]);
    let cities: Vec<_> = batch.column(2).as_string::<i32>().iter().collect();
    assert_eq!(cities, [Some("Oslo"), Some("Rome"), None]);
    push(&mut columns, 6, 0, Some(&[(b"id", b"1")]));
    assert_eq!(columns.finish().unwrap().num_rows(), 1);
}

#[test]
fn a_field_with_the_name_of_a_metadata_column_is_refused() {
    let body = |name| {
        let fields = vec![Field::new("id", DataType::Int32, true), Field::new(name, DataType::Int32, true)];
        BodyPlan::Fields(FieldsPlan::new(fields, OnBadField::Null).unwrap())
    };
    for name in ["entry_id", "id"] {
        let error = plan_of(&[MetadataColumn::EntryId], body(name)).unwrap_err();
        assert_eq!(error.to_string(), format!("fields must name each column once, got '{name}' twice"));
    }
    assert!(plan_of(&[], body("entry_id")).is_ok());
}

#[test]
fn entries_that_do_not_fit_are_kept_in_the_raw_column() {
    let fields = || vec![Field::new("id", DataType::Int32, false), Field::new("city", DataType::Int32, true)];
    let metadata = [MetadataColumn::EntryMs, MetadataColumn::EntrySeq].map(|column| (column, column.name().to_owned()));
    for (fields_as, last_id) in [(FieldsAs::Map, "id=5"), (FieldsAs::List, "id=4|id=5")] {
        let raw = RawPlan { place: 1, name: RAW.to_owned(), map: MapPlan { fields_as, names_as: NamesAs::Utf8 } };
        let body = BodyPlan::Fields(FieldsPlan::new(fields(), OnBadField::Null).unwrap());
        let plan = Arc::new(ColumnsPlan::new(metadata.to_vec(), Some(raw), body).unwrap());
        let names: Vec<_> = plan.schema().fields().iter().map(|field| field.name().clone()).collect();
        assert_eq!(names, ["entry_ms", "raw", "entry_seq", "id", "city"]);
        let mut columns = EntryColumns::new(&plan);
        columns.stream(b"s");
        for _ in 0..2 {
            let empty = columns.bytes();
            push(&mut columns, 1, 0, Some(&[(b"id", b"1"), (b"city", b"2")]));
            let fitting = columns.bytes() - empty;
            push(&mut columns, 2, 0, Some(&[(b"city", b"x"), (b"\xff", b"\xfe"), (b"id", b"3")]));
            // A value that a later one replaces is not bad.
            push(&mut columns, 3, 0, Some(&[(b"city", b"x"), (b"id", b"3"), (b"city", b"4")]));
            // In a column that does not allow nulls it is always an error, and the entry becomes no row.
            push(&mut columns, 4, 0, Some(&[(b"id", b"x")]));
            assert!(columns.take_bad().is_some());
            push(&mut columns, 5, 0, Some(&[(b"id", b"4"), (b"id", b"5"), (b"city", b"y")]));
            push(&mut columns, 6, 0, Some(&[(b"id", b"6"), (b"city", &[b' '; 1000])]));
            assert!(fitting < 100 && columns.bytes() > 1000);
            let batch = columns.finish().unwrap();
            assert_eq!(batch.column(3).as_primitive::<Int32Type>().values(), &[1, 3, 3, 5, 6]);
            let shown = |row: Option<Vec<String>>| row.map(|fields| fields.join("|"));
            let kept: Vec<_> = rows_of(&batch, RAW).into_iter().map(shown).collect();
            let (second, fifth) = (Some(r"city=x|\xff=\xfe|id=3".to_owned()), format!("{last_id}|city=y"));
            let sixth = format!("id=6|city={}", " ".repeat(1000));
            assert_eq!(kept, [None, second, None, Some(fifth), Some(sixth)]);
        }
    }
}

#[test]
fn a_packed_entry_that_does_not_fit_is_kept_once() {
    let fields = vec![Field::new("id", DataType::Int32, true)];
    let limits = [1 << 20, 100, 1 << 20];
    let packed = PackedPlan::new(Unpack::Json, "payload".to_owned(), fields, OnBadField::Null, limits).unwrap();
    let raw = RawPlan { place: 1, name: RAW.to_owned(), map: MapPlan::default() };
    let metadata = vec![(MetadataColumn::EntryMs, "ms".to_owned())];
    let plan = Arc::new(ColumnsPlan::new(metadata, Some(raw), BodyPlan::Packed(packed)).unwrap());
    assert_eq!(plan.schema().field(0).name(), "ms");
    let mut columns = EntryColumns::new(&plan);
    columns.stream(b"s");
    push(&mut columns, 1, 0, Some(&[(b"payload:0", br#"{"id":1}"#), (b"payload:1", br#"{"id":2}"#)]));
    push(&mut columns, 2, 0, Some(&[(b"payload:0", br#"{"id":3}"#), (b"payload:1", b"{")]));
    push(&mut columns, 3, 0, Some(&[(b"payload:0", br#"{"id":5}"#), (b"payload:1", br#"{"id":"x"}"#)]));
    push(&mut columns, 4, 0, Some(&[(b"other", b"x")]));
    push(&mut columns, 5, 0, None);
    push(&mut columns, 6, 0, Some(&[(b"payload", br#"{"id":7}"#)]));
    let batch = columns.finish().unwrap();
    let ids: Vec<_> = batch.column_by_name("id").unwrap().as_primitive::<Int32Type>().iter().collect();
    assert_eq!(ids, [Some(1), Some(2), Some(3), None, Some(5), None, None, None, Some(7)]);
    let kept: Vec<_> = rows_of(&batch, RAW).into_iter().map(|row| row.map(|fields| fields.len())).collect();
    assert_eq!(kept, [None, None, Some(2), None, Some(2), None, Some(1), None, None]);
}
