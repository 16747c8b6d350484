//! Round trips, and the refusal of streams that are truncated, corrupted or claim too much.
// Arrow arrays are easiest to read with their type's name.
#![allow(clippy::unwrap_used, clippy::from_iter_instead_of_collect)]
// Row numbers serve as values.
#![allow(clippy::cast_possible_wrap, clippy::cast_precision_loss)]

use std::sync::Arc;

use arrow_array::builder::{ListBuilder, MapBuilder, StringBuilder, StringViewBuilder};
use arrow_array::types::{Int32Type, UInt32Type};
use arrow_array::{
    Array, ArrayRef, BinaryArray, BinaryViewArray, BooleanArray, Date32Array, Decimal128Array, DictionaryArray,
    FixedSizeBinaryArray, FixedSizeListArray, Float64Array, Int32Array, Int64Array, LargeStringArray, ListViewArray,
    NullArray, RecordBatch, RecordBatchOptions, StringArray, StringViewArray, StructArray, TimestampMicrosecondArray,
    UInt64Array,
};
use arrow_buffer::{Buffer, OffsetBuffer};
use arrow_schema::{DataType, Field, Schema};
use proptest::prelude::*;

use super::check::check;
use super::{Codec, Encoder, MAX_ENTRY_BYTES, MAX_ROWS_BYTES, decode};
use crate::error::code;

const CODECS: [Option<Codec>; 3] = [None, Some(Codec::Lz4), Some(Codec::Zstd)];

/// Columns of every type that can be written, with `rows` rows. Values repeat, so that they compress.
fn columns(rows: usize) -> Vec<(&'static str, ArrayRef)> {
    let text = |row: usize| (row % 5 != 1).then(|| format!("the text of row {}", row % 100));
    let texts = || (0..rows).map(text);
    let mut list = ListBuilder::new(StringViewBuilder::new());
    let mut map = MapBuilder::new(None, StringBuilder::new(), StringViewBuilder::new());
    for row in 0..rows {
        list.append_option((row % 4 != 2).then(|| (0..row % 3).map(move |_| text(row))));
        map.keys().append_value(format!("key {row}"));
        map.values().append_option(text(row));
        map.append(row % 7 != 3).unwrap();
    }
    let owned: Vec<_> = texts().collect();
    let dictionary = || owned.iter().map(Option::as_deref).collect::<DictionaryArray<Int32Type>>();
    let views = Arc::new(texts().collect::<StringViewArray>());
    let keys = dictionary().keys().clone();
    let of_views = dictionary().values().as_any().downcast_ref::<StringArray>().unwrap().iter().collect();
    let of_views: StringViewArray = of_views;
    let fields = vec![
        (Arc::new(Field::new("views", DataType::Utf8View, true)), views.clone() as ArrayRef),
        (Arc::new(Field::new("n", DataType::Int32, true)), Arc::new(Int32Array::from_iter(0..rows as i32)) as ArrayRef),
    ];
    let item = Arc::new(Field::new("item", DataType::Utf8View, true));
    let pairs: StringViewArray = (0..rows * 2).map(text).collect();
    vec![
        ("null", Arc::new(NullArray::new(rows))),
        ("bool", Arc::new(BooleanArray::from_iter((0..rows).map(|row| (row % 3 > 0).then_some(row % 2 == 0))))),
        ("int", Arc::new(Int64Array::from_iter((0..rows).map(|row| (row % 10 > 0).then_some(row as i64))))),
        ("uint", Arc::new(UInt64Array::from_iter_values((0..rows).map(|row| row as u64)))),
        ("double", Arc::new(Float64Array::from_iter_values((0..rows).map(|row| row as f64 / 3.0)))),
        ("decimal", Arc::new(Decimal128Array::from_iter_values((0..rows).map(|row| row as i128 - 7)))),
        ("date", Arc::new(Date32Array::from_iter_values(0..rows as i32))),
        ("time", Arc::new(TimestampMicrosecondArray::from_iter_values(0..rows as i64).with_timezone("+02:00"))),
        ("utf8", Arc::new(texts().collect::<StringArray>())),
        ("large_utf8", Arc::new(texts().collect::<LargeStringArray>())),
        ("utf8_view", views),
        ("binary", Arc::new(texts().map(|text| text.map(String::into_bytes)).collect::<BinaryArray>())),
        ("binary_view", Arc::new(texts().map(|text| text.map(String::into_bytes)).collect::<BinaryViewArray>())),
        (
            "fixed",
            Arc::new(
                FixedSizeBinaryArray::try_from_sparse_iter_with_size(
                    (0..rows).map(|row| (row % 2 == 0).then_some([row as u8; 7])),
                    7,
                )
                .unwrap(),
            ),
        ),
        ("dictionary", Arc::new(dictionary())),
        ("dictionary_of_views", Arc::new(DictionaryArray::new(keys, Arc::new(of_views)))),
        ("list", Arc::new(list.finish())),
        ("map", Arc::new(map.finish())),
        ("struct", Arc::new(StructArray::from(fields))),
        ("fixed_list", Arc::new(FixedSizeListArray::new(item, 2, Arc::new(pairs), None))),
    ]
}

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true))).unwrap()
}

