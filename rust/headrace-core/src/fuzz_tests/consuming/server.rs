//! What a server does with the commands of consumers: as the documentation of each says, and slowly.
//! <https://redis.io/docs/latest/commands/xreadgroup/>, <https://redis.io/docs/latest/commands/xpending/>,
//! <https://redis.io/docs/latest/commands/xautoclaim/>

use std::collections::BTreeSet;
use std::time::Duration;

use super::super::history::Entry;
use super::super::liar::Liar;
use super::super::reply::{bulk, header, id, integer, number};
use super::lie::Lie;
use super::scripts;
use super::world::{Pending, Version, World};
use crate::resp::EntryId;

pub const GROUP: &[u8] = b"g";

const LOADING: &[u8] = b"-LOADING Redis is loading the dataset in memory\r\n";
const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
const FORBIDDEN: &str = "NOPERM No permissions to access a key";
const NO_SCRIPT: &[u8] = b"-NOSCRIPT No matching script.\r\n";

/// What a reply says, for the program whose session has received it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// The numbers of the entries that are acknowledged.
    Acked(Vec<u64>),
    /// The entry is a dead letter.
    Buried,
    /// The numbers of entries that are no longer pending, because they were deleted.
    Removed(Vec<u64>),
    Refused(&'static str),
    Loading,
    Other,
}

/// What a server sees of a consumer.
#[derive(Debug, Clone)]
pub struct Client {
    pub process: usize,
    pub name: Vec<u8>,
    /// The keeper's connection.
    pub keeps: bool,
    pub rules: Rules,
    /// The streams whose pending entries it has asked for over this connection.
    pub looked: BTreeSet<usize>,
}

/// The options of a consumer that its commands must follow.
#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools)] // each is an option
pub struct Rules {
    pub block: Duration,
    pub batch_rows: u64,
    pub min_idle: Duration,
    pub acks: bool,
    pub deletes: bool,
    pub max_failures: Option<u64>,
    pub buries_bad: bool,
    pub claims: bool,
}

pub type Reply = (Vec<u8>, Said);

/// Executes a command; `None`: the server waits for entries. `is_over`: it has waited as long as it may.
pub fn answer(
    world: &mut World,
    client: &mut Client,
    words: &[Vec<u8>],
    is_over: bool,
    liar: &mut Liar<Lie>,
) -> Option<Reply> {
    let replied = execute(world, client, words, is_over, liar);
    if world.traces
        && let Some((bytes, _)) = &replied
    {
        let words = words.iter().map(|word| word.escape_ascii().to_string()).filter(|word| word.len() < 100);
        let (words, reply) = (words.collect::<Vec<_>>().join(" "), String::from_utf8_lossy(bytes).replace("\r\n", " "));
        eprintln!("  process {}, {} ms: {words} -> {reply}", client.process, world.millis());
    }
    replied
}

fn execute(
    world: &mut World,
    client: &mut Client,
    words: &[Vec<u8>],
    is_over: bool,
    liar: &mut Liar<Lie>,
) -> Option<Reply> {
    if world.loads {
        return Some((LOADING.to_vec(), Said::Loading));
    }
    match &*words[0] {
        b"XREADGROUP" => read(world, client, words, is_over, liar),
        b"XPENDING" => Some(pending(world, client, words)),
        b"XAUTOCLAIM" => Some(claim(world, client, words, liar)),
        b"EVAL" | b"EVALSHA" => {
            let known = if &*words[0] == b"EVAL" {
                let script = redis::Script::new(std::str::from_utf8(&words[1]).unwrap());
                let is_dead = words[1].starts_with(b"-- The fields of a dead letter");
                world.scripts.insert(script.get_hash().as_bytes().to_vec(), is_dead);
                Some(is_dead)
            } else {
                world.scripts.get(&words[1]).copied()
            };
            Some(match known {
                None => {
                    scripts::unknown(world, &words[2..]);
                    (NO_SCRIPT.to_vec(), Said::Refused("NOSCRIPT"))
                }
                Some(false) => scripts::own(world, client, &words[2..], liar),
                Some(true) => scripts::dead(world, client, &words[2..], liar),
            })
        }
        other => panic!("the command {}", other.escape_ascii()),
    }
}

/// Why a command about the group of a stream is refused.
pub fn refusal(world: &World, key: usize, within: &str) -> Option<Reply> {
    let (of, clock) = (&world.history.keys[key], world.history.clock);
    let name = of.name.escape_ascii();
    let (code, text) = if of.is_forbidden(clock) {
        ("NOPERM", FORBIDDEN.to_owned())
    } else if of.is_string(clock) {
        ("WRONGTYPE", format!("{WRONG_TYPE}{within}"))
    } else if world.group(key).is_none() {
        ("NOGROUP", format!("NOGROUP No such key '{name}' or consumer group 'g'{within}"))
    } else {
        return None;
    };
    Some((format!("-{text}\r\n").into_bytes(), Said::Refused(code)))
}

