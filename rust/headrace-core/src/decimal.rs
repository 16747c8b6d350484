//! Decimal digits: parsing, and incrementing in place, which is cheaper than formatting the next number.

/// The digit 0 eight times.
const ZEROS: u64 = u64::from_le_bytes([b'0'; 8]);

/// The powers of ten that fit in 64 bits.
pub(crate) const POWERS: [u64; 20] = {
    let mut powers = [1; 20];
    let mut exponent = 1;
    while exponent < powers.len() {
        powers[exponent] = powers[exponent - 1] * 10;
        exponent += 1;
    }
    powers
};

/// Parses an unsigned number of at least one digit that fits in 64 bits.
#[inline]
pub(crate) fn parse(digits: &[u8]) -> Option<u64> {
    match digits.len() {
        1..=7 => parse_few(digits),
        8..=20 => parse_many(digits),
        _ => None,
    }
}

/// Parses 1 to 7 digits.
#[inline]
fn parse_few(digits: &[u8]) -> Option<u64> {
    let mut value = 0;
    for byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value * 10 + u64::from(digit);
    }
    Some(value)
}

/// Parses 8 to 20 digits.
fn parse_many(digits: &[u8]) -> Option<u64> {
    // 19 digits always fit; only the 20th can overflow.
    let (safe, last) = digits.split_at(digits.len().min(19));
    let (mut value, mut rest) = (0_u64, safe);
    while let Some((eight, after)) = rest.split_first_chunk() {
        value = value * POWERS[8] + parse_eight(u64::from_le_bytes(*eight))?;
        rest = after;
    }
    if let (Some(eight), 1..) = (safe.last_chunk(), rest.len()) {
        // Digits that were already read are replaced with zeros.
        let again = 8 * (8 - rest.len());
        let text = u64::from_le_bytes(*eight) >> again << again | ZEROS >> (64 - again);
        value = value * POWERS[rest.len()] + parse_eight(text)?;
    }
    match last {
        [] => Some(value),
        [byte] if byte.is_ascii_digit() => value.checked_mul(10)?.checked_add(u64::from(byte - b'0')),
        _ => None,
    }
}

/// Parses thirteen digits: the milliseconds of current entry IDs.
#[inline]
pub(crate) fn parse_thirteen(digits: &[u8; 13]) -> Option<u64> {
    let [first @ .., _, _, _, _, _] = digits;
    let [.., last_but_4, last_but_3, last_but_2, last_but_1, last] = *digits;
    let last = [b'0', b'0', b'0', last_but_4, last_but_3, last_but_2, last_but_1, last];
    Some(parse_eight(u64::from_le_bytes(*first))? * POWERS[5] + parse_eight(u64::from_le_bytes(last))?)
}

/// Parses eight digits at once, the first in the lowest byte: neighbours are joined, then pairs, then groups of four
/// (<https://lemire.me/blog/2022/01/21/swar-explained-parsing-eight-digits/>).
#[inline]
fn parse_eight(text: u64) -> Option<u64> {
    // A byte below `0` or above `9` has a different upper half, or gets one when six is added.
    if (text & 0xf0f0_f0f0_f0f0_f0f0) != ZEROS || (text + 0x0606_0606_0606_0606) & 0xf0f0_f0f0_f0f0_f0f0 != ZEROS {
        return None;
    }
    let ones = text - ZEROS;
    let pairs = (ones * 10 + (ones >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs * 100 + (pairs >> 16)) & 0x0000_ffff_0000_ffff;
    Some((fours * 10_000 + (fours >> 32)) & 0xffff_ffff)
}

/// Adds one to the number at the end of `text`. Returns false if the result needs one more digit; `text` is invalid then.
#[inline]
pub(crate) fn count_up(text: &mut [u8]) -> bool {
    for digit in text.iter_mut().rev() {
        match digit {
            b'0'..=b'8' => {
                *digit += 1;
                return true;
            }
            b'9' => *digit = b'0',
            _ => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incrementing_adds_one_within_the_digits() {
        let mut text = *b"a-00000";
        for n in 0..99_999_u32 {
            assert_eq!(text[2..], *format!("{n:05}").as_bytes());
            assert!(count_up(&mut text));
        }
        assert!(!count_up(&mut text), "there is no sixth digit");
        assert!(!count_up(&mut b"99".to_vec()));
        assert!(!count_up(&mut []));
    }

    #[test]
    fn numbers_up_to_64_bits_are_parsed() {
        assert_eq!(parse(b"18446744073709551615"), Some(u64::MAX));
        for bad in ["18446744073709551616", "99999999999999999999", "000000000000000000001", "", "1a", "-1", "1 "] {
            assert_eq!(parse(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(parse(b"00"), Some(0));
        for length in 1..=20 {
            let text = &"12345678901234567890"[..length];
            assert_eq!(parse(text.as_bytes()), text.parse().ok());
            for (at, byte) in (0..length).flat_map(|at| (0..=u8::MAX).map(move |byte| (at, byte))) {
                let mut other = text.as_bytes().to_vec();
                other[at] = byte;
                let expected = byte.is_ascii_digit().then(|| std::str::from_utf8(&other).ok()?.parse().ok());
                assert_eq!(parse(&other), expected.flatten(), "{}", other.escape_ascii());
                if let Ok(thirteen) = (&other[..]).try_into() {
                    assert_eq!(parse_thirteen(thirteen), parse(&other));
                }
            }
        }
    }
}