fn encoder(batch: &RecordBatch, codec: Option<Codec>) -> Encoder {
    Encoder::new(&batch.schema(), None, codec).unwrap()
}

/// The stream of these rows, as an entry holds it.
fn encode(encoder: &mut Encoder, batch: &RecordBatch, rows: std::ops::Range<usize>) -> Vec<u8> {
    encoder.check(batch).unwrap();
    let mut buffers = Vec::new();
    let size = encoder.encode(batch, rows, &mut buffers).unwrap();
    let bytes: Vec<u8> = buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect();
    assert_eq!(bytes.len(), size);
    bytes
}

#[test]
fn every_type_decodes_as_encoded_with_every_codec() {
    for codec in CODECS {
        let whole = batch(columns(300));
        let mut encoder = encoder(&whole, codec);
        // Includes a slice of a slice. Each stream is self-contained, including the second one with the same dictionaries.
        for (batch, rows) in [(whole.clone(), 0..300), (whole.clone(), 0..300), (whole.slice(57, 200), 13..101)] {
            let decoded = decode(encode(&mut encoder, &batch, rows.clone())).unwrap();
            assert_eq!(decoded.schema, whole.schema());
            assert_eq!(decoded.batches, [batch.slice(rows.start, rows.len())], "{codec:?}");
        }
        let decoded = decode(encode(&mut encoder, &whole, 100..100)).unwrap();
        assert_eq!(decoded.batches.iter().map(RecordBatch::num_rows).sum::<usize>(), 0);
    }
}

#[test]
fn the_stream_of_a_slice_holds_only_its_rows() {
    const ROWS: usize = 200_000;
    let long = |row: usize| format!("a text that no view holds within itself, of row {row}");
    let views: StringViewArray = (0..ROWS).map(|row| Some(long(row))).collect();
    let dictionary: DictionaryArray<UInt32Type> = views.iter().collect();
    let mut list = ListBuilder::new(StringViewBuilder::new());
    (0..ROWS).for_each(|row| list.append_value([Some(long(row))]));
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("utf8", Arc::new(StringArray::from_iter_values((0..ROWS).map(long)))),
        (
            "struct",
            Arc::new(StructArray::from(vec![(
                Arc::new(Field::new("views", DataType::Utf8View, true)),
                Arc::new(views.clone()) as ArrayRef,
            )])),
        ),
        ("views", Arc::new(views)),
        ("dictionary", Arc::new(dictionary)),
        ("list", Arc::new(list.finish())),
        ("int", Arc::new(Int64Array::from_iter_values(0..ROWS as i64))),
    ];
    for (name, column) in columns {
        let whole = batch(vec![(name, column)]);
        let stream = encode(&mut encoder(&whole, None), &whole, 100_000..100_100);
        // About 60 bytes of text, two offsets or a view, and the offset of a list.
        assert!(stream.len() < 100 * 100 + 1000, "{name}: {}", stream.len());
        assert_eq!(decode(stream).unwrap().batches, [whole.slice(100_000, 100)]);
    }
}

#[test]
fn buffers_of_the_record_batch_are_not_copied() {
    let values = Int64Array::from_iter_values(0..1000);
    let address = values.values().inner().as_ptr();
    let whole = batch(vec![("a", Arc::new(values))]);
    let mut buffers = vec![Buffer::from(b"before")];
    encoder(&whole, None).encode(&whole, 500..1000, &mut buffers).unwrap();
    assert_eq!(&*buffers[0], b"before");
    assert!(buffers.iter().any(|buffer| buffer.as_ptr() == address.wrapping_add(4000) && buffer.len() == 4000));
}