fn read(world: &mut World, client: &Client, words: &[Vec<u8>], is_over: bool, liar: &mut Liar<Lie>) -> Option<Reply> {
    assert!(&*words[1] == b"GROUP" && &*words[2] == GROUP && words[3] == client.name && &*words[4] == b"COUNT");
    let (count, mut rest) = (number(&words[5]), &words[6..]);
    let mut block = None;
    if &*rest[0] == b"BLOCK" {
        block = Some(Duration::from_millis(number(&rest[1]) as u64));
        rest = &rest[2..];
    }
    let is_noack = &*rest[0] == b"NOACK";
    rest = &rest[usize::from(is_noack)..];
    assert_eq!(&*rest[0], b"STREAMS");
    let (keys, ids) = rest[1..].split_at((rest.len() - 1) / 2);
    assert!(keys.len() == ids.len() && !keys.is_empty() && is_noack != client.rules.acks || ids[0] != b">");
    let most = client.rules.block.max(Duration::from_millis(1));
    if block.is_some_and(|block| block.is_zero() || block > most) {
        world.facts.wrong(|| format!("BLOCK {block:?} is none of up to {most:?}"));
    }
    if count == 0 || count as u64 > client.rules.batch_rows {
        world.facts.wrong(|| format!("COUNT {count}, of batches with {} rows", client.rules.batch_rows));
    }
    let keys: Vec<usize> = keys.iter().map(|name| world.history.key(name)).collect();
    for key in &keys {
        let is_gone = world.history.now(*key).is_none() && !world.history.keys[*key].is_string(world.history.clock);
        if is_gone && block.is_some() && world.version != Version::Redis82 {
            return Some((b"-UNBLOCKED the stream key no longer exists\r\n".to_vec(), Said::Refused("UNBLOCKED")));
        }
        if let Some(refused) = refusal(world, *key, " in XREADGROUP with GROUP option") {
            return Some(refused);
        }
    }
    if ids[0] != b">" {
        assert!(keys.len() == 1 && block.is_none());
        let found = read_own(world, client, keys[0], id(&ids[0]), count, liar);
        return Some(([header(1), header(2), bulk(&world.history.keys[keys[0]].name), found].concat(), Said::Other));
    }
    let mut found = Vec::new();
    for key in keys {
        if client.rules.acks && !client.looked.contains(&key) {
            world.facts.wrong(|| format!("process {} reads new entries before its pending ones", client.process));
        }
        if let Some(entries) = read_new(world, client, key, count, is_noack, liar) {
            found.push([header(2), bulk(&world.history.keys[key].name), entries].concat());
        }
    }
    if found.is_empty() && block.is_some() && !is_over {
        return None;
    }
    world.save();
    let bytes = if found.is_empty() { b"*-1\r\n".to_vec() } else { [header(found.len()), found.concat()].concat() };
    Some((bytes, Said::Other))
}

fn read_new(
    world: &mut World,
    client: &Client,
    key: usize,
    count: usize,
    is_noack: bool,
    liar: &mut Liar<Lie>,
) -> Option<Vec<u8>> {
    let (clock, delivered) = (world.history.clock, world.millis());
    let last = world.group(key)?.last;
    let life = world.history.now(key)?;
    let mut found: Vec<Entry> = life.present(clock).filter(|entry| entry.id > last).take(count).cloned().collect();
    if let Some(entry) = life.present(clock).find(|entry| world.facts.confirmed.contains(&entry.number))
        && !found.is_empty()
        && entry.id < found[0].id
        && liar.lies(Lie::Revive)
    {
        found.insert(0, entry.clone());
        found.truncate(count);
    }
    let last = found.last()?.id;
    let group = world.group_mut(key)?;
    group.last = last;
    for entry in found.iter().filter(|_| !is_noack) {
        let pending = Pending { consumer: client.name.clone(), delivered, deliveries: 1 };
        group.pending.insert(entry.id, pending);
    }
    for entry in &found {
        world.facts.deliver(client.process, entry.number, 1, true);
        if is_noack {
            world.facts.excused.insert(entry.number);
        }
    }
    Some([header(found.len()), found.iter().map(|found| entry(found, liar)).collect::<Vec<_>>().concat()].concat())
}

