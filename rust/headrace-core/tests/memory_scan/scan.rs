//! A scanner that searches all writable memory of this process for pieces of secrets. Linux only.
//!
//! It keeps the secrets masked, so that it holds none itself. It searches for pieces of 8 bytes, because an allocator
//! overwrites the beginning of freed memory.

use std::collections::HashSet;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use zeroize::{Zeroize as _, Zeroizing};

const MASK: u8 = 0xa5;
const PIECE: usize = 8;
const CHUNK: usize = 64 * 1024;

pub(crate) fn masked(secret: &[u8]) -> Vec<u8> {
    secret.iter().map(|byte| byte ^ MASK).collect()
}

/// The secret, in memory that is zeroed on drop.
pub(crate) fn unmasked(masked: &[u8]) -> Zeroizing<Vec<u8>> {
    let mut secret = Zeroizing::new(Vec::with_capacity(masked.len()));
    secret.extend(masked.iter().map(|byte| byte ^ MASK));
    secret
}

pub(crate) struct Scanner {
    pieces: HashSet<[u8; PIECE]>,
    /// Indexed by the first two bytes of a piece, which rule out most of the memory.
    beginnings: Vec<bool>,
    /// The memory of the environment, which belongs to the caller and cannot be zeroed.
    environment: Range<u64>,
}

impl Scanner {
    /// A scanner for the pieces of these masked secrets.
    pub(crate) fn new(secrets: &[Vec<u8>]) -> Self {
        let pieces: HashSet<[u8; PIECE]> =
            secrets.iter().flat_map(|secret| secret.windows(PIECE)).map(|piece| piece.try_into().unwrap()).collect();
        assert!(pieces.len() > 16, "too few pieces to search for");
        let mut beginnings = vec![false; 1 << 16];
        for piece in &pieces {
            beginnings[beginning(piece)] = true;
        }
        // proc(5): env_start and env_end are the 50th and 51st field; the second, in parentheses, may contain blanks.
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        let (_, fields) = stat.rsplit_once(')').unwrap();
        let field = |number: usize| fields.split_whitespace().nth(number - 3).unwrap().parse().unwrap();
        Self { pieces, beginnings, environment: field(50)..field(51) }
    }

    /// The mappings with pieces of secrets: one line each, with the number of pieces.
    pub(crate) fn scan(&self) -> Vec<String> {
        let memory = File::open("/proc/self/mem").unwrap();
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let mut buffer = Zeroizing::new(vec![0; CHUNK + PIECE - 1]);
        let (mut found, mut bytes) = (Vec::new(), 0);
        for mapping in maps.lines().filter(|mapping| mapping.split(' ').nth(1).unwrap().starts_with("rw")) {
            let (start, end) = mapping.split(' ').next().unwrap().split_once('-').unwrap();
            let range = u64::from_str_radix(start, 16).unwrap()..u64::from_str_radix(end, 16).unwrap();
            bytes += range.end - range.start;
            let pieces: usize =
                range.clone().step_by(CHUNK).map(|at| self.count(&memory, at, range.end, &mut buffer)).sum();
            if pieces > 0 {
                found.push(format!("{pieces} pieces in {mapping}"));
            }
        }
        assert!(bytes > 1 << 20, "only {bytes} bytes of memory were scanned");
        found
    }

    fn count(&self, memory: &File, at: u64, end: u64, buffer: &mut [u8]) -> usize {
        // Zeroed before it is filled, because the scan covers it too.
        buffer.zeroize();
        let wanted = buffer.len().min(usize::try_from(end - at).unwrap());
        let read = memory.read_at(&mut buffer[..wanted], at).unwrap_or(0);
        for byte in &mut buffer[..read] {
            *byte ^= MASK;
        }
        let mut count = 0;
        for (offset, piece) in buffer[..read].windows(PIECE).enumerate() {
            if self.beginnings[beginning(piece)]
                && self.pieces.contains(piece)
                && !self.environment.contains(&(at + offset as u64))
            {
                count += 1;
            }
        }
        count
    }
}

fn beginning(piece: &[u8]) -> usize {
    usize::from(piece[0]) << 8 | usize::from(piece[1])
}
