//! What is promised of batches, leases and reports.

use std::collections::BTreeSet;

use arrow_array::Array as _;
use arrow_array::cast::AsArray as _;
use arrow_array::types::{Int64Type, UInt64Type};

use super::super::liar::Liar;
use super::facts::{Facts, Wrong};
use super::lie::Lie;
use super::process::{Hand, Process};
use super::world::World;
use crate::consumer::{ConsumerBatch, MOST_DELIVERIES, ReadReport};
use crate::resp::{EntryId, entry_id};

/// The life of a stream, from the current one back, in which the entry has this number.
fn life_of(world: &World, key: usize, id: EntryId, number: u64) -> Option<usize> {
    let mut lives = world.history.keys[key].lives.iter().rev();
    let life = lives.find(|life| life.find(id).is_some_and(|entry| entry.number == number));
    life.map(|life| life.number)
}

/// Whether this process owns the entry, or no other one can get it.
fn is_owned(world: &World, process: &Process, key: usize, id: EntryId, number: u64) -> bool {
    let is_now = world.entry(key, id).is_some_and(|entry| entry.number == number);
    if !is_now || !world.is_present(key, id) || !process.options.acks || world.group(key).is_none() {
        return true;
    }
    let pending = world.group(key).and_then(|group| group.pending.get(&id));
    pending.is_some_and(|pending| pending.consumer == process.name)
}

/// A batch was given to the program.
pub fn judge_batch(
    process: &mut Process,
    batch: ConsumerBatch,
    world: &mut World,
    liar: &mut Liar<Lie>,
) -> Result<(), Wrong> {
    let key = world.history.key(batch.stream());
    let at = format!("process {}, s{key}", process.number);
    let columns = batch.record_batch();
    let ids = columns.column_by_name("entry_id").unwrap().as_string::<i32>();
    let values = columns.column_by_name("v").unwrap().as_primitive::<Int64Type>();
    let deliveries = columns.column_by_name("deliveries").unwrap().as_primitive::<UInt64Type>();
    let reclaimed = columns.column_by_name("reclaimed").unwrap().as_boolean();
    if columns.num_rows() != batch.ids().len() || columns.num_rows() as u64 > process.options.batch_rows {
        return Err(format!("{at}: {} rows, {} IDs", columns.num_rows(), batch.ids().len()));
    }
    if batch.ids().is_empty() || !batch.ids().is_sorted_by(|one, other| one < other) {
        return Err(format!("{at}: {:?}", batch.ids()));
    }
    if process.dropped.contains(&key) {
        return Err(format!("{at}: the stream was dropped"));
    }
    let mut rows = Vec::new();
    for (row, id) in batch.ids().iter().copied().enumerate() {
        let number = if values.is_valid(row) { values.value(row) as u64 } else { 0 };
        let life = life_of(world, key, id, number).filter(|_| entry_id(ids.value(row).as_bytes()) == Some(id));
        let Some(life) = life else { return Err(format!("{at}, {id}: {number} was never added")) };
        judge_entry(process, key, (id, number), world)?;
        let is_certain = world.facts.is_certain(number, &process.name);
        let counter = world.facts.delivered.get(&(process.number, number)).copied();
        // Of an entry that is alone for the first time it says how often the entry was delivered.
        let is_it = |(counter, _)| counter == deliveries.value(row) || counter > MOST_DELIVERIES;
        if is_certain && !counter.is_some_and(is_it) {
            return Err(format!("{at}, {id}: {} deliveries, and not {counter:?}", deliveries.value(row)));
        }
        if is_certain && counter == Some((1, true)) && !reclaimed.value(row) {
            let newest = process.newest.insert((key, life), id);
            if newest.is_some_and(|newest| newest >= id) {
                return Err(format!("{at}, {id}: new, and after {newest:?}"));
            }
        }
        rows.push((id, number));
    }
    if liar.lies(Lie::SkipRow) {
        rows.pop();
    }
    process.handed += rows.len() as u64;
    let moves = rows.iter().map(|(_, number)| world.facts.moves(*number)).collect();
    process.hands.push(Hand { undecided: vec![true; rows.len()], batch, key, rows, moves });
    Ok(())
}

/// An entry was given to the program.
pub fn judge_entry(
    process: &mut Process,
    key: usize,
    (id, number): (EntryId, u64),
    world: &mut World,
) -> Result<(), Wrong> {
    let at = format!("process {}, s{key} {id}", process.number);
    if world.facts.is_certain(number, &process.name) {
        if !is_owned(world, process, key, id, number) {
            let pending = world.group(key).and_then(|group| group.pending.get(&id));
            return Err(format!("{at}: it is given out, and is another's: {pending:?}"));
        }
        if process.holds(number, world) && world.is_present(key, id) && process.options.acks {
            return Err(format!("{at}: it is given out, and is in hand"));
        }
        if world.facts.confirmed.contains(&number) {
            return Err(format!("{at}: it is given out, and was acknowledged"));
        }
        if process.settled.get(&number) == Some(&world.facts.moves(number)) {
            return Err(format!("{at}: it is given out, and the program has acknowledged it"));
        }
        let (counter, _) = world.facts.delivered.get(&(process.number, number)).copied().unwrap_or_default();
        let unset = u64::from(world.facts.unset.remove(&number));
        if process.options.max_failures.is_some_and(|most| counter > MOST_DELIVERIES + most + unset) {
            return Err(format!("{at}: it is given out with the counter {counter}, and should be a dead letter"));
        }
    }
    if world.facts.alone.remove(&(process.number, number)) {
        Facts::count(&mut world.facts.failures, number);
    }
    Facts::count(&mut world.facts.handed, number);
    Ok(())
}