#[test]
fn a_projection_sets_the_order_of_the_columns() {
    let whole = batch(columns(10));
    let schema = whole.schema();
    let mut encoder = Encoder::new(&schema, Some(&[8, 2]), None).unwrap();
    let decoded = decode(encode(&mut encoder, &whole, 3..7)).unwrap();
    assert_eq!(decoded.batches, [whole.slice(3, 4).project(&[8, 2]).unwrap()]);
    assert_eq!(encoder.schema().field(0).name(), "utf8");
    assert!(Encoder::new(&schema, Some(&[99]), None).is_err());
}

#[test]
fn rows_without_columns_are_kept() {
    let schema = Arc::new(Schema::empty());
    let options = RecordBatchOptions::new().with_row_count(Some(5));
    let whole = RecordBatch::try_new_with_options(schema, vec![], &options).unwrap();
    assert_eq!(decode(encode(&mut encoder(&whole, None), &whole, 1..4)).unwrap().batches[0].num_rows(), 3);
}

#[test]
fn metadata_is_kept() {
    let field = Field::new("a", DataType::Int32, false).with_metadata([("unit".into(), "m".into())].into());
    let schema = Arc::new(Schema::new(vec![field]).with_metadata([("origin".into(), "here".into())].into()));
    let whole = RecordBatch::try_new(schema.clone(), vec![Arc::new(Int32Array::from(vec![1]))]).unwrap();
    assert_eq!(decode(encode(&mut encoder(&whole, None), &whole, 0..1)).unwrap().schema, schema);
}

#[test]
fn unsupported_types_schemas_and_codecs_are_refused() {
    let item = Arc::new(Field::new("item", DataType::Int32, true));
    let views = ListViewArray::new(item, vec![0].into(), vec![1].into(), Arc::new(Int32Array::from(vec![1])), None);
    let whole = batch(vec![("nested", Arc::new(views))]);
    let error = Encoder::new(&whole.schema(), None, None).unwrap_err().to_string();
    assert!(
        error.starts_with("column \"nested\" cannot be written as Arrow IPC: its type is or has ListView"),
        "{error}"
    );

    let other = batch(vec![("b", Arc::new(Int32Array::from(vec![1])))]);
    let whole = batch(vec![("a", Arc::new(Int32Array::from(vec![1])))]);
    let error = encoder(&whole, None).check(&other).unwrap_err().to_string();
    assert_eq!(error, "the record batch has a different schema from the first one: \"b\" Int32; it was: \"a\" Int32");
    assert_eq!(Codec::named("zstd"), Ok(Codec::Zstd));
    let error = Codec::named("gzip").unwrap_err().to_string();
    assert_eq!(error, "codec must be None, \"lz4\" or \"zstd\": got \"gzip\"");
}

#[test]
fn entries_beyond_the_limits_are_refused() {
    // The pages of these zeros are never touched.
    let of_zeros = |size: usize| {
        let offsets = OffsetBuffer::<i64>::from_lengths([size - 1, 1]);
        let values = arrow_buffer::MutableBuffer::from_len_zeroed(size).into();
        batch(vec![("a", Arc::new(arrow_array::LargeBinaryArray::new(offsets, values, None)))])
    };
    for (codec, limit, what) in [
        (None, MAX_ENTRY_BYTES, "bytes, at most 536870912"),
        (Some(Codec::Zstd), MAX_ROWS_BYTES, "bytes before it is compressed, at most 1073741824"),
    ] {
        let whole = of_zeros(limit + 1);
        let mut encoder = encoder(&whole, codec);
        let mut out = vec![Buffer::from(b"before")];
        let fault = encoder.encode(&whole, 0..2, &mut out).unwrap_err();
        assert_eq!((&*fault.code, out.len()), (code::TOO_LARGE, 1));
        assert!(
            fault.message.starts_with("an entry of 2 rows would have ") && fault.message.contains(what),
            "{fault:?}"
        );
        // The small row is still encoded.
        assert_eq!(decode(encode(&mut encoder, &whole, 1..2)).unwrap().batches[0].num_rows(), 1);
    }
}

/// Small streams with every type and codec, the columns in two halves to keep each stream small.
fn streams() -> Vec<Vec<u8>> {
    let mut columns = columns(12);
    let halves = [columns.split_off(10), columns].map(batch);
    let encode = |half: &RecordBatch, codec| encode(&mut encoder(half, codec), half, 3..11);
    halves.iter().flat_map(|half| CODECS.map(|codec| encode(half, codec))).collect()
}

