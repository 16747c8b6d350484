//! The scripts `own.lua` and `dead.lua`, as their comments describe them.

use super::super::liar::Liar;
use super::super::reply::{bulk, header, id, number};
use super::lie::Lie;
use super::server::{Client, GROUP, Reply, Said, refusal};
use super::world::{Burial, Letter, Version, World};
use crate::resp::EntryId;

/// Behind the error of a command within a script.
const WITHIN: &str = " script: f1, on @user_script:12.";

/// Why a script has no effect on an entry.
fn missed(world: &World, key: usize, id: EntryId, name: &[u8]) -> Option<&'static str> {
    match world.group(key).and_then(|group| group.pending.get(&id)) {
        None => Some("gone"),
        Some(pending) if pending.consumer != name => Some("other"),
        Some(_) => None,
    }
}

fn error(text: &str, code: &'static str) -> Reply {
    (format!("-{text}\r\n").into_bytes(), Said::Refused(code))
}

/// A script that the server does not know should have set the counters of these entries.
pub fn unknown(world: &mut World, words: &[Vec<u8>]) {
    let key = world.history.key(&words[1]);
    if &*words[4] == b"claim" && !words[6].is_empty() {
        let numbers: Vec<u64> = words[7..].iter().map(|word| world.number(key, id(word))).collect();
        world.facts.unset.extend(numbers);
    }
}

/// `words`: the number of keys, the key, group, consumer, action, idle, count, and the IDs.
pub fn own(world: &mut World, client: &Client, words: &[Vec<u8>], liar: &mut Liar<Lie>) -> Reply {
    assert!(words[0] == b"1" && words[2] == GROUP && words[3] == client.name);
    let (key, action) = (world.history.key(&words[1]), &*words[4]);
    if let Some(refused) = refusal(world, key, WITHIN) {
        return refused;
    }
    let ids: Vec<EntryId> = words[7..].iter().map(|word| id(word)).collect();
    assert!(!ids.is_empty() && ids.is_sorted_by(|one, other| one < other), "{ids:?}");
    let (mut owned, mut rest) = (Vec::new(), Vec::new());
    for id in ids {
        match missed(world, key, id, &client.name) {
            None => owned.push(id),
            Some(why) => rest.push((id, why)),
        }
    }
    let mut acked = Vec::new();
    if action == b"claim" {
        let (idle, count) = (number(&words[5]) as i64, Some(&words[6]).filter(|word| !word.is_empty()));
        if idle == 0 && count.is_none() && liar.lies(Lie::RenewNothing) {
            return (header(0), Said::Other);
        }
        for id in owned {
            if world.version != Version::Redis62 && !world.is_present(key, id) {
                world.forget_absent(key, id);
                rest.push((id, "deleted"));
                continue;
            }
            let delivered = world.millis() - idle;
            let Some(pending) = world.group_mut(key).and_then(|group| group.pending.get_mut(&id)) else { continue };
            pending.delivered = delivered;
            if let Some(count) = count {
                pending.deliveries = number(count) as u64;
            }
            let number = world.number(key, id);
            world.facts.leased(number, idle > 0);
        }
    } else {
        let deletes = action == b"delete";
        assert!(deletes || action == b"ack");
        if deletes && world.has_others && world.version != Version::Redis82 && !owned.is_empty() {
            return error("GROUPS 2", "GROUPS");
        }
        if liar.lies(Lie::AckNothing) {
            return (header(0), Said::Other);
        }
        if liar.lies(Lie::AckMore)
            && let Some(group) = world.group(key)
            && let Some((more, _)) =
                group.pending.iter().find(|(id, pending)| pending.consumer == client.name && !owned.contains(id))
        {
            owned.push(*more);
        }
        for id in owned {
            let number = world.number(key, id);
            acked.extend(Some(number).filter(|_| world.is_present(key, id)));
            acknowledge(world, client, key, id, deletes);
            if deletes && !world.has_others {
                world.delete(key, id);
            }
            if liar.lies(Lie::DenyAck) {
                rest.push((id, "other"));
            }
        }
    }
    world.save();
    let shown = rest.iter().map(|(id, why)| [bulk(id.to_string().as_bytes()), bulk(why.as_bytes())].concat());
    ([header(2 * rest.len()), shown.collect::<Vec<_>>().concat()].concat(), Said::Acked(acked))
}

