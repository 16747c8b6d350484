//! The line: memory in which the pieces of an entry are assembled before they go to the caller's buffer.

use super::digits;
use crate::resp::write_bulk;

/// The free bytes before each value. The longest text of a number is a decimal of 256 bits with a scale of -128: a sign,
/// 78 digits and 128 zeros.
const MARGIN: usize = 512;

/// The maximum number of bytes that a line collects. A power of two: see [`within`].
const CAPACITY: usize = 4096;

/// The maximum number of bytes that [`Line::push`] accepts.
const MAX_PUSHED: usize = 64;

/// The memory that a line needs.
pub(super) const SIZE: usize = CAPACITY + MAX_PUSHED;

/// Collects the many short pieces of an entry in memory of fixed size, because a vector would check its capacity for each of
/// them. Long pieces bypass it.
///
/// Pieces are copied with sizes known at compile time, even if that copies a few bytes too many: it takes a few moves, whereas a
/// copy of variable length is a call.
pub(super) struct Line<'o> {
    room: &'o mut [u8; SIZE],
    /// The number of bytes in use.
    end: usize,
    out: &'o mut Vec<u8>,
}

/// Bytes that every row repeats: the name of a field, a JSON key.
pub(super) struct Piece<'a> {
    /// The first bytes, which are usually all of them.
    start: [u8; 32],
    bytes: &'a [u8],
}

impl<'a> Piece<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        let mut start = [0; 32];
        start.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        Self { start, bytes }
    }

    /// Removes the name from the [start of a field](Line::field_start), and returns it as a bulk string.
    pub(super) fn take_name(&mut self) -> &'a [u8] {
        let name = self.bytes.strip_suffix(HEADER).unwrap_or(self.bytes);
        *self = Self::new(HEADER);
        name
    }

    fn is_short(&self) -> bool {
        self.bytes.len() <= self.start.len()
    }
}

impl<'o> Line<'o> {
    pub(super) fn new(room: &'o mut [u8; SIZE], out: &'o mut Vec<u8>) -> Self {
        Self { room, end: 0, out }
    }

    /// Makes room for a value or another sequence of at most [`MARGIN`] bytes. Must be called before each.
    #[inline]
    pub(super) fn make_room(&mut self) {
        if self.end > CAPACITY - MARGIN {
            self.flush();
        }
    }

    /// Passes the collected bytes on. Must be called at the end.
    #[inline]
    pub(super) fn flush(&mut self) {
        self.out.extend_from_slice(&self.room[..within(self.end)]);
        self.end = 0;
    }

    /// Appends a few bytes.
    #[inline]
    pub(super) fn push<const N: usize>(&mut self, bytes: &[u8; N]) {
        self.push_start(bytes, N);
    }

    /// Appends the first `length` bytes.
    #[inline]
    pub(super) fn push_start<const N: usize>(&mut self, bytes: &[u8; N], length: usize) {
        const { assert!(N <= MAX_PUSHED) };
        let end = within(self.end);
        self.room[end..end + N].copy_from_slice(bytes);
        self.end = end + length;
    }

    /// Appends a text that fits in the free bytes.
    #[inline]
    pub(super) fn push_text(&mut self, text: &[u8]) {
        let end = within(self.end);
        // The most common lengths.
        match text.len() {
            4..=7 => self.push_ends::<4>(end, text),
            8..=16 => self.push_ends::<8>(end, text),
            17..=32 => self.push_ends::<16>(end, text),
            length => self.room[end..][..length].copy_from_slice(text),
        }
        self.end = end + text.len();
    }

    /// Writes a text of `N` to `2 * N` bytes as two halves, which may overlap.
    #[inline]
    fn push_ends<const N: usize>(&mut self, at: usize, text: &[u8]) {
        if let (Some(head), Some(tail)) = (text.first_chunk::<N>(), text.last_chunk::<N>()) {
            self.room[at..at + N].copy_from_slice(head);
            let at = at + text.len() - N;
            self.room[at..at + N].copy_from_slice(tail);
        }
    }

