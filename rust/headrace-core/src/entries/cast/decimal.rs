//! Decimals from text: exactly, or not at all.

use arrow_array::types::{Decimal128Type, Decimal256Type, DecimalType};
use arrow_buffer::i256;

use super::number::{Plain, integer, split_sign};
use crate::decimal::{self, POWERS};

/// The maximum number of digits of an unscaled value.
const MAX_DIGITS: usize = Decimal256Type::MAX_PRECISION as usize;

/// The maximum number of digits that fit in 128 bits.
const HALF: usize = Decimal128Type::MAX_PRECISION as usize;

/// The type of a decimal: the number of digits, and how many of them follow the point.
#[derive(Clone, Copy)]
pub(super) struct Precision {
    digits: usize,
    scale: i8,
    /// The largest unscaled value, if it fits in 64 bits.
    most: u64,
}

impl Precision {
    /// The precision of a column of type `T`.
    pub(super) fn new<T: DecimalType>(digits: u8, scale: i8) -> Self {
        let digits = digits.min(T::MAX_PRECISION).into();
        Self { digits, scale, most: POWERS.get(digits).map_or(u64::MAX, |power| power - 1) }
    }

    /// The unscaled value of a decimal of up to 128 bits.
    pub(super) fn narrow<T: TryFrom<i128>>(self, text: &[u8]) -> Option<T> {
        let (is_negative, value) = self.short(text).or_else(|| self.long(text))?;
        T::try_from(if is_negative { -value } else { value }).ok()
    }

    /// The unscaled value of a decimal of 256 bits.
    pub(super) fn wide(self, text: &[u8]) -> Option<i256> {
        let mut room = [0; MAX_DIGITS];
        let (is_negative, digits) = self.unscaled(text, &mut room)?;
        let (high, low) = digits.split_at(digits.len().saturating_sub(HALF));
        let high = i256::from_i128(number(high)?).wrapping_mul(i256::from_i128(10_i128.pow(HALF as u32)));
        let value = high.wrapping_add(i256::from_i128(number(low)?));
        Some(if is_negative { value.wrapping_neg() } else { value })
    }

    /// The sign and the unscaled value of a short number without an exponent, which most numbers are.
    #[inline]
    fn short(self, text: &[u8]) -> Option<(bool, i128)> {
        let Plain { is_negative, digits, places } = Plain::parse(text)?;
        let zeros = usize::try_from(self.scale).ok()?.checked_sub(places)?;
        let value = digits.checked_mul(*POWERS.get(zeros)?).filter(|value| *value <= self.most)?;
        Some((is_negative, value.into()))
    }

    /// The sign and the unscaled value of any number.
    #[inline(never)]
    fn long(self, text: &[u8]) -> Option<(bool, i128)> {
        let mut room = [0; MAX_DIGITS];
        let (is_negative, digits) = self.unscaled(text, &mut room)?;
        Some((is_negative, number(digits)?))
    }

    /// The sign and the digits of the unscaled value, without leading zeros. `None` if the text is not a number, or is one that
    /// this type cannot hold exactly.
    fn unscaled<'r>(self, text: &[u8], room: &'r mut [u8; MAX_DIGITS]) -> Option<(bool, &'r [u8])> {
        let (is_negative, number) = split_sign(text);
        let (number, exponent) = match number.iter().position(|byte| matches!(byte, b'e' | b'E')) {
            Some(end) => (&number[..end], integer::<i32>(&number[end + 1..])?),
            None => (number, 0),
        };
        let point = number.iter().position(|byte| *byte == b'.');
        let (whole, fraction) = point.map_or((number, &b""[..]), |point| (&number[..point], &number[point + 1..]));
        let total = whole.len() + fraction.len();
        if total == 0 {
            return None;
        }
        // The unscaled value has the digits without the point, with `shift` more zeros or, if `shift` is negative, fewer digits.
        let shift = i64::from(self.scale) + i64::from(exponent) - i64::try_from(fraction.len()).ok()?;
        let kept = i64::try_from(total).ok()?.checked_add(shift)?;
        let (mut length, mut place) = (0, 0);
        for digit in whole.iter().chain(fraction) {
            if !digit.is_ascii_digit() {
                return None;
            }
            if place >= kept {
                // A digit beyond the scale.
                if *digit != b'0' {
                    return None;
                }
            } else if length > 0 || *digit != b'0' {
                *room.get_mut(length)? = *digit;
                length += 1;
            }
            place += 1;
        }
        if length > 0 && shift > 0 {
            let end = length.checked_add(usize::try_from(shift).ok()?)?;
            room.get_mut(length..end)?.fill(b'0');
            length = end;
        }
        (length <= self.digits).then(|| (is_negative, &room[..length]))
    }
}

/// The number of up to 38 digits.
fn number(digits: &[u8]) -> Option<i128> {
    let mut value = 0;
    for part in digits.chunks(HALF / 2) {
        value = value * 10_i128.pow(part.len() as u32) + i128::from(decimal::parse(part)?);
    }
    Some(value)
}
