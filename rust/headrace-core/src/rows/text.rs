//! Numbers as text: integers, floats and decimals.

use std::fmt::LowerExp;

use arrow_buffer::i256;

use super::digits;
use super::line::Line;

/// The notation of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// The value of a field, in full precision. Decimals are plain (`0.00000012`), timestamps have as many digits as needed.
    Field,
    /// JSON as Spark writes it. Decimals below 0.000001 have an exponent (`1.2E-7`: `BigDecimal.toString`), timestamps have
    /// three digits, truncated (the default `timestampFormat` is `yyyy-MM-dd'T'HH:mm:ss[.SSS][XXX]`).
    Json,
}

/// Numbers below this have at most eight digits.
const EIGHT_DIGITS: u64 = 100_000_000;

/// Appends an integer in decimal.
#[inline]
pub(super) fn write_integer(out: &mut Line<'_>, value: impl itoa::Integer + TryInto<u64> + Copy) {
    match value.try_into() {
        Ok(number) if number < EIGHT_DIGITS => write_short(out, number as u32),
        _ => write_long_integer(out, value),
    }
}

/// Appends an integer that is negative or has more than eight digits.
#[inline(never)]
fn write_long_integer(out: &mut Line<'_>, value: impl itoa::Integer + TryInto<u64> + Copy) {
    match value.try_into() {
        Ok(number) if number < EIGHT_DIGITS * EIGHT_DIGITS => {
            write_short(out, (number / EIGHT_DIGITS) as u32);
            out.push(&digits::eight((number % EIGHT_DIGITS) as u32));
        }
        _ => out.push_text(itoa::Buffer::new().format(value).as_bytes()),
    }
}

/// Appends a number of at most eight digits, with copies of sizes known at compile time.
#[inline]
fn write_short(out: &mut Line<'_>, number: u32) {
    let (digits, length) = digits::up_to_eight(number);
    out.push_start(&digits, length);
}

/// Appends a double as `Double.toString` of Java 19 and later does: the shortest digits that parse to the same value.
#[inline]
pub(super) fn write_f64(out: &mut Line<'_>, value: f64, style: Style) {
    if is_plain(value) {
        out.push_text(zmij::Buffer::new().format_finite(value).as_bytes());
    } else {
        write_other_float(out, value, value.is_subnormal(), style);
    }
}

/// Appends a float as `Float.toString` does; see [`write_f64`].
#[inline]
pub(super) fn write_f32(out: &mut Line<'_>, value: f32, style: Style) {
    if is_plain(value.into()) {
        out.push_text(zmij::Buffer::new().format_finite(value).as_bytes());
    } else {
        write_other_float(out, value, value.is_subnormal(), style);
    }
}

/// Appends a float that is very large, very small, or not finite.
#[inline(never)]
fn write_other_float<F>(out: &mut Line<'_>, value: F, is_subnormal: bool, style: Style)
where
    F: zmij::Float + Into<f64> + LowerExp + Copy,
{
    if let Some(name) = name_of_non_finite(value.into()) {
        // JSON does not have such numbers.
        let quotes = usize::from(style == Style::Json);
        out.push_start(b"\"", quotes);
        out.push_text(name.as_bytes());
        out.push_start(b"\"", quotes);
    } else if !write_scientific(out, zmij::Buffer::new().format_finite(value), is_subnormal) {
        write_scientific(out, &format!("{value:.1e}"), false);
    }
}

/// Java's names for values that are not finite.
fn name_of_non_finite(value: f64) -> Option<&'static str> {
    if value.is_nan() {
        Some("NaN")
    } else if value.is_infinite() {
        Some(if value < 0.0 { "-Infinity" } else { "Infinity" })
    } else {
        None
    }
}

/// Whether Java writes `value` without an exponent.
fn is_plain(value: f64) -> bool {
    // Doubles without a sign have the same order as their bits, so one comparison is enough; NaN is above all of them.
    let bits = value.abs().to_bits();
    (1e-3_f64.to_bits()..1e7_f64.to_bits()).contains(&bits) || bits == 0
}

