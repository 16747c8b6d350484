//! What a server replies, from the history of the streams: as the documentation of each command says, and slowly.
//! <https://redis.io/docs/latest/commands/xrange/>, <https://redis.io/docs/latest/commands/xread/>,
//! <https://redis.io/docs/latest/commands/xinfo-stream/>

use super::super::history::{Entry, History, Key, Time};
use super::super::liar::Liar;
use super::super::reply::{bulk, header, id, integer, number};
use super::lie::Lie;
use crate::resp::EntryId;

const LOADING: &[u8] = b"-LOADING Redis is loading the dataset in memory\r\n";
const WRONG_TYPE: &[u8] = b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n";
const FORBIDDEN: &[u8] = b"-NOPERM No permissions to access a key\r\n";

/// What a reply that arrived says, for the program that was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// The stream, and the last ID of what the server described; `None`: there is no stream.
    Described {
        key: usize,
        last: Option<EntryId>,
    },
    /// The key is none, or its user may not read it.
    Refused {
        key: usize,
        is_string: bool,
    },
    /// No command can be answered now.
    Loading,
    Other,
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
                let role = if self.replica.is_some() { "replica" } else { "master" };
                let words = ["server", "redis", "version", "8.6.2", "mode", "standalone", "role", role];
                reply([header(8), words.map(|word| bulk(word.as_bytes())).concat()].concat(), vec![Said::Other])
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
                reply(self.entries(&found, liar), vec![Said::Other])
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
        let mut found = Vec::new();
        for (key, after) in keys.iter().zip(ids) {
            let after = id(after);
            let present = history.keys[*key].life(at).into_iter().flat_map(|life| life.present(at));
            let newer: Vec<_> = present.filter(|entry| entry.id > after).take(count).collect();
            if !newer.is_empty() {
                found.push([header(2), bulk(&history.keys[*key].name), self.entries(&newer, liar)].concat());
            }
        }
        if found.is_empty() && blocks && !is_over {
            return None;
        }
        let bytes = if found.is_empty() { b"*-1\r\n".to_vec() } else { [header(found.len()), found.concat()].concat() };
        Some(Reply { bytes, at, said: vec![Said::Other] })
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
        let mut parts = vec![
            (&b"length"[..], integer(length)),
            (b"radix-tree-keys", integer(1)),
            (b"radix-tree-nodes", integer(2)),
            (b"last-generated-id", bulk(last_id.to_string().as_bytes())),
        ];
        if self.counts {
            let recorded = life.present(at).next().map_or_else(EntryId::default, |entry| entry.id);
            parts.extend([
                (&b"max-deleted-entry-id"[..], bulk(max_deleted.to_string().as_bytes())),
                (b"entries-added", integer(added)),
                (b"recorded-first-entry-id", bulk(recorded.to_string().as_bytes())),
            ]);
        }
        let entry = |entry: Option<&Entry>| entry.map_or(b"$-1\r\n".to_vec(), |entry| self.entry(entry));
        parts.extend([(&b"groups"[..], integer(0)), (b"first-entry", entry(first)), (b"last-entry", entry(last))]);
        let shown: Vec<_> = parts.iter().map(|(name, value)| [bulk(name), value.clone()].concat()).collect();
        [header(2 * parts.len()), shown.concat()].concat()
    }

    fn entries(&self, found: &[&Entry], liar: &mut Liar<Lie>) -> Vec<u8> {
        let mut shown: Vec<_> = found.iter().map(|entry| self.entry(entry)).collect();
        if shown.len() > 2 && liar.lies(Lie::DropEntry) {
            shown.remove(1);
        }
        if shown.len() > 1 && liar.lies(Lie::RepeatEntry) {
            shown.insert(1, shown[1].clone());
        }
        if shown.len() > 2 && liar.lies(Lie::CutPage) {
            shown.pop();
        }
        [header(shown.len()), shown.concat()].concat()
    }

    fn entry(&self, entry: &Entry) -> Vec<u8> {
        let Entry { id, number, rows, is_bad, .. } = entry;
        let fields: Vec<_> = (0..*rows)
            .flat_map(|row| {
                let name = if self.is_packed { format!("payload:{row}") } else { "v".to_owned() };
                let value = if *is_bad { "bad".to_owned() } else { value(*number, row).to_string() };
                [bulk(name.as_bytes()), bulk(value.as_bytes())]
            })
            .collect();
        [header(2), bulk(id.to_string().as_bytes()), header(fields.len()), fields.concat()].concat()
    }
}

/// The value of a row of an entry.
pub fn value(number: u64, row: usize) -> i64 {
    (number * 10) as i64 + row as i64
}
