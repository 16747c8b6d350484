//! What a server replies, from the history of the streams: as the documentation of each command says, and slowly.
//! <https://redis.io/docs/latest/commands/xrange/>, <https://redis.io/docs/latest/commands/xread/>,
//! <https://redis.io/docs/latest/commands/xinfo-stream/>

use super::super::history::{Entry, History, Key, Time};
use super::super::liar::Liar;
use super::super::reply::{bulk, header, id, number, put_bulk, put_header, put_id, put_line};
use super::lie::Lie;
use crate::resp::EntryId;

const LOADING: &[u8] = b"-LOADING Redis is loading the dataset in memory\r\n";
const WRONG_TYPE: &[u8] = b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n";
const FORBIDDEN: &[u8] = b"-NOPERM No permissions to access a key\r\n";

/// The fields of the packed rows of an entry.
const NAMES: [&[u8]; 3] = [b"payload:0", b"payload:1", b"payload:2"];

/// What a reply that arrived says, for the program that was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// The stream, and the last ID of what the server described; `None`: there is no stream.
    Described { key: usize, last: Option<EntryId> },
    /// The key is none, or its user may not read it.
    Refused { key: usize, is_string: bool },
    /// The role of the server.
    Role { is_replica: bool },
    /// Entries of the stream, or none.
    Page { key: usize },
    /// No command can be answered now.
    Loading,
}

/// A reply, when it was made, and what it says.
#[derive(Debug)]
pub struct Reply {
    pub bytes: Vec<u8>,
    /// The time that it shows.
    pub at: Time,
    pub said: Vec<Said>,
}

/// A server: a master, or a replica that is late.
#[derive(Debug, Clone, Default)]
pub struct Server {
    /// Whether it counts entries, as Redis 7.0 and later do.
    pub counts: bool,
    /// The time up to which a replica has received the changes.
    pub replica: Option<Time>,
    pub loads: bool,
    /// Whether an entry has packed rows, each in a field of its own.
    pub is_packed: bool,
}

impl Server {
    pub fn time(&self, history: &History) -> Time {
        self.replica.unwrap_or(history.clock)
    }

    /// The reply to a command; `None`: the server waits for entries. `is_over`: it has waited as long as it may.
    pub fn answer(&self, history: &History, words: &[Vec<u8>], is_over: bool, liar: &mut Liar<Lie>) -> Option<Reply> {
        let at = self.time(history);
        let reply = |bytes, said| Some(Reply { bytes, at, said });
        if self.loads {
            return reply(LOADING.to_vec(), vec![Said::Loading]);
        }
        match &*words[0] {
            b"HELLO" => {
                let is_replica = self.replica.is_some();
                let role = if is_replica { "replica" } else { "master" };
                let words = ["server", "redis", "version", "8.6.2", "mode", "standalone", "role", role];
                let words = words.map(|word| bulk(word.as_bytes()));
                reply([header(8), words.concat()].concat(), vec![Said::Role { is_replica }])
            }
            b"XINFO" => {
                assert_eq!((&*words[1], words.len()), (&b"STREAM"[..], 3));
                let key = history.key(&words[2]);
                if let Some((bytes, said)) = self.refuses(history, key) {
                    return reply(bytes, vec![said]);
                }
                let last = history.keys[key].life(at).map(|life| life.last(at));
                reply(self.description(&history.keys[key], at, liar), vec![Said::Described { key, last }])
            }
            b"XRANGE" | b"XREVRANGE" => {
                assert!(&*words[4] == b"COUNT" && words.len() == 6);
                let key = history.key(&words[1]);
                if let Some((bytes, said)) = self.refuses(history, key) {
                    return reply(bytes, vec![said]);
                }
                let (first, last) = (id(&words[2]), id(&words[3]));
                let count = number(&words[5]);
                assert!(count > 0, "a page without entries");
                let life = history.keys[key].life(at);
                let present = life.into_iter().flat_map(|life| life.present(at));
                let found: Vec<_> = if &*words[0] == b"XRANGE" {
                    present.filter(|entry| first <= entry.id && entry.id <= last).take(count).collect()
                } else {
                    present.rev().filter(|entry| last <= entry.id && entry.id <= first).take(count).collect()
                };
                let mut bytes = Vec::new();
                self.put_entries(&mut bytes, &found, liar);
                reply(bytes, vec![Said::Page { key }])
            }
            b"XREAD" => self.answer_read(history, words, is_over, liar),
            other => panic!("the command {}", other.escape_ascii()),
        }
    }

