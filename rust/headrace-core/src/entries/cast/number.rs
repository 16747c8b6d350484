//! Whole numbers, floats and booleans from text.

use std::ops::Neg;
use std::str::FromStr;

use arrow_array::types::{ArrowPrimitiveType, Float16Type};

use crate::decimal::{self, POWERS};

type F16 = <Float16Type as ArrowPrimitiveType>::Native;

/// Whether a number has a minus sign, and the text after its sign.
#[inline]
pub(super) fn split_sign(text: &[u8]) -> (bool, &[u8]) {
    match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    }
}

/// A whole number with an optional sign and 1 to 20 digits, if it is in the range of `T`.
#[inline]
pub(super) fn integer<T: TryFrom<i64>>(text: &[u8]) -> Option<T> {
    let (is_negative, digits) = split_sign(text);
    let magnitude = decimal::parse(digits)?;
    let value = if is_negative { 0_i64.checked_sub_unsigned(magnitude)? } else { i64::try_from(magnitude).ok()? };
    T::try_from(value).ok()
}

/// An unsigned 64-bit number with an optional sign. `-0` is 0.
#[inline]
pub(super) fn unsigned(text: &[u8]) -> Option<u64> {
    let (is_negative, digits) = split_sign(text);
    decimal::parse(digits).filter(|value| !is_negative || *value == 0)
}

/// A number without an exponent: `digits` × 10^-`places`.
pub(super) struct Plain {
    pub(super) is_negative: bool,
    pub(super) digits: u64,
    pub(super) places: usize,
}

impl Plain {
    /// Parses a number of at most 19 digits and points, in a single pass, which is fastest for short numbers, as most are.
    #[inline]
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let (is_negative, number) = split_sign(text);
        let (mut digits, mut after_point) = (0, None);
        if number.len() > 19 {
            return None;
        }
        for (place, byte) in number.iter().enumerate() {
            let digit = byte.wrapping_sub(b'0');
            if digit <= 9 {
                digits = digits * 10 + u64::from(digit);
            } else if *byte == b'.' && after_point.is_none() {
                after_point = Some(place + 1);
            } else {
                return None;
            }
        }
        let places = after_point.map_or(0, |start| number.len() - start);
        (number.len() > usize::from(after_point.is_some())).then_some(Self { is_negative, digits, places })
    }
}

/// The maximum length of a text that is tried exactly: a longer one usually has more digits than a float holds.
const MAX_EXACT: usize = 17;

/// A float type.
pub(super) trait Float: FromStr + Copy + Into<f64> + Neg<Output = Self> {
    /// Integers below 2^`BITS` are exact.
    const BITS: u32;
    /// The maximum number of decimal places for which the power of ten is exact.
    const PLACES: usize;

    fn from_exact(number: u64) -> Self;

    fn divided_by(self, other: Self) -> Self;
}

#[allow(clippy::cast_precision_loss)] // the numbers are exact
impl Float for f64 {
    const BITS: u32 = Self::MANTISSA_DIGITS;
    const PLACES: usize = 18; // of 22: `Plain` has no more

    fn from_exact(number: u64) -> Self {
        number as Self
    }

    fn divided_by(self, other: Self) -> Self {
        self / other
    }
}

#[allow(clippy::cast_precision_loss)] // the numbers are exact
impl Float for f32 {
    const BITS: u32 = Self::MANTISSA_DIGITS;
    const PLACES: usize = 10;

    fn from_exact(number: u64) -> Self {
        number as Self
    }

    fn divided_by(self, other: Self) -> Self {
        self / other
    }
}

/// The float that is nearest to a number, or NaN or an infinity by name. Accepts what [`f64::from_str`] parses, except numbers
/// that are too large.
#[inline]
pub(super) fn float<F: Float>(text: &[u8]) -> Option<F> {
    // The quotient of two exact numbers is the nearest float: W. D. Clinger, "How to read floating point numbers accurately",
    // 1990.
    if text.len() <= MAX_EXACT
        && let Some(Plain { is_negative, digits, places }) = Plain::parse(text)
        && digits >> F::BITS == 0
        && places <= F::PLACES
    {
        let value = F::from_exact(digits).divided_by(F::from_exact(POWERS[places]));
        return Some(if is_negative { -value } else { value });
    }
    let value: F = std::str::from_utf8(text).ok()?.parse().ok()?;
    (!value.into().is_infinite() || is_name(text)).then_some(value)
}

/// [`float`] for 16 bits. A number that is not exactly a float32 is rounded twice.
pub(super) fn float16(text: &[u8]) -> Option<F16> {
    let value = F16::from_f32(float(text)?);
    (!value.is_infinite() || is_name(text)).then_some(value)
}

/// Whether a float is written as a name: NaN or an infinity.
fn is_name(text: &[u8]) -> bool {
    split_sign(text).1.first().is_some_and(u8::is_ascii_alphabetic)
}

/// Parses `true` or `false` in any case, `1` or `0`.
#[inline]
pub(super) fn boolean(text: &[u8]) -> Option<bool> {
    match text {
        b"true" | b"1" => Some(true),
        b"false" | b"0" => Some(false),
        _ if text.eq_ignore_ascii_case(b"true") => Some(true),
        _ if text.eq_ignore_ascii_case(b"false") => Some(false),
        _ => None,
    }
}