#[test]
fn truncated_and_extended_streams_are_refused() {
    for stream in streams() {
        for length in 0..stream.len() {
            let error = decode(stream[..length].to_vec()).unwrap_err().to_string();
            assert!(
                error.starts_with("the payload is not a readable Arrow IPC stream: it is truncated: it has "),
                "{error}"
            );
        }
        let error = decode([&stream[..], b"x"].concat()).unwrap_err().to_string();
        assert!(error.ends_with(": 1 bytes follow its end"), "{error}");
    }
}

#[test]
fn bytes_that_are_not_a_stream_are_refused() {
    for bytes in
        [&b"{\"order_id\": 123}"[..], b"ARROW1\0\0", &[0; 64], &[0xFF; 64], &[0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0]]
    {
        let error = decode(bytes.to_vec()).unwrap_err().to_string();
        assert!(error.starts_with("the payload is not a readable Arrow IPC stream: it"), "{error}");
    }
}

#[test]
fn a_flipped_byte_gives_an_error_or_valid_rows() {
    let mut refused = 0;
    for stream in streams() {
        for at in (0..stream.len()).step_by(6) {
            let mask = if at % 4 == 0 { 1 << (at / 4 % 8) } else { 0xFF };
            let mut flipped = stream.clone();
            flipped[at] ^= mask;
            match decode(flipped) {
                // A flipped bit within a value cannot be detected.
                Ok(decoded) => decoded.batches.iter().for_each(|batch| batch.columns().iter().for_each(touch)),
                Err(error) => {
                    refused += 1;
                    assert!(error.to_string().starts_with("the payload is not a readable Arrow IPC stream"), "{error}");
                }
            }
        }
    }
    assert!(refused > 1000, "{refused}");
}

/// Validates every value.
fn touch(array: &ArrayRef) {
    array.to_data().validate_full().unwrap();
}

proptest! {
    #[test]
    fn noise_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(decode(bytes).is_err());
    }

    #[test]
    fn noise_within_a_stream_gives_an_error_or_valid_rows(
        which in 0..6_usize,
        noise in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
    ) {
        let mut stream = streams().swap_remove(which);
        for (at, byte) in noise {
            let at = at.index(stream.len());
            stream[at] = byte;
        }
        if let Ok(decoded) = decode(stream) {
            decoded.batches.iter().for_each(|batch| batch.columns().iter().for_each(touch));
        }
    }
}

/// A stream of one compressed buffer, and the position of its claimed length.
fn compressed(codec: Codec, rows: usize) -> (Vec<u8>, usize) {
    let whole = batch(vec![("a", Arc::new(Int64Array::from(vec![7; rows])))]);
    let stream = encode(&mut encoder(&whole, Some(codec)), &whole, 0..rows);
    let claim = (rows * 8).to_le_bytes();
    let found: Vec<usize> = (0..stream.len() - 8).filter(|at| stream[*at..at + 8] == claim).collect();
    (stream, *found.last().unwrap())
}

#[test]
fn wrong_claims_of_length_are_refused() {
    for codec in [Codec::Lz4, Codec::Zstd] {
        let (stream, at) = compressed(codec, 5000);
        assert_eq!(decode(stream.clone()).unwrap().batches[0].num_rows(), 5000);
        for (claim, text) in [
            (i64::MAX, "its rows claim 9223372036854775807 bytes, at most 1073741824 are allowed"),
            (2 << 30, "its rows claim 2147483648 bytes, at most 1073741824 are allowed"),
            (-2, "the length of a compressed buffer is wrong"),
            (1 << 30, "it is corrupt"),
            (39_999, "it is corrupt"),
        ] {
            let mut stream = stream.clone();
            stream[at..at + 8].copy_from_slice(&claim.to_le_bytes());
            let error = decode(stream).unwrap_err().to_string();
            assert!(error.contains(text), "{codec:?}, {claim}: {error}");
        }
    }
}

#[test]
fn a_frame_that_exceeds_its_claim_is_refused() {
    let (mut stream, at) = compressed(Codec::Lz4, 500_000);
    stream[at..at + 8].copy_from_slice(&100_i64.to_le_bytes());
    assert!(check(&stream, 5_000_000).is_ok());
    assert!(check(&stream, 100_000).unwrap_err().starts_with("its rows claim 100001 bytes"));
    assert!(decode(stream).is_err());
}