    fn answer_read(&self, history: &History, words: &[Vec<u8>], is_over: bool, liar: &mut Liar<Lie>) -> Option<Reply> {
        let at = self.time(history);
        assert_eq!(&*words[1], b"COUNT");
        let count = number(&words[2]);
        let blocks = &*words[3] == b"BLOCK";
        assert!(count > 0 && (!blocks || number(&words[4]) > 0), "BLOCK 0 waits for ever");
        let rest = &words[if blocks { 5 } else { 3 }..];
        assert_eq!(&*rest[0], b"STREAMS");
        let (keys, ids) = rest[1..].split_at((rest.len() - 1) / 2);
        assert!(keys.len() == ids.len() && !keys.is_empty());
        let keys: Vec<_> = keys.iter().map(|name| history.key(name)).collect();
        let refused: Vec<_> = keys.iter().filter_map(|key| self.refuses(history, *key)).collect();
        if let Some((bytes, _)) = refused.first() {
            let said = refused.iter().map(|(_, said)| said.clone()).collect();
            return Some(Reply { bytes: bytes.clone(), at, said });
        }
        let (mut streams, mut found) = (0, Vec::new());
        for (key, after) in keys.iter().zip(ids) {
            let after = id(after);
            let present = history.keys[*key].life(at).into_iter().flat_map(|life| life.present(at));
            let newer: Vec<_> = present.filter(|entry| entry.id > after).take(count).collect();
            if !newer.is_empty() {
                streams += 1;
                put_header(&mut found, 2);
                put_bulk(&mut found, &history.keys[*key].name);
                self.put_entries(&mut found, &newer, liar);
            }
        }
        if found.is_empty() && blocks && !is_over {
            return None;
        }
        let bytes = if found.is_empty() { b"*-1\r\n".to_vec() } else { [header(streams), found].concat() };
        Some(Reply { bytes, at, said: keys.into_iter().map(|key| Said::Page { key }).collect() })
    }

    fn refuses(&self, history: &History, key: usize) -> Option<(Vec<u8>, Said)> {
        if history.keys[key].is_forbidden(history.clock) {
            return Some((FORBIDDEN.to_vec(), Said::Refused { key, is_string: false }));
        }
        let is_string = history.keys[key].is_string(self.time(history));
        is_string.then(|| (WRONG_TYPE.to_vec(), Said::Refused { key, is_string: true }))
    }

    fn description(&self, key: &Key, at: Time, liar: &mut Liar<Lie>) -> Vec<u8> {
        let Some(life) = key.life(at) else { return b"-ERR no such key\r\n".to_vec() };
        let length = life.present(at).count() as u64;
        let (mut first, last) = (life.present(at).next(), life.present(at).next_back());
        let (mut added, mut last_id, mut max_deleted) = (life.added(at), life.last(at), life.max_deleted(at));
        let removed = added - length;
        if removed > 0 && liar.lies(Lie::AddedTooFew) {
            added -= 1;
        }
        if liar.lies(Lie::AddedTooMany) {
            added += 1;
        }
        if max_deleted > EntryId::default() && liar.lies(Lie::NothingDeleted) {
            max_deleted = EntryId::default();
        }
        if length > 1 && liar.lies(Lie::OldLastId) {
            last_id = first.map_or(last_id, |first| first.id);
        }
        if length > 1 && liar.lies(Lie::LateFirst) {
            first = life.present(at).nth(1);
        }
        let mut written = Vec::new();
        put_header(&mut written, if self.counts { 20 } else { 14 });
        for (name, number) in [(&b"length"[..], length), (b"radix-tree-keys", 1), (b"radix-tree-nodes", 2)] {
            put_bulk(&mut written, name);
            put_line(&mut written, b':', number);
        }
        put_bulk(&mut written, b"last-generated-id");
        put_id(&mut written, last_id);
        if self.counts {
            let recorded = life.present(at).next().map_or_else(EntryId::default, |entry| entry.id);
            put_bulk(&mut written, b"max-deleted-entry-id");
            put_id(&mut written, max_deleted);
            put_bulk(&mut written, b"entries-added");
            put_line(&mut written, b':', added);
            put_bulk(&mut written, b"recorded-first-entry-id");
            put_id(&mut written, recorded);
        }
        put_bulk(&mut written, b"groups");
        put_line(&mut written, b':', 0);
        for (name, entry) in [(&b"first-entry"[..], first), (b"last-entry", last)] {
            put_bulk(&mut written, name);
            match entry {
                Some(entry) => self.put_entry(&mut written, entry),
                None => written.extend_from_slice(b"$-1\r\n"),
            }
        }
        written
    }

    fn put_entries(&self, to: &mut Vec<u8>, found: &[&Entry], liar: &mut Liar<Lie>) {
        let mut shown = found.to_vec();
        if shown.len() > 2 && liar.lies(Lie::DropEntry) {
            shown.remove(1);
        }
        if shown.len() > 1 && liar.lies(Lie::RepeatEntry) {
            shown.insert(1, shown[1]);
        }
        if shown.len() > 2 && liar.lies(Lie::CutPage) {
            shown.pop();
        }
        put_header(to, shown.len());
        for entry in shown {
            self.put_entry(to, entry);
        }
    }

    fn put_entry(&self, to: &mut Vec<u8>, entry: &Entry) {
        let Entry { id, number, rows, is_bad, .. } = entry;
        put_header(to, 2);
        put_id(to, *id);
        put_header(to, 2 * rows);
        for (row, name) in NAMES.iter().enumerate().take(*rows) {
            put_bulk(to, if self.is_packed { name } else { b"v" });
            let mut digits = itoa::Buffer::new();
            put_bulk(to, if *is_bad { b"bad" } else { digits.format(value(*number, row)).as_bytes() });
        }
    }
}

/// The value of a row of an entry.
pub fn value(number: u64, row: usize) -> i64 {
    (number * 10) as i64 + row as i64
}
