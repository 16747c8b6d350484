//! Readers, without sockets, while the streams that they read are added to, trimmed, deleted from, replaced and refused. Requests
//! and replies arrive in pieces, connections break at any byte, and programs start again from any position that they have stored.
//! A slow model knows each entry that ever was: each that was asked for is returned once and in order, or its loss is told.

mod backward_chain;
mod chain;
mod lie;
mod opened;
mod program;
mod seen;
mod server;

use self::chain::Wrong;
use self::lie::Lie;
use self::program::Program;
use self::seen::Seen;
use super::chance::Chance;
#[cfg(test)]
use super::runner::{Runner, is_larger_size};
#[cfg(test)]
use super::tape::{parse, to_text};

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
fn reading() {
    let traces = std::env::var_os("HEADRACE_FUZZ_TRACE").is_some();
    Runner::new("reading", 1_500).run(&mut Seen::new(traces), check, Seen::summary);
}

/// Each found a defect that has been repaired; it shows the defect for as long as the model draws what it drew then.
#[cfg(test)]
#[test]
fn executions_that_found_defects_find_nothing() {
    let held_up_by_a_refused_stream = [(3, 458)];
    let held_up_by_a_dropped_stream = [(7, 178_277), (23, 167_338)];
    let left_out_by_the_limit = [(23, 122_853)];
    let proven_by_another_server = [(7, 163_840)];
    let behind_an_entry_that_does_not_fit = [(23, 192_843)];
    let rest_of_a_page = [(1, 381_969)];
    let id_after_the_last_one = [(23, 212_164)];
    let dropped_with_an_entry_that_does_not_fit = [(23, 952_089), (23, 1_060_520)];
    let counted_as_lost_and_read = [(7, 871_938), (23, 909_344)];
    let found = [
        &held_up_by_a_refused_stream[..],
        &held_up_by_a_dropped_stream,
        &left_out_by_the_limit,
        &proven_by_another_server,
        &behind_an_entry_that_does_not_fit,
        &rest_of_a_page,
        &id_after_the_last_one,
        &dropped_with_an_entry_that_does_not_fit,
        &counted_as_lost_and_read,
    ];
    for (seed, execution) in found.into_iter().flatten() {
        check(&mut Seen::default(), &mut Chance::new(*seed, *execution));
    }
}

#[cfg(test)]
#[test]
fn runs_of_one_seed_are_equal() {
    let [first, second] = [(); 2].map(|()| {
        let mut seen = Seen::default();
        (0..200).for_each(|execution| check(&mut seen, &mut Chance::new(7, execution)));
        seen
    });
    assert_eq!(first, second);
    assert!(first.positions > 1_000);
}

#[cfg(test)]
#[test]
fn recorded_decisions_repeat_a_run() {
    for execution in 0..20 {
        let [mut random, mut recorded, mut repeated] = [(); 3].map(|()| Seen::default());
        check(&mut random, &mut Chance::new(7, execution));
        let mut chance = Chance::recording(7, execution);
        check(&mut recorded, &mut chance);
        let decisions = parse(&to_text(&chance.drawn().unwrap()));
        check(&mut repeated, &mut Chance::repeating(decisions, usize::MAX));
        assert_eq!([&random, &repeated], [&recorded, &recorded]);
    }
}

/// The executions within which each lie is found.
#[cfg(test)]
const MOST: u64 = 3_000;

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
