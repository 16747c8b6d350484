//! Names as text. Redis allows any bytes in a field name or a key; Arrow's utf8 does not.
//!
//! Each byte that is not part of UTF-8 becomes `\xNN`, with two digits from `0` to `9` and `a` to `f`, and each backslash is
//! doubled, in every name. So different names have different texts, from which the bytes can be restored.

pub(crate) use crate::utf8::escape as escaped;

/// The name with this text; `None` if no name has it. Only tests need it.
#[cfg(any(test, fuzzing))]
pub(crate) fn unescaped(text: &str) -> Option<Vec<u8>> {
    let mut name = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    loop {
        match rest {
            [] => break,
            [b'\\', b'\\', after @ ..] => {
                name.push(b'\\');
                rest = after;
            }
            [b'\\', b'x', high, low, after @ ..] => {
                let digit = |digit: u8| match digit {
                    b'0'..=b'9' => Some(digit - b'0'),
                    b'a'..=b'f' => Some(digit - b'a' + 10),
                    _ => None,
                };
                name.push(digit(*high)? << 4 | digit(*low)?);
                rest = after;
            }
            [b'\\', ..] => return None,
            [byte, after @ ..] => {
                name.push(*byte);
                rest = after;
            }
        }
    }
    // `\x41` is not the text of `A`.
    (escaped(&name) == text).then_some(name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn text_is_unchanged_except_for_backslashes() {
        for (name, text) in [
            (&b""[..], ""),
            (b"user id\0", "user id\0"),
            ("größe".as_bytes(), "größe"),
            (b"a\\b", r"a\\b"),
            (b"\\xff", r"\\xff"),
            (b"\xff", r"\xff"),
            (b"a\xe2\x82\\", r"a\xe2\x82\\"),
            (b"\xed\xa0\x80", r"\xed\xa0\x80"),
        ] {
            assert_eq!(escaped(name), text);
            assert_eq!(unescaped(text).as_deref(), Some(name), "{text}");
        }
        for text in ["\\", r"a\b", r"\x4", r"\x41", r"\xFF", r"\xc3\xa9", r"\xzz"] {
            assert_eq!(unescaped(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn an_escaped_name_is_unescaped_to_the_same_name(name in prop::collection::vec(
            prop_oneof![prop::sample::select(b"\\xab8\xc3\xa9\xe2\x82\xac\xff".to_vec()), any::<u8>()], 0..12,
        )) {
            prop_assert_eq!(unescaped(&escaped(&name)), Some(name));
        }
    }
}
