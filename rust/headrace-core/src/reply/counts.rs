//! Scans the replies to WAIT and WAITAOF, which are counts: an integer, and an array of two.

use super::{Reply, Violation, header};
use crate::decimal;

/// Whether `bytes` begin with a reply to WAIT, an integer, or to WAITAOF, an array of two: the reply to a run is an array as
/// well, but its second part is a bulk string.
pub(super) fn is_of_wait(bytes: &[u8], of_runs: bool) -> bool {
    match bytes.first() {
        Some(b'*') if of_runs => {
            memchr::memchr_iter(b'\n', bytes).nth(1).and_then(|second| bytes.get(second + 1)) == Some(&b':')
        }
        Some(b':' | b'*') => true,
        Some(_) | None => false,
    }
}

/// The integer that a line holds.
pub(super) fn count(line: &[u8]) -> Option<u64> {
    line.strip_prefix(b":").and_then(decimal::parse)
}

/// The reply to WAIT or WAITAOF.
pub(super) fn scan(bytes: &[u8]) -> Result<Option<(Reply<'_>, usize)>, Violation> {
    const NO_COUNT: Violation = Violation("a reply that neither XADD nor WAIT is answered by");
    let Some(first) = header(bytes)? else { return Ok(None) };
    if first.starts_with(b":") {
        let replicas = count(first).ok_or(NO_COUNT)?;
        return Ok(Some((Reply::Acknowledged { local: 0, replicas }, first.len() + 2)));
    }
    if first != b"*2" {
        return Err(NO_COUNT);
    }
    let mut at = first.len() + 2;
    let mut counts = [0; 2];
    for place in &mut counts {
        let Some(line) = header(&bytes[at..])? else { return Ok(None) };
        *place = count(line).ok_or(NO_COUNT)?;
        at += line.len() + 2;
    }
    let [local, replicas] = counts;
    Ok(Some((Reply::Acknowledged { local, replicas }, at)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::ReplyBuffer;
    use super::*;

    #[test]
    fn counts_are_taken_where_wait_is_sent_however_the_bytes_are_cut() {
        let run: &[u8] = b"*3\r\n:1\r\n$0\r\n\r\n$3\r\n7-1\r\n";
        let entry: &[u8] = b"$3\r\n7-1\r\n";
        let counts: [(&[u8], u64, u64); 3] = [(b":12\r\n", 0, 12), (b"*2\r\n:1\r\n:0\r\n", 1, 0), (b":0\r\n", 0, 0)];
        for of_runs in [false, true] {
            for (count, its_local, its_replicas) in counts {
                let other = if of_runs { run } else { entry };
                let bytes = [other, count, b"-ERR no\r\n", other].concat();
                for cut in 0..bytes.len() {
                    let mut buffer = ReplyBuffer::new(of_runs);
                    buffer.take_acknowledgements();
                    let mut seen = Vec::new();
                    for part in [&bytes[..cut], &bytes[cut..]] {
                        buffer.space()[..part.len()].copy_from_slice(part);
                        buffer.filled(part.len());
                        while let Some(reply) = buffer.next().unwrap() {
                            seen.push(match reply {
                                Reply::Acknowledged { local, replicas } => Some((local, replicas)),
                                _ => None,
                            });
                        }
                    }
                    assert_eq!(seen, [None, Some((its_local, its_replicas)), None, None], "{of_runs} {cut}");
                }
            }
        }
    }

    #[test]
    fn what_wait_is_not_answered_by_is_a_violation() {
        for bytes in [
            &b":\r\n"[..],
            b":-1\r\n",
            b":x\r\n",
            b"*1\r\n:1\r\n",
            b"*2\r\n$1\r\n1\r\n",
            b"*2\r\n:1\r\n+1\r\n",
            b"*3\r\n",
        ] {
            let mut buffer = ReplyBuffer::new(false);
            buffer.take_acknowledgements();
            buffer.space()[..bytes.len()].copy_from_slice(bytes);
            buffer.filled(bytes.len());
            assert!(buffer.next().is_err(), "{}", String::from_utf8_lossy(bytes));
        }
    }
}
