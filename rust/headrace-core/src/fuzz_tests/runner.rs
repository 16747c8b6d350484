//! Runs a target many times and reports progress. Prints how to repeat a failed execution, and a simpler one that also fails.

use std::env;
use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::chance::Chance;
use super::shrink::shrink;
use super::tape::{parse, to_text};

/// An execution that takes longer is considered hung.
const LONGEST: Duration = Duration::from_secs(30);
/// How long a simpler execution is looked for.
const SHRINKS_FOR: Duration = Duration::from_secs(10);
/// The most decisions of an execution that is repeated: the code may have changed since, so that it draws others.
const MOST_DECISIONS: usize = 1 << 20;

/// A target, and how it is run: as the environment specifies, or as a small test.
pub struct Runner {
    target: &'static str,
    seed: u64,
    first: u64,
    executions: u64,
    /// Those of the only execution.
    decisions: Option<String>,
}

impl Runner {
    /// `all` is the number of executions in an ordinary test of the larger size. The usual size has a quarter of them.
    pub fn new(target: &'static str, all: u64) -> Self {
        let usual = if is_larger_size() { all } else { all.div_ceil(4) };
        let number = |name: &str, usual| {
            env::var(format!("HEADRACE_FUZZ_{name}"))
                .map_or(usual, |text| text.replace(['_', ','], "").parse().unwrap())
        };
        let decisions = env::var("HEADRACE_FUZZ_DECISIONS").ok().filter(|text| !text.is_empty());
        let executions = if decisions.is_some() { 1 } else { number("EXECUTIONS", usual) };
        Self { target, seed: number("SEED", 1), first: number("FIRST", 0), executions, decisions }
    }

    /// Calls `one` for each execution. `summary` describes what was seen, for the last line.
    pub fn run<S>(self, state: &mut S, mut one: impl FnMut(&mut S, &mut Chance), summary: impl Fn(&S) -> String) {
        let started = Instant::now();
        let at = Arc::new(AtomicU64::new(self.first));
        self.watch(&at);
        let (mut early, mut shown) = (memory("VmRSS"), Instant::now());
        for done in 0..self.executions {
            let execution = self.first + done;
            at.store(execution, Ordering::Relaxed);
            let mut chance = self.chance(execution);
            if let Err(panic) = panic::catch_unwind(AssertUnwindSafe(|| one(state, &mut chance))) {
                eprintln!("{}", self.command()(execution));
                self.shrink(execution, |chance| one(state, chance));
                panic::resume_unwind(panic);
            }
            if done == self.executions / 100 {
                early = memory("VmRSS");
            }
            if done % 256 == 0 && shown.elapsed() > Duration::from_secs(5) {
                shown = Instant::now();
                let rate = (done + 1) as f64 / started.elapsed().as_secs_f64();
                let (of, memory) = (self.executions, memory("VmRSS"));
                eprintln!("{}: {done} of {of}, {rate:.0} a second, {memory:.1} MiB", self.target);
            }
        }
        at.store(u64::MAX, Ordering::Relaxed);
        let grown = memory("VmRSS") - early;
        assert!(self.executions < 100_000 || grown < 16.0, "memory grew by {grown:.1} MiB since 1 % were done");
        eprintln!(
            "{}: {} executions with seed {} from {}: {}; {:.1} s; memory {early:.1} MiB after 1 %, {:.1} MiB at the end, \
             {:.1} MiB at most",
            self.target,
            self.executions,
            self.seed,
            self.first,
            summary(state),
            started.elapsed().as_secs_f64(),
            memory("VmRSS"),
            memory("VmHWM"),
        );
    }

    fn chance(&self, execution: u64) -> Chance {
        match &self.decisions {
            None => Chance::new(self.seed, execution),
            Some(text) => Chance::repeating(parse(text), MOST_DECISIONS),
        }
    }

    /// Looks for a simpler execution that fails in the same way, and prints how to repeat it. One that is traced is not shrunk:
    /// each attempt would be printed.
    fn shrink(&self, execution: u64, one: impl FnMut(&mut Chance)) {
        if self.decisions.is_some() || env::var_os("HEADRACE_FUZZ_TRACE").is_some() {
            return;
        }
        let began = Instant::now();
        let chance = Chance::recording(self.seed, execution);
        let Some((before, shrunk)) = shrink(chance, one, || began.elapsed() < SHRINKS_FOR) else {
            eprintln!("it does not fail again, so it is not shrunk");
            return;
        };
        let options = format!("--decisions {}", to_text(&shrunk));
        let (took, before, after) = (began.elapsed().as_secs_f64(), before.len(), shrunk.len());
        eprintln!("shrunk in {took:.1} s from {before} decisions to {after}; {}", repeat(self.target, &options));
    }

    /// How to repeat an execution.
    fn command(&self) -> impl Fn(u64) -> String + Send + 'static + use<> {
        let (target, seed, decisions) = (self.target, self.seed, self.decisions.clone());
        move |execution| match &decisions {
            None => repeat(target, &format!("--executions 1 --seed {seed} --first {execution}")),
            Some(text) => repeat(target, &format!("--decisions {text}")),
        }
    }

    /// Ends the process if an execution hangs.
    fn watch(&self, at: &Arc<AtomicU64>) {
        let (command, at) = (self.command(), Arc::clone(at));
        thread::spawn(move || {
            let (mut last, mut since) = (0, Instant::now());
            loop {
                thread::sleep(Duration::from_secs(1));
                let now = at.load(Ordering::Relaxed);
                if now == u64::MAX {
                    return;
                }
                if now != last {
                    (last, since) = (now, Instant::now());
                } else if since.elapsed() > LONGEST {
                    eprintln!("it hangs; {}", command(now));
                    process::abort();
                }
            }
        });
    }
}

fn repeat(target: &str, options: &str) -> String {
    format!("repeat with: PYTHONPATH=tests python -m laboratory fuzz {target} {options}")
}

/// Whether the tests have their larger size, that of `make test-all`.
pub fn is_larger_size() -> bool {
    env::var_os("HEADRACE_TEST_ALL").is_some()
}

/// Runs the named test in a separate process, where nothing else uses memory. Returns true in that process.
pub fn is_alone(test: &str) -> bool {
    if env::var_os("HEADRACE_TEST_ALONE").is_some() {
        return true;
    }
    let mut again = process::Command::new(env::current_exe().unwrap());
    let ended = again.args(["--exact", test, "--nocapture"]).env("HEADRACE_TEST_ALONE", "1").output().unwrap();
    let printed = String::from_utf8_lossy(&ended.stdout);
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success() && printed.contains("1 passed"), "{test}: {printed}{errors}");
    false
}

/// A memory figure of this process, in MiB; 0 if the file does not exist.
pub fn memory(field: &str) -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok()).unwrap_or_default() / 1024.0
}
