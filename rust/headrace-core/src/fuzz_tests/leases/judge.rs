//! What is promised of reports, of members that have closed, and of a group in which nothing happens any more.

use std::collections::BTreeMap;

use super::super::liar::Liar;
use super::facts::Wrong;
use super::lie::Lie;
use super::process::Process;
use super::world::World;
use crate::leases::{ShardReport, lock};

/// What a process reports.
fn report(process: &Process, liar: &mut Liar<Lie>) -> ShardReport {
    let mut report = lock(&process.leases).report();
    report.committed += u64::from(liar.lies(Lie::CommittedTooMany));
    report.committed -= u64::from(report.committed > 0 && liar.lies(Lie::CommittedTooFew));
    report.fenced += u64::from(liar.lies(Lie::FencedTooMany));
    report.unknown += u64::from(liar.lies(Lie::UnknownTooMany));
    report.pending += u64::from(liar.lies(Lie::StillPending));
    report.handed_over -= u64::from(report.handed_over > 0 && liar.lies(Lie::HandedTooFew));
    report.streams_taken += u64::from(liar.lies(Lie::TakenTooMany));
    report.repeated += u64::from(liar.lies(Lie::RepeatedTooMany));
    report.dead -= u64::from(report.dead > 0 && liar.lies(Lie::DeadTooFew));
    report
}

/// What really became of the entries of a process.
#[derive(Debug)]
struct Real {
    /// Those that its program has committed.
    said: u64,
    /// Those whose commit a server has executed.
    executed: u64,
    /// Those that its program has not committed.
    open: u64,
    /// Those that a server has moved.
    dead: u64,
}

fn real(process: &Process, world: &World) -> Real {
    let mut real = Real { said: 0, executed: 0, open: 0, dead: 0 };
    for (owned, last) in &process.handed {
        let (begin, executed) = world.facts.executed[owned];
        let said = world.facts.said.get(owned).copied().unwrap_or(begin);
        real.said += said - begin;
        real.executed += executed - begin;
        real.open += last - said;
    }
    real.dead = world.facts.dead.get(&process.number()).copied().unwrap_or(0);
    real
}

/// Compares the report of a process with it. `is_settled`: the servers have every commit, or have refused it. `is_over`: the
/// process has ended.
pub fn judge_report(
    process: &Process,
    (is_settled, is_over): (bool, bool),
    world: &mut World,
) -> Result<ShardReport, Wrong> {
    let (report, real) = (report(process, &mut world.liar), real(process, world));
    let wrong = |what: &str| Err(format!("p{}: {what}: {report:?}, {real:?}", process.number()));
    if (report.handed_over, report.repeated) != (process.handed_over, process.repeated) {
        return wrong("other entries were handed over, or come again");
    }
    // What a server has forgotten is moved again.
    let is_certain = is_settled && report.unknown == 0 && !world.may_fail_over;
    if report.dead > real.dead || (is_certain && report.dead < real.dead) {
        return wrong("other entries were moved");
    }
    if report.committed > real.executed {
        return wrong("more is committed than was executed");
    }
    let decided = report.committed + report.fenced + report.unknown;
    if decided > real.said {
        return wrong("more is decided than was committed");
    }
    if report.unknown > 0 && !process.has_lost_replies() {
        return wrong("something is unknown, and no reply was lost");
    }
    if report.pending > real.open + if is_over { real.said - decided } else { 0 } {
        return wrong("too much is pending");
    }
    let unconfirmed = lock(&process.leases).unconfirmed();
    if !is_over && decided + unconfirmed != real.said {
        return wrong(&format!("{unconfirmed} are said to be unconfirmed"));
    }
    if is_settled && unconfirmed > 0 {
        return wrong("something is not decided");
    }
    if (is_settled || is_over) && report.committed + report.unknown < real.executed {
        return wrong("something was executed, and is neither committed nor unknown");
    }
    if is_over && decided + report.pending < real.said {
        return wrong("something is in no count");
    }
    Ok(report)
}

/// A member that has left in time leaves nothing behind.
pub fn judge_left(process: &Process, report: &ShardReport, world: &World) -> Result<(), Wrong> {
    if report.streams_taken != report.streams_given_up + report.streams_lost {
        return Err(format!("p{} has left, and still has some of its streams: {report:?}", process.number()));
    }
    for (stream, kept) in world.streams.iter().enumerate() {
        let is_holder = kept.holder.as_ref().is_some_and(|holder| holder.process == process.number());
        let is_over = kept.stream.until() <= world.millis(world.places[stream]);
        if is_holder && !is_over && kept.stream.owner() == process.client.name && !world.is_unsure(stream) {
            return Err(format!("p{} has left, and its lease of s{stream} is there", process.number()));
        }
    }
    let is_listed = world.nodes[0].members.contains_key(&process.client.name);
    if is_listed && !world.is_unsure(0) {
        return Err(format!("p{} has left, and is in the list", process.number()));
    }
    Ok(())
}

/// The process of each stream, if each has one, and they have shares of equal size.
pub fn owners(processes: &[Process], world: &World) -> Result<Vec<usize>, Wrong> {
    let mut counts: BTreeMap<usize, usize> = processes.iter().map(|process| (process.number(), 0)).collect();
    let mut owners = Vec::new();
    for (stream, kept) in world.streams.iter().enumerate() {
        let Some(holder) = kept.holder.as_ref().filter(|holder| kept.stream.owner() == holder.name) else {
            return Err(format!("s{stream} has no owner"));
        };
        if kept.stream.until() <= world.millis(world.places[stream]) {
            return Err(format!("the lease of s{stream} is over"));
        }
        let Some(count) = counts.get_mut(&holder.process) else {
            return Err(format!("s{stream} is owned by p{}, which has ended", holder.process));
        };
        *count += 1;
        owners.push(holder.process);
    }
    let (least, most) = (counts.values().min(), counts.values().max());
    if most.zip(least).is_some_and(|(most, least)| most - least > 1) {
        return Err(format!("the shares are {counts:?}"));
    }
    for process in processes {
        let own: Vec<usize> = lock(&process.leases).assignment().collect();
        if own != (0..owners.len()).filter(|stream| owners[*stream] == process.number()).collect::<Vec<_>>() {
            return Err(format!("p{} believes that it has {own:?}, of {owners:?}", process.number()));
        }
    }
    Ok(owners)
}
