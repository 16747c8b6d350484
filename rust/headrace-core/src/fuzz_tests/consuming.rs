//! Consumers of a group, without sockets and threads, while their streams are added to, trimmed, deleted from, replaced and
//! refused. Requests and replies arrive in pieces and late, connections break at any byte, and processes crash, close and start
//! again. A slow model knows what became of each entry: each is given out until it is acknowledged, becomes a dead letter or is
//! reported as lost, and never to two consumers that both believe that it is theirs.

mod facts;
mod judge;
mod lie;
mod options;
mod process;
mod program;
mod scripts;
mod seen;
mod server;
mod world;

use self::facts::Wrong;
use self::lie::Lie;
use self::program::Program;
use self::seen::Seen;
use super::chance::Chance;
#[cfg(test)]
use super::runner::{Runner, is_larger_size};

/// Runs one program.
fn run(seen: &mut Seen, lie: Option<Lie>, chance: &mut Chance) -> Result<(), Wrong> {
    Program::new(seen, lie, chance).run(chance)
}

/// Runs one program, in which nothing may be wrong.
pub fn check(seen: &mut Seen, chance: &mut Chance) {
    if let Err(wrong) = run(seen, None, chance) {
        panic!("{wrong}");
    }
}

#[cfg(test)]
#[test]
fn consuming() {
    let traces = std::env::var_os("HEADRACE_FUZZ_TRACE").is_some();
    Runner::new("consuming", 400).run(&mut Seen::new(traces), check, Seen::summary);
}

/// Each found a defect that has been repaired; it shows the defect for as long as the model draws what it drew then.
#[cfg(test)]
#[test]
fn executions_that_found_defects_find_nothing() {
    let lost_counted_again = [(1, 1_214), (7, 2_150)];
    let ids_that_do_not_ascend = [(7, 1_702)];
    let old_field_error = [(23, 551)];
    let failed_without_being_returned = [(23, 1_443), (23, 2_266)];
    let counted_once_too_few = [(23, 2_827)];
    let failed_while_connections_broke = [(101, 4_600)];
    let all = [
        &lost_counted_again[..],
        &ids_that_do_not_ascend,
        &old_field_error,
        &failed_without_being_returned,
        &counted_once_too_few,
        &failed_while_connections_broke,
    ];
    for (seed, execution) in all.concat() {
        check(&mut Seen::default(), &mut Chance::new(seed, execution));
    }
}

#[cfg(test)]
#[test]
fn runs_of_one_seed_are_equal() {
    let [first, second] = [(); 2].map(|()| {
        let mut seen = Seen::default();
        (0..60).for_each(|execution| check(&mut seen, &mut Chance::new(7, execution)));
        seen
    });
    assert_eq!(first, second);
    assert!(first.entries > 300);
}

/// The executions within which each lie is found.
#[cfg(test)]
const MOST: u64 = 1_000;

#[cfg(test)]
#[test]
fn each_lie_is_found() {
    for lie in Lie::ALL.into_iter().filter(|lie| is_larger_size() || !Lie::LONG_TO_FIND.contains(lie)) {
        let is_wrong = |lie, execution| run(&mut Seen::default(), lie, &mut Chance::new(1, execution)).is_err();
        let is_found = |execution| is_wrong(Some(lie), execution) && !is_wrong(None, execution);
        let found = (0..MOST).find(|execution| is_found(*execution));
        assert!(found.is_some(), "{lie:?} was not found in {MOST} executions");
        eprintln!("{lie:?}: found by execution {}", found.unwrap_or(0));
    }
}