/// The program was told that it still has the entries of a batch.
pub fn judge_lease(process: &Process, hand: &Hand, world: &World) -> Result<(), Wrong> {
    for ((id, number), _) in hand.rows.iter().zip(&hand.undecided).filter(|(_, undecided)| **undecided) {
        if world.facts.is_certain(*number, &process.name) && !is_owned(world, process, hand.key, *id, *number) {
            let pending = world.group(hand.key).and_then(|group| group.pending.get(id));
            let (at, key, now) = (process.number, hand.key, world.millis());
            return Err(format!(
                "process {at}, s{key} {id}: its lease is confirmed at {now}, and it is another's: {pending:?}"
            ));
        }
    }
    Ok(())
}

/// What a process reports.
pub fn report(process: &Process, liar: &mut Liar<Lie>) -> ReadReport {
    let mut report = process.bare.report();
    report.acked += u64::from(liar.lies(Lie::AckedTooMany));
    if report.acked > 0 && liar.lies(Lie::AckedTooFew) {
        report.acked -= 1;
    }
    report.lost += u64::from(liar.lies(Lie::LostTooMany));
    if report.dead > 0 && liar.lies(Lie::DeadTooFew) {
        report.dead -= 1;
    }
    report.stale += u64::from(liar.lies(Lie::StaleTooMany));
    report.pending += u64::from(liar.lies(Lie::StillPending));
    report
}

/// Compares a report with what really became of the entries. `is_settled`: the servers have all decisions, of which the program
/// alone made any.
pub fn judge_report(process: &Process, report: &ReadReport, is_settled: bool, world: &World) -> Result<(), Wrong> {
    let (facts, wrong) = (&world.facts, |what: String| Err(format!("process {}: {what}: {report:?}", process.number)));
    if report.handed_over != process.handed {
        return wrong(format!("{} entries were handed over", process.handed));
    }
    if facts.forgot || facts.shared_names.contains(&process.name) {
        return Ok(());
    }
    let is_disturbed = |number: &u64| facts.disturbed.contains(number);
    let least = process.said.keys().filter(|number| process.heard.contains(number)).count() as u64;
    let current: BTreeSet<u64> = (0..world.history.keys.len()).flat_map(|key| world.numbers(key)).collect();
    let times = |(number, times): (&u64, &u64)| {
        let is_own = facts.acked.contains(&(process.number, *number));
        // After a lost connection any entry that is not pending counts as acknowledged.
        let is_free = !process.options.acks || facts.acked.iter().any(|(_, of)| of == number);
        let is_others = process.lost > 0 && is_free;
        let is_gone = facts.absent.contains(number) || (process.lost > 0 && !current.contains(number));
        if is_gone || is_disturbed(number) { *times } else { u64::from(is_own || is_others) }
    };
    let most: u64 = process.said.iter().map(times).sum();
    if report.acked < least && !process.said.keys().any(is_disturbed) {
        return wrong(format!("at least {least} entries were acknowledged"));
    }
    if report.acked > most {
        return wrong(format!("at most {most} entries were acknowledged"));
    }
    if report.lost > facts.absent.len() as u64 + facts.disturbed.len() as u64 {
        return wrong(format!("{} entries were lost in all", facts.absent.len()));
    }
    let letters = world.letters.len() as u64;
    if report.dead > letters || report.dead < process.buried {
        return wrong(format!("there are {letters} dead letters, and {} are known", process.buried));
    }
    let sum = report.acked + report.stale + report.unknown + report.released + report.dead;
    // What a server has refused is for the program to decide again.
    let is_untold = |number: &&u64| !facts.handed.contains_key(*number) && !is_disturbed(number);
    let untold = process.told.iter().filter(is_untold).count() as u64;
    if is_settled && report.lost < untold {
        return wrong(format!("{untold} entries were lost that no program had"));
    }
    if is_settled && process.refusals == 0 && process.options.acks {
        let undecided = process.undecided();
        if report.pending != undecided && process.dropped.is_empty() {
            return wrong(format!("{undecided} entries are pending"));
        }
        if sum + report.lost < process.decided {
            return wrong(format!("{} decisions were made", process.decided));
        }
        let buries = process.options.buries_bad || process.options.max_failures.is_some();
        if !buries && sum > process.decided {
            return wrong(format!("only {} decisions were made", process.decided));
        }
    }
    Ok(())
}

/// What is in the end: each entry was processed, or it is known why not.
pub fn judge_end(world: &World) -> Result<(), Wrong> {
    let facts = &world.facts;
    let (mut letters, clock) = (BTreeSet::new(), world.history.clock);
    for letter in &world.letters {
        if !letters.insert(letter.number) && !facts.disturbed.contains(&letter.number) {
            return Err(format!("entry {} has two dead letters", letter.number));
        }
        if facts.confirmed.contains(&letter.number) && !facts.disturbed.contains(&letter.number) {
            return Err(format!("entry {} was acknowledged and has a dead letter", letter.number));
        }
    }
    for key in 0..world.history.keys.len() {
        let Some(life) = world.history.now(key) else { continue };
        for entry in &life.entries {
            let (number, id) = (entry.number, entry.id);
            let is_acked = facts.acked.iter().any(|(_, of)| *of == number);
            let is_known = is_acked || letters.contains(&number) || facts.excused.contains(&number);
            if facts.disturbed.contains(&number) {
                continue;
            }
            if entry.is_present(clock) && !is_known {
                return Err(format!("s{key} {id}: it is neither acknowledged nor a dead letter"));
            }
            if is_acked && !facts.handed.contains_key(&number) {
                return Err(format!("s{key} {id}: it was acknowledged, and no program had it"));
            }
        }
    }
    Ok(())
}