/// Rewrites the digits of a non-zero number as `d.dddE<exponent>`.
///
/// Java writes the nearest decimal of two digits where one digit would be enough (`4.9E-324`, not `5.0E-324`). This makes a
/// difference only for the smallest numbers: with `two_digits`, the function writes nothing for a single digit, and returns
/// false.
fn write_scientific(out: &mut Line<'_>, number: &str, two_digits: bool) -> bool {
    let (sign, number) = number.strip_prefix('-').map_or(("", number), |number| ("-", number));
    let (mantissa, exponent) = number.split_once('e').unwrap_or((number, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let mut digits = [0; 40];
    let mut length = 0;
    // The exponent of the digit before the point is 0; leading zeros are not significant.
    let mut first_exponent = exponent.parse::<isize>().unwrap_or_default() + whole.len().cast_signed() - 1;
    for digit in whole.bytes().chain(fraction.bytes()) {
        if length == 0 && digit == b'0' {
            first_exponent -= 1;
        } else if let Some(slot) = digits.get_mut(length) {
            *slot = digit;
            length += 1;
        }
    }
    let digits = without_trailing_zeros(&digits[..length]);
    let Some((first, rest)) = digits.split_first() else { return true };
    if two_digits && rest.is_empty() {
        return false;
    }
    out.push_text(sign.as_bytes());
    out.push(&[*first, b'.']);
    out.push_text(if rest.is_empty() { b"0" } else { rest });
    out.push(b"E");
    out.push_text(itoa::Buffer::new().format(first_exponent).as_bytes());
    true
}

fn without_trailing_zeros(digits: &[u8]) -> &[u8] {
    let length = digits.iter().rposition(|digit| *digit != b'0').map_or(0, |last| last + 1);
    &digits[..length]
}

/// `unscaled` × 10^-`scale`.
#[inline]
pub(super) fn write_decimal(out: &mut Line<'_>, unscaled: i128, scale: i8, style: Style) {
    // Most decimals fit in 64 bits, which are divided several times faster, and have digits on both sides of the point.
    if let (Ok(small), 1..=Line::MAX_PLACES) = (i64::try_from(unscaled), scale) {
        let start = out.end();
        write_integer(out, small);
        let length = out.end() - start;
        if length > usize::from(scale.unsigned_abs()) + usize::from(small < 0) {
            return out.insert_point(scale.unsigned_abs());
        }
        out.remove(length);
    }
    write_other_decimal(out, unscaled, scale, style);
}

#[inline(never)]
fn write_other_decimal(out: &mut Line<'_>, unscaled: i128, scale: i8, style: Style) {
    place_point(out, unscaled < 0, itoa::Buffer::new().format(unscaled.unsigned_abs()).as_bytes(), scale, style);
}

/// `unscaled` × 10^-`scale`.
pub(super) fn write_decimal256(out: &mut Line<'_>, unscaled: i256, scale: i8, style: Style) {
    if let Some(small) = unscaled.to_i128() {
        return write_decimal(out, small, scale, style);
    }
    // 18 digits at a time, from the end. The remainder keeps the sign, because the smallest number has no positive
    // counterpart.
    let chunk = i256::from_i128(1_000_000_000_000_000_000);
    let mut digits = [0; 90];
    let mut rest = unscaled;
    for place in digits.rchunks_mut(18) {
        let mut number = rest.wrapping_rem(chunk).as_i128().unsigned_abs() as u64;
        for digit in place.iter_mut().rev() {
            *digit = b'0' + (number % 10) as u8;
            number /= 10;
        }
        rest = rest.wrapping_div(chunk);
    }
    let first = digits.iter().position(|digit| *digit != b'0').unwrap_or_default();
    place_point(out, unscaled.is_negative(), &digits[first..], scale, style);
}

/// Appends a decimal from its digits (without leading zeros), with its sign and its point.
fn place_point(out: &mut Line<'_>, negative: bool, digits: &[u8], scale: i8, style: Style) {
    if negative {
        out.push(b"-");
    }
    let Ok(scale @ 1..) = usize::try_from(scale) else {
        out.push_text(digits);
        if digits != b"0" {
            push_zeros(out, scale.unsigned_abs().into());
        }
        return;
    };
    // The exponent of the first digit is `length - 1 - scale`; Java's limit is -6.
    if style == Style::Json && digits.len() + 5 < scale {
        let (first, rest) = digits.split_at(1);
        out.push_text(first);
        if !rest.is_empty() {
            out.push(b".");
            out.push_text(rest);
        }
        out.push(b"E-");
        return out.push_text(itoa::Buffer::new().format(scale + 1 - digits.len()).as_bytes());
    }
    if let Some(point) = digits.len().checked_sub(scale).filter(|point| *point > 0) {
        let (whole, fraction) = digits.split_at(point);
        out.push_text(whole);
        out.push(b".");
        out.push_text(fraction);
    } else {
        out.push(b"0.");
        push_zeros(out, scale - digits.len());
        out.push_text(digits);
    }
}

fn push_zeros(out: &mut Line<'_>, count: usize) {
    for _ in 0..count {
        out.push(b"0");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn double(value: f64) -> String {
        Line::written_text(|out| write_f64(out, value, Style::Field))
    }

    fn float(value: f32) -> String {
        Line::written_text(|out| write_f32(out, value, Style::Field))
    }

    #[test]
    fn doubles_are_written_as_in_java() {
        for (value, text) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (-1.5, "-1.5"),
            (0.001, "0.001"),
            (9.99e-4, "9.99E-4"),
            (1e7, "1.0E7"),
            (9_999_999.999, "9999999.999"),
            (12_345_678.9, "1.23456789E7"),
            (1e10, "1.0E10"),
            (1e-5, "1.0E-5"),
            (2e23, "2.0E23"),
            (1e16, "1.0E16"),
            (1e17, "1.0E17"),
            (-1.25e100, "-1.25E100"),
            (f64::MAX, "1.7976931348623157E308"),
            (f64::MIN_POSITIVE, "2.2250738585072014E-308"),
            (5e-324, "4.9E-324"),
            (1e-323, "9.9E-324"),
            (2e-323, "2.0E-323"),
            (f64::NAN, "NaN"),
            (f64::INFINITY, "Infinity"),
            (f64::NEG_INFINITY, "-Infinity"),
        ] {
            assert_eq!(double(value), text);
        }
    }

    #[test]
    fn floats_are_written_as_in_java() {
        for (value, text) in [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (16_777_216.0, "1.6777216E7"),
            (1e10, "1.0E10"),
            (0.001, "0.001"),
            (1e-4, "1.0E-4"),
            (f32::MAX, "3.4028235E38"),
            (1.4e-45, "1.4E-45"),
            (2.8e-45, "2.8E-45"),
            (7e-45, "7.0E-45"),
            (f32::NAN, "NaN"),
        ] {
            assert_eq!(float(value), text);
        }
    }

    #[test]
    fn decimals_keep_their_scale() {
        for (unscaled, scale, plain, java) in [
            (150, 2, "1.50", "1.50"),
            (-5, 2, "-0.05", "-0.05"),
            (0, 2, "0.00", "0.00"),
            (0, 10, "0.0000000000", "0E-10"),
            (12, 8, "0.00000012", "1.2E-7"),
            (1, 6, "0.000001", "0.000001"),
            (10, 7, "0.0000010", "0.0000010"),
            (1, 7, "0.0000001", "1E-7"),
            (i128::MAX, 0, "170141183460469231731687303715884105727", "170141183460469231731687303715884105727"),
            (i128::MIN, 38, "-1.70141183460469231731687303715884105728", "-1.70141183460469231731687303715884105728"),
            (7, -3, "7000", "7000"),
            (0, -3, "0", "0"),
        ] {
            assert_eq!(Line::written_text(|out| write_decimal(out, unscaled, scale, Style::Field)), plain);
            assert_eq!(Line::written_text(|out| write_decimal(out, unscaled, scale, Style::Json)), java);
        }
    }

    proptest! {
        #[test]
        fn doubles_parse_to_the_same_value(bits in any::<u64>()) {
            let value = f64::from_bits(bits);
            prop_assume!(value.is_finite());
            prop_assert_eq!(double(value).parse::<f64>().unwrap().to_bits(), bits);
        }

        #[test]
        fn floats_parse_to_the_same_value(bits in any::<u32>()) {
            let value = f32::from_bits(bits);
            prop_assume!(value.is_finite());
            prop_assert_eq!(float(value).parse::<f32>().unwrap().to_bits(), bits);
        }

        #[test]
        fn the_smallest_floats_have_the_nearest_two_digits(steps in 1_u32..200) {
            let (single, two) = (f32::from_bits(steps), float(f32::from_bits(steps)));
            if two.len() == "1.4E-45".len() {
                prop_assert_eq!(two, format!("{single:.1e}").replace('e', "E"));
            }
        }

        #[test]
        fn integers_are_written_in_decimal(bits in any::<i64>(), shift in 0_u32..64) {
            // Numbers of every length: nearly all random bits make a long number.
            let signed: i64 = bits >> shift;
            let unsigned = bits.cast_unsigned() >> shift;
            let wide = i128::from(signed) << 40;
            prop_assert_eq!(Line::written_text(|out| write_integer(out, signed)), signed.to_string());
            prop_assert_eq!(Line::written_text(|out| write_integer(out, unsigned)), unsigned.to_string());
            prop_assert_eq!(Line::written_text(|out| write_integer(out, unsigned as u16)), (unsigned as u16).to_string());
            prop_assert_eq!(Line::written_text(|out| write_integer(out, wide)), wide.to_string());
        }

        #[test]
        fn a_decimal_is_written_as_its_digits_with_a_point(
            unscaled in prop_oneof![any::<i128>(), any::<i64>().prop_map(i128::from), -2000_i128..2000],
            scale in 0_i8..=38,
        ) {
            let places = usize::from(scale.unsigned_abs());
            let mut expected = format!("{:0>1$}", unscaled.unsigned_abs(), places + 1);
            if places > 0 {
                expected.insert(expected.len() - places, '.');
            }
            if unscaled < 0 {
                expected.insert(0, '-');
            }
            prop_assert_eq!(Line::written_text(|out| write_decimal(out, unscaled, scale, Style::Field)), expected);
        }

        #[test]
        fn wide_decimals_are_written_with_all_digits(low in any::<u128>(), high in any::<i128>()) {
            let value = i256::from_parts(low, high);
            prop_assert_eq!(Line::written_text(|out| write_decimal256(out, value, 0, Style::Field)), value.to_string());
        }
    }

    #[test]
    fn integers_at_the_limits_of_eight_and_sixteen_digits_are_written() {
        for limit in [0, 1, EIGHT_DIGITS, EIGHT_DIGITS * EIGHT_DIGITS, u64::MAX] {
            for value in [limit.saturating_sub(1), limit, limit.saturating_add(1)] {
                assert_eq!(Line::written_text(|out| write_integer(out, value)), value.to_string());
            }
        }
    }

    #[test]
    fn the_widest_decimals_are_written() {
        for value in [i256::MIN, i256::MAX, i256::from_parts(0, 1), i256::from_parts(0, -1)] {
            assert_eq!(Line::written_text(|out| write_decimal256(out, value, 0, Style::Field)), value.to_string());
        }
    }
}
