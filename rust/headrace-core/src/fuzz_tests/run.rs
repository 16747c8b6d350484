//! A run of the script, read argument by argument as `append.lua` does.

use crate::command::script::SOURCE;

/// The command of a run, starting with the number of its keys.
#[derive(Debug, PartialEq, Eq)]
pub struct Run {
    pub stream_key: Vec<u8>,
    pub marker_key: Vec<u8>,
    /// Version, from, first, rows, time to live, touches.
    pub numbers: [u64; 6],
    /// In a batch of several streams: the number of rows that the stream had before a second stream was added.
    pub alone: Option<u64>,
    /// The form, without the indication whether the values are packed.
    pub form: Vec<u8>,
    /// The arguments that follow the key in the XADD of each row.
    pub rows: Vec<Vec<Vec<u8>>>,
}

struct Arguments<'a>(&'a [Vec<u8>]);

impl Arguments<'_> {
    fn next(&mut self) -> Vec<u8> {
        let (first, rest) = self.0.split_first().expect("an argument is missing");
        self.0 = rest;
        first.clone()
    }

    fn number(&mut self) -> u64 {
        String::from_utf8(self.next()).unwrap().parse().unwrap()
    }

    fn list(&mut self) -> Vec<Vec<u8>> {
        (0..self.number()).map(|_| self.next()).collect()
    }
}

/// Whether a command is a run of the script.
pub fn is_run(command: &[Vec<u8>]) -> bool {
    command[0] == b"EVALSHA" || (command[0] == b"EVAL" && command[1] == SOURCE.as_bytes())
}

/// Reads a run. `command` includes its name and the script or its hash.
pub fn read(command: &[Vec<u8>]) -> Run {
    let mut arguments = Arguments(&command[2..]);
    assert_eq!(arguments.number(), 2, "keys");
    let (stream_key, marker_key) = (arguments.next(), arguments.next());
    let numbers = [(); 6].map(|()| arguments.number());
    let alone = arguments.next();
    let alone = (!alone.is_empty()).then(|| String::from_utf8(alone).unwrap().parse().unwrap());
    let mut form = arguments.next();
    let is_packed = form.ends_with(b" packed");
    if is_packed {
        form.truncate(form.len() - b" packed".len());
    }
    let unpacked;
    let rows = numbers[3];
    let rows = if form == b"whole" {
        (0..rows).map(|_| arguments.list()).collect()
    } else {
        let nomkstream = arguments.next();
        let (trim, tail) = (arguments.list(), arguments.list());
        let names = if form == b"one" { vec![arguments.next()] } else { arguments.list() };
        let every = vec![b'1'; names.len()];
        let sets = if form == b"sparse" { arguments.list() } else { vec![every] };
        if is_packed {
            unpacked = unpack(&arguments.next());
            assert!(arguments.0.is_empty(), "arguments are left");
            arguments = Arguments(&unpacked);
        }
        let row = |row: u64| {
            let mut call = Vec::new();
            if row == 0 && !nomkstream.is_empty() {
                call.push(nomkstream.clone());
            }
            if row == rows - 1 {
                call.extend(trim.iter().cloned());
            }
            call.push(b"*".to_vec());
            let set = if form == b"sparse" { arguments.number() as usize - 1 } else { 0 };
            assert_eq!(sets[set].len(), names.len(), "a set has another length");
            for (name, is_there) in names.iter().zip(&sets[set]) {
                assert!(b"01".contains(is_there), "a set is none");
                if *is_there == b'1' {
                    call.extend([name.clone(), arguments.next()]);
                }
            }
            call.extend(tail.iter().cloned());
            call
        };
        (0..rows).map(row).collect()
    };
    assert!(arguments.0.is_empty(), "arguments are left");
    Run { stream_key, marker_key, numbers, alone, form, rows }
}

/// Decodes strings of `MessagePack`.
fn unpack(mut rest: &[u8]) -> Vec<Vec<u8>> {
    let mut strings = Vec::new();
    while let [head, behind @ ..] = rest {
        let (digits, mut length) = match head {
            0xa0..=0xbf => (0, usize::from(head & 0x1f)),
            0xd9..=0xdb => (1 << (head - 0xd9), 0),
            _ => panic!("no string: {head:#x}"),
        };
        let (digits, behind) = behind.split_at(digits);
        for digit in digits {
            length = 256 * length + usize::from(*digit);
        }
        let (string, behind) = behind.split_at(length);
        strings.push(string.to_vec());
        rest = behind;
    }
    strings
}