/// This consumer's pending entries after an ID: each counts as delivered once more.
fn read_own(
    world: &mut World,
    client: &Client,
    key: usize,
    after: EntryId,
    count: usize,
    liar: &mut Liar<Lie>,
) -> Vec<u8> {
    let delivered = world.millis();
    let own = |(id, pending): &(&EntryId, &Pending)| **id > after && pending.consumer == client.name;
    let pending = world.group(key).into_iter().flat_map(|group| &group.pending);
    let ids: Vec<EntryId> = pending.filter(own).map(|(id, _)| *id).take(count).collect();
    let is_alone = count == 1;
    let mut shown = Vec::new();
    for id in &ids {
        let Some(found) = world.entry(key, *id).filter(|_| world.is_present(key, *id)).cloned() else {
            let number = world.number(key, *id);
            world.facts.absent.insert(number);
            shown.push([header(2), bulk(id.to_string().as_bytes()), b"*-1\r\n".to_vec()].concat());
            continue;
        };
        let more = if liar.lies(Lie::CountTwice) { 2 } else { 1 };
        if let Some(pending) = world.group_mut(key).and_then(|group| group.pending.get_mut(id)) {
            pending.delivered = delivered;
            pending.deliveries += more;
            let deliveries = pending.deliveries;
            world.facts.deliver(client.process, found.number, deliveries, false);
        }
        if is_alone {
            world.facts.alone.insert((client.process, found.number));
        }
        shown.push(entry(&found, liar));
    }
    world.save();
    [header(shown.len()), shown.concat()].concat()
}

fn pending(world: &World, client: &mut Client, words: &[Vec<u8>]) -> Reply {
    assert!(words.len() == 7 && words[2] == GROUP && words[6] == client.name);
    let (key, count) = (world.history.key(&words[1]), number(&words[5]));
    if let Some(refused) = refusal(world, key, "") {
        return refused;
    }
    client.looked.insert(key);
    let (first, last) = (id(&words[3]), id(&words[4]));
    let now = world.millis();
    let own = world.group(key).into_iter().flat_map(|group| group.pending.range(first..=last));
    let own: Vec<_> = own.filter(|(_, pending)| pending.consumer == client.name).take(count).collect();
    let shown = own.iter().map(|(id, pending)| {
        let idle = (now - pending.delivered) as u64;
        let id = bulk(id.to_string().as_bytes());
        [header(4), id, bulk(&pending.consumer), integer(idle), integer(pending.deliveries)].concat()
    });
    ([header(own.len()), shown.collect::<Vec<_>>().concat()].concat(), Said::Other)
}

fn claim(world: &mut World, client: &Client, words: &[Vec<u8>], liar: &mut Liar<Lie>) -> Reply {
    assert!(words.len() == 9 && words[2] == GROUP && words[3] == client.name);
    assert!(&*words[6] == b"COUNT" && &*words[8] == b"JUSTID" && client.rules.claims);
    let key = world.history.key(&words[1]);
    if let Some(refused) = refusal(world, key, "") {
        return refused;
    }
    let (mut min_idle, from, count) = (number(&words[4]) as i64, id(&words[5]), number(&words[7]));
    if Duration::from_millis(min_idle as u64) != client.rules.min_idle {
        world.facts.wrong(|| format!("it claims what is idle for {min_idle} ms"));
    }
    if liar.lies(Lie::ClaimEarly) {
        min_idle /= 3;
    }
    let now = world.millis();
    let ids: Vec<EntryId> =
        world.group(key).into_iter().flat_map(|group| group.pending.range(from..)).map(|(id, _)| *id).collect();
    let (mut claimed, mut deleted, mut left, mut cursor) = (Vec::new(), Vec::new(), count, EntryId::default());
    let mut removed = Vec::new();
    for (at, id) in ids.iter().enumerate() {
        if left == 0 || at == 10 * count {
            cursor = *id;
            break;
        }
        if world.version != Version::Redis62 && !world.is_present(key, *id) {
            removed.push(world.number(key, *id));
            world.forget_absent(key, *id);
            deleted.push(*id);
            left -= 1;
            continue;
        }
        let Some(group) = world.group_mut(key) else { break };
        let Some(pending) = group.pending.get_mut(id).filter(|pending| now - pending.delivered >= min_idle) else {
            continue;
        };
        let before = std::mem::replace(&mut pending.consumer, client.name.clone());
        pending.delivered = now;
        if before != client.name {
            let number = world.number(key, *id);
            world.facts.left(number);
        }
        claimed.push(*id);
        left -= 1;
    }
    world.save();
    let list = |ids: &[EntryId]| {
        let shown = ids.iter().map(|id| bulk(id.to_string().as_bytes()));
        [header(ids.len()), shown.collect::<Vec<_>>().concat()].concat()
    };
    let mut parts = vec![bulk(cursor.to_string().as_bytes()), list(&claimed)];
    if world.version != Version::Redis62 {
        parts.push(list(&deleted));
    }
    ([header(parts.len()), parts.concat()].concat(), Said::Removed(removed))
}

fn entry(entry: &Entry, liar: &mut Liar<Lie>) -> Vec<u8> {
    let Entry { id, number, is_bad, .. } = entry;
    let number = if liar.lies(Lie::WrongFields) { number + 1 } else { *number };
    let value = if *is_bad { "bad".to_owned() } else { number.to_string() };
    [header(2), bulk(id.to_string().as_bytes()), header(2), bulk(b"v"), bulk(value.as_bytes())].concat()
}