    /// Appends any number of bytes, and makes room.
    #[inline]
    pub(super) fn push_bytes(&mut self, bytes: &[u8]) {
        if bytes.len() <= MARGIN / 4 {
            self.push_text(bytes);
            self.make_room();
        } else {
            self.push_many(bytes);
        }
    }

    fn push_many(&mut self, bytes: &[u8]) {
        self.flush();
        self.out.extend_from_slice(bytes);
    }

    #[inline]
    pub(super) fn push_piece(&mut self, piece: &Piece<'_>) {
        if piece.is_short() {
            self.push_start(&piece.start, piece.bytes.len());
        } else {
            self.push_bytes(piece.bytes);
        }
    }

    /// Appends a piece with a different first byte.
    #[inline]
    pub(super) fn push_piece_with(&mut self, first: u8, piece: &Piece<'_>) {
        if piece.is_short() {
            let start = within(self.end);
            self.push_start(&piece.start, piece.bytes.len());
            self.room[start] = first;
        } else {
            self.push(&[first]);
            self.push_bytes(piece.bytes.get(1..).unwrap_or_default());
        }
    }

    /// The number of collected bytes.
    #[inline]
    pub(super) fn end(&self) -> usize {
        self.end
    }

    /// Removes the last bytes.
    #[inline]
    pub(super) fn remove(&mut self, length: usize) {
        self.end = self.end.saturating_sub(length);
    }

    /// Removes the zeros at the end.
    #[inline]
    pub(super) fn trim_zeros(&mut self) {
        while self.end > 0 && self.room[within(self.end - 1)] == b'0' {
            self.end -= 1;
        }
    }

    /// The maximum number of bytes that [`Line::insert_point`] moves.
    pub(super) const MAX_PLACES: i8 = 40;

    /// Inserts a point before the last `places` bytes.
    #[inline]
    pub(super) fn insert_point(&mut self, places: u8) {
        let point = within(self.end.wrapping_sub(places.into()));
        self.room.copy_within(point..point + 40, point + 1);
        self.room[point] = b'.';
        self.end += 1;
    }

    /// Returns what `write` appends, which is removed again, and its length. `N` is the maximum number of bytes that it may
    /// append.
    pub(super) fn take_back<const N: usize>(&mut self, write: impl FnOnce(&mut Self)) -> ([u8; N], usize) {
        let start = self.end;
        write(self);
        let text = &self.room[start..self.end];
        let mut bytes = [0; N];
        bytes[..text.len()].copy_from_slice(text);
        self.end = start;
        (bytes, text.len())
    }

    /// The start of a field: its name, and the header of a value whose length has two digits.
    pub(super) fn field_start(name: &str) -> Vec<u8> {
        let mut start = Vec::new();
        write_bulk(&mut start, name.as_bytes());
        start.extend_from_slice(HEADER);
        start
    }

    /// Starts a field, after [`make_room`](Line::make_room): `start` is its [`Line::field_start`]. Returns the position of the
    /// value.
    #[inline]
    pub(super) fn begin_field(&mut self, start: &Piece<'_>) -> usize {
        if start.is_short() {
            self.push_piece(start);
        } else {
            // The header must stay in the line, where it can be corrected.
            let name = start.bytes.len() - HEADER.len();
            self.push_bytes(&start.bytes[..name]);
            self.push(HEADER);
        }
        self.end
    }

    /// Starts a value without a name, after [`make_room`](Line::make_room). Returns its position, for
    /// [`end_field`](Line::end_field).
    #[inline]
    pub(super) fn begin_value(&mut self) -> usize {
        self.push(HEADER);
        self.end
    }

