//! The members of a group that share streams, without sockets and threads: requests and replies arrive in pieces and late,
//! connections break at any byte, processes are stopped for longer than a lease, are killed, close and start again, servers are
//! away, fail over, refuse and forget. A slow model of the scripts knows who owns each stream: a position never goes back, no two
//! members both believe that a stream is theirs, each entry ends in one count, and what is wrong passes in the promised time.

mod clock;
mod facts;
mod judge;
mod lie;
mod line;
#[cfg(test)]
mod on_servers;
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
fn leases() {
    let traces = std::env::var_os("HEADRACE_FUZZ_TRACE").is_some();
    Runner::new("leases", 200).run(&mut Seen::new(traces), check, Seen::summary);
}

#[cfg(test)]
#[test]
fn runs_of_one_seed_are_equal() {
    let [first, second] = [(); 2].map(|()| {
        let mut seen = Seen::default();
        (0..20).for_each(|execution| check(&mut seen, &mut Chance::new(7, execution)));
        seen
    });
    assert_eq!(first, second);
    assert!(first.committed > 100);
}

/// The executions within which each lie is found.
#[cfg(test)]
const MOST: u64 = 3_000;

#[cfg(test)]
#[test]
fn each_lie_is_found() {
    let mut hidden = Vec::new();
    for lie in Lie::ALL.into_iter().filter(|lie| is_larger_size() || !Lie::LONG_TO_FIND.contains(lie)) {
        let is_wrong = |lie, execution| run(&mut Seen::default(), lie, &mut Chance::new(1, execution)).is_err();
        let is_found = |execution| is_wrong(Some(lie), execution) && !is_wrong(None, execution);
        let found = (0..MOST).find(|execution| is_found(*execution));
        eprintln!("{lie:?}: found by execution {found:?}");
        hidden.extend(found.is_none().then_some(lie));
    }
    assert!(hidden.is_empty(), "{hidden:?} were not found in {MOST} executions");
}
