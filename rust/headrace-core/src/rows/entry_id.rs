//! Validation of entry IDs from the caller.

/// The longest part of a refused entry ID that an error quotes, in characters.
const MAX_QUOTED: usize = 64;

/// Whether `value` is `*`, `<ms>`, `<ms>-<seq>` or `<ms>-*`.
///
/// XADD parses options until it finds the entry ID, so it would read a value such as `MAXLEN` as an option:
/// <https://redis.io/docs/latest/commands/xadd/> (`<ms>-*` since Redis 7.0; older servers refuse it).
pub(super) fn is_entry_id(value: &[u8]) -> bool {
    if value == b"*" {
        return true;
    }
    let mut parts = value.splitn(2, |byte| *byte == b'-');
    let milliseconds = parts.next().unwrap_or_default();
    is_u64(milliseconds) && parts.next().is_none_or(|sequence| sequence == b"*" || is_u64(sequence))
}

fn is_u64(digits: &[u8]) -> bool {
    !digits.is_empty()
        && digits
            .iter()
            .try_fold(0_u64, |value, byte| {
                let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
                value.checked_mul(10)?.checked_add(digit)
            })
            .is_some()
}

/// The start of an invalid entry ID, for an error.
pub(super) fn quoted(value: &[u8]) -> String {
    String::from_utf8_lossy(value).chars().take(MAX_QUOTED).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_four_forms_of_an_entry_id_are_accepted() {
        for good in ["*", "0", "1526919030474", "1526919030474-55", "5-*", "18446744073709551615-18446744073709551615"]
        {
            assert!(is_entry_id(good.as_bytes()), "{good}");
        }
    }

    #[test]
    fn values_that_are_not_entry_ids_are_refused() {
        let bad = [
            "",
            "-",
            "**",
            "MAXLEN",
            "NOMKSTREAM",
            "~",
            "=",
            "$",
            "+",
            "-1",
            "1-",
            "-*",
            "*-1",
            "1-2-3",
            "1-**",
            " 1",
            "1 ",
            "+1",
            "1.5",
            "0x1",
            "18446744073709551616",
            "36893488147419103240",
            "1-18446744073709551616",
            "1\r\n",
            "1\0",
            "٣",
        ];
        for bad in bad {
            assert!(!is_entry_id(bad.as_bytes()), "{bad:?}");
        }
        assert!(!is_entry_id(b"\xff"));
    }

    #[test]
    fn a_quoted_value_is_truncated() {
        assert_eq!(quoted(&[b'x'; 1000]).len(), MAX_QUOTED);
        assert_eq!(quoted(b"MAXLEN\xff"), "MAXLEN\u{fffd}");
    }
}