    /// Ends the field whose value starts at `value` and fits in the margin, and corrects its length.
    #[inline]
    pub(super) fn end_field(&mut self, value: usize) {
        let length = self.end.wrapping_sub(value);
        let place = within(value.wrapping_sub(4));
        if let 10..=99 = length {
            self.room[place..place + 2].copy_from_slice(&digits::two(length as u32));
        } else if length < 10 {
            // The length has one digit less: the text moves one byte towards the start.
            self.room.copy_within(place + 4..place + 20, place + 3);
            self.room[place..place + 3].copy_from_slice(&[b'0' + length as u8, b'\r', b'\n']);
            self.end -= 1;
        } else {
            self.insert_digit(value, length);
        }
        self.push(b"\r\n");
    }

    #[cold]
    fn insert_digit(&mut self, value: usize, length: usize) {
        self.room.copy_within(value..value + length, value + 1);
        self.end = value - HEADER.len();
        self.push_header(length);
        self.end += length;
    }

    /// Appends the value of a field that was started, and ends the field. `value` has 100 bytes or more.
    pub(super) fn end_field_with(&mut self, value: &[u8]) {
        self.end -= HEADER.len();
        self.push_header(value.len());
        self.push_bytes(value);
        self.push(b"\r\n");
    }

    fn push_header(&mut self, length: usize) {
        self.push(b"$");
        self.push_text(itoa::Buffer::new().format(length).as_bytes());
        self.push(b"\r\n");
    }

    /// Appends a bulk string of any length, and makes room.
    #[inline]
    pub(super) fn push_bulk(&mut self, bytes: &[u8]) {
        match bytes.len() {
            length @ 0..=9 => self.push(&[b'$', b'0' + length as u8, b'\r', b'\n']),
            length @ 10..=99 => {
                let [tens, ones] = digits::two(length as u32);
                self.push(&[b'$', tens, ones, b'\r', b'\n']);
            }
            length => self.push_header(length),
        }
        self.push_bytes(bytes);
        self.push(b"\r\n");
    }

    /// Starts a bulk string of any length in an empty line. Returns its position.
    pub(super) fn begin_bulk(&mut self) -> usize {
        // Reserves room for the header, which is written at the end of this space once the length is known.
        self.end = MAX_HEADER;
        self.out.len()
    }

    /// Ends the bulk string that starts at `start`, and [flushes](Line::flush) it.
    pub(super) fn end_bulk(&mut self, start: usize) {
        let length = self.out.len() - start + self.end - MAX_HEADER;
        let mut buffer = itoa::Buffer::new();
        let digits = buffer.format(length).as_bytes();
        let unused = MAX_HEADER - digits.len() - 3;
        let mut header = *b"$$$$$$$$$$$$$$$$$$$$$\r\n";
        header[unused + 1..][..digits.len()].copy_from_slice(digits);
        self.push(b"\r\n");
        if self.out.len() == start {
            self.room[..MAX_HEADER].copy_from_slice(&header);
            self.out.extend_from_slice(&self.room[unused..within(self.end)]);
            self.end = 0;
        } else {
            self.flush();
            self.out.splice(start..start + MAX_HEADER, header[unused..].iter().copied());
        }
    }

