//! Decimal digits: parsing, and incrementing in place, which is cheaper than formatting the next number.

/// Parses an unsigned number of at least one digit that fits 64 bits.
pub(crate) fn parse(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 20 {
        return None;
    }
    // 19 digits always fit; only the twentieth can overflow.
    let (safe, last) = digits.split_at(digits.len().min(19));
    let mut value = 0_u64;
    for byte in safe {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value * 10 + u64::from(digit);
    }
    match last {
        [] => Some(value),
        [byte] if byte.is_ascii_digit() => value.checked_mul(10)?.checked_add(u64::from(byte - b'0')),
        _ => None,
    }
}

/// Adds one to the number at the end of `text`. False if the result needs one more digit; `text` is invalid then.
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
    }
}
