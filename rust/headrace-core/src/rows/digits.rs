//! The decimal digits of small numbers, from a table of pairs.

/// `00` to `99`.
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[0; 2]; 100];
    let mut number = 0;
    while number < 100 {
        pairs[number] = [b'0' + (number / 10) as u8, b'0' + (number % 10) as u8];
        number += 1;
    }
    pairs
};

/// The two digits of a number below 100.
#[inline]
pub(super) fn two(number: u32) -> [u8; 2] {
    PAIRS[number as usize]
}

/// The eight digits of a number below 100,000,000.
#[inline]
pub(super) fn eight(number: u32) -> [u8; 8] {
    let (high, low) = (number / 10_000, number % 10_000);
    let pair = |number| u64::from(u16::from_le_bytes(two(number)));
    // Combined in a register: a wide load after narrow stores has to wait for them.
    let digits = pair(high / 100) | pair(high % 100) << 16 | pair(low / 100) << 32 | pair(low % 100) << 48;
    digits.to_le_bytes()
}

/// The digits of a number below 100,000,000 without leading zeros: the first bytes, and their number.
#[inline]
pub(super) fn up_to_eight(number: u32) -> ([u8; 8], usize) {
    let digits = u64::from_le_bytes(eight(number));
    // The first digit is in the lowest byte. The last one stays, even if it is 0.
    let values = digits ^ u64::from_le_bytes([b'0'; 8]);
    let zeros = (values | 1 << 56).trailing_zeros() / 8;
    ((digits >> (8 * zeros)).to_le_bytes(), 8 - zeros as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_length_have_the_right_digits() {
        for power in (0..8).map(|power| 10_u32.pow(power)) {
            for number in [0, power - 1, power, power + 1, power * 2, power * 10 - 1] {
                assert_eq!(eight(number), *format!("{number:08}").as_bytes());
                let (digits, length) = up_to_eight(number);
                assert_eq!(digits[..length], *number.to_string().as_bytes());
            }
        }
    }
}