/// XACK of an entry that the consumer owns.
fn acknowledge(world: &mut World, client: &Client, key: usize, id: EntryId, deletes: bool) {
    let (number, is_present) = (world.number(key, id), world.is_present(key, id));
    let is_said = world.facts.said.contains(&(client.process, number));
    if is_said && deletes != client.rules.deletes && is_present {
        world.facts.wrong(|| format!("{id} is acknowledged, deletes: {deletes}"));
    }
    if !is_said && is_present && !world.facts.disturbed.contains(&number) {
        world.facts.wrong(|| format!("process {} acknowledges {id}, which its program has not", client.process));
    }
    if !is_present {
        return world.forget_absent(key, id);
    }
    if let Some(group) = world.group_mut(key) {
        group.pending.remove(&id);
    }
    world.facts.acked.insert((client.process, number));
}

/// `words`: the number of keys, the keys, group, consumer, ID, reason, failures, action.
pub fn dead(world: &mut World, client: &Client, words: &[Vec<u8>], liar: &mut Liar<Lie>) -> Reply {
    assert!(words.len() == 9 && words[0] == b"2" && words[2] == b"dead");
    assert!(words[3] == GROUP && words[4] == client.name);
    let (key, id, failures) = (world.history.key(&words[1]), id(&words[5]), number(&words[7]) as u64);
    let deletes = words[8] == b"delete";
    if let Some(refused) = refusal(world, key, WITHIN) {
        return refused;
    }
    let because =
        |why: &str| ([header(2), bulk(id.to_string().as_bytes()), bulk(why.as_bytes())].concat(), Said::Other);
    if let Some(why) = missed(world, key, id, &client.name) {
        return because(why);
    }
    if !world.is_present(key, id) {
        world.forget_absent(key, id);
        world.save();
        return because("deleted");
    }
    match world.burial {
        Burial::WrongType => return error(&format!("WRONGTYPE Operation against a key{WITHIN}"), "WRONGTYPE"),
        Burial::NoMemory => return error(&format!("OOM command not allowed{WITHIN}"), "OOM"),
        Burial::Accepted => {}
    }
    if deletes && world.has_others && world.version != Version::Redis82 {
        return error("GROUPS 2", "GROUPS");
    }
    let Some(entry) = world.entry(key, id).cloned() else { return because("deleted") };
    check_letter(world, client, &entry, failures, deletes);
    if !liar.lies(Lie::LoseLetter) {
        world.letters.push(Letter { number: entry.number, failures });
    }
    if liar.lies(Lie::RepeatLetter) {
        world.letters.push(Letter { number: entry.number, failures });
    }
    if let Some(group) = world.group_mut(key) {
        group.pending.remove(&id);
    }
    if deletes && !world.has_others {
        world.delete(key, id);
    }
    world.save();
    (header(0), Said::Buried)
}

/// Whether an entry may become a dead letter with this number of failures.
fn check_letter(
    world: &mut World,
    client: &Client,
    entry: &super::super::history::Entry,
    failures: u64,
    deletes: bool,
) {
    let (id, rules) = (entry.id, &client.rules);
    let is_bad = entry.is_bad && rules.buries_bad;
    let facts = &mut world.facts;
    let most = facts.failures.get(&entry.number).copied().unwrap_or(0);
    let is_certain = facts.is_certain(entry.number, &client.name);
    if deletes != rules.deletes {
        facts.wrong(|| format!("{id} becomes a dead letter, deletes: {deletes}"));
    }
    if !is_bad && rules.max_failures.is_none_or(|least| failures < least) {
        facts.wrong(|| format!("{id} becomes a dead letter after {failures} failures"));
    }
    if !is_bad && is_certain && failures > most {
        facts.wrong(|| format!("{id} becomes a dead letter after {failures} failures, at most {most} were"));
    }
}