    /// Returns what `write` appends.
    #[cfg(test)]
    pub(super) fn written(write: impl FnOnce(&mut Line<'_>)) -> Vec<u8> {
        let (mut room, mut out) = ([0; SIZE], Vec::new());
        let mut line = Line::new(&mut room, &mut out);
        write(&mut line);
        line.flush();
        out
    }

    /// Returns what `write` appends as text.
    #[cfg(test)]
    #[allow(clippy::unwrap_used)]
    pub(super) fn written_text(write: impl FnOnce(&mut Line<'_>)) -> String {
        String::from_utf8(Self::written(write)).unwrap()
    }
}

/// The header of a value whose length has two digits.
const HEADER: &[u8; 5] = b"$00\r\n";

/// The longest header: a `$`, 20 digits and the line end.
const MAX_HEADER: usize = 23;

/// Returns `place` in a form that lets the compiler prove that a [push](Line::push) fits there.
#[inline]
fn within(place: usize) -> usize {
    debug_assert!(place < CAPACITY);
    place % CAPACITY
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a field in one piece, with `end_field`, or with `end_field_with` for 100 bytes or more.
    fn field(line: &mut Line<'_>, start: &Piece<'_>, value: &[u8]) {
        line.make_room();
        let begun = line.begin_field(start);
        if value.len() > 99 {
            return line.end_field_with(value);
        }
        line.push_text(value);
        line.end_field(begun);
    }

    #[test]
    fn fields_are_bulk_strings_at_every_position() {
        for (name, value) in [(1, 0), (1, 9), (3, 10), (23, 99), (24, 7), (25, 7), (40, 100), (130, 33), (600, 5000)] {
            let (name, value) = ("n".repeat(name), vec![b'v'; value]);
            let start = Line::field_start(&name);
            let written = Line::written(|line| {
                // Enough to exceed the memory several times.
                for shift in 0..1000 {
                    field(line, &Piece::new(b"$1\r\ns\r\n$00\r\n"), &vec![b's'; shift % 13]);
                    field(line, &Piece::new(&start), &value);
                }
            });
            let mut expected = Vec::new();
            for shift in 0..1000 {
                for part in [&b"s"[..], &vec![b's'; shift % 13], name.as_bytes(), &value] {
                    write_bulk(&mut expected, part);
                }
            }
            assert!(written == expected, "{} {}", name.len(), value.len());
        }
    }

    #[test]
    fn a_length_of_three_digits_is_inserted() {
        let start = Line::field_start("n");
        let written = Line::written(|line| {
            let value = line.begin_field(&Piece::new(&start));
            (0..MARGIN / 4).for_each(|_| line.push(b"v"));
            line.end_field(value);
        });
        assert_eq!(written, format!("$1\r\nn\r\n$128\r\n{}\r\n", "v".repeat(128)).as_bytes());
    }

    #[test]
    fn a_bulk_string_may_be_longer_than_the_line() {
        for length in [0, 9, 10, 99, 100, 999, 1000, 4000, 4100, 100_000] {
            let (mut room, mut out) = ([b'x'; SIZE], b"before".to_vec());
            let mut line = Line::new(&mut room, &mut out);
            let start = line.begin_bulk();
            for _ in 0..length {
                line.push(b"v");
                line.make_room();
            }
            line.end_bulk(start);
            assert_eq!(out, format!("before${length}\r\n{}\r\n", "v".repeat(length)).as_bytes());
        }
    }

    #[test]
    fn bulk_strings_of_every_length_are_pushed_at_every_position() {
        let lengths = || (0..140).chain([511, 512, 4_095, 4_096, 10_000]).chain((0..2_000).map(|n| n % 131));
        let written = Line::written(|line| lengths().for_each(|length| line.push_bulk(&vec![b'v'; length])));
        let mut expected = Vec::new();
        lengths().for_each(|length| write_bulk(&mut expected, &vec![b'v'; length]));
        assert!(written == expected);
    }

    #[test]
    fn texts_of_every_length_are_copied_completely() {
        let text: Vec<u8> = (0..128).collect();
        for length in 0..=text.len() {
            assert_eq!(Line::written(|line| line.push_text(&text[..length])), &text[..length]);
            assert_eq!(Line::written(|line| line.push_piece(&Piece::new(&text[..length]))), &text[..length]);
        }
        for length in 1..=text.len() {
            let opened = Line::written(|line| line.push_piece_with(b'{', &Piece::new(&text[..length])));
            assert_eq!(opened, [b"{", &text[1..length]].concat());
        }
    }

    #[test]
    fn a_point_is_inserted_before_the_last_places() {
        for places in 1..=40 {
            let digits = "1".repeat(60);
            let written = Line::written(|line| {
                line.push_text(digits.as_bytes());
                line.insert_point(places);
            });
            let (whole, fraction) = digits.split_at(60 - usize::from(places));
            assert_eq!(written, format!("{whole}.{fraction}").as_bytes());
        }
    }
}
