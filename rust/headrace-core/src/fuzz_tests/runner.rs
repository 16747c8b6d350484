//! Runs a target many times, reports progress, and prints how to repeat a failed execution.

use std::env;
use std::fs;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::chance::Chance;

/// An execution that takes longer is considered hung.
const LONGEST: Duration = Duration::from_secs(30);

/// A target, and how it is run: as the environment specifies, or as a small test.
pub struct Runner {
    target: &'static str,
    seed: u64,
    first: u64,
    executions: u64,
}

impl Runner {
    /// `usual` is the number of executions in an ordinary test.
    pub fn new(target: &'static str, usual: u64) -> Self {
        let number = |name: &str, usual| {
            env::var(format!("HEADRACE_FUZZ_{name}"))
                .map_or(usual, |text| text.replace(['_', ','], "").parse().unwrap())
        };
        Self { target, seed: number("SEED", 1), first: number("FIRST", 0), executions: number("EXECUTIONS", usual) }
    }

    /// Calls `one` for each execution. `summary` describes what was seen, for the last line.
    pub fn run<S>(self, state: &mut S, mut one: impl FnMut(&mut S, &mut Chance), summary: impl Fn(&S) -> String) {
        let started = Instant::now();
        let at = Arc::new(AtomicU64::new(self.first));
        let _again = Again { command: self.command(&at) };
        self.watch(&at);
        let (mut early, mut shown) = (memory("VmRSS"), Instant::now());
        for done in 0..self.executions {
            let execution = self.first + done;
            at.store(execution, Ordering::Relaxed);
            one(state, &mut Chance::new(self.seed, execution));
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

    fn command(&self, at: &Arc<AtomicU64>) -> impl Fn() -> String + Send + 'static + use<> {
        let (target, seed, at) = (self.target, self.seed, Arc::clone(at));
        move || {
            let options = format!("--executions 1 --seed {seed} --first {}", at.load(Ordering::Relaxed));
            format!("repeat with: PYTHONPATH=tests python -m laboratory fuzz {target} {options}")
        }
    }

    /// Ends the process if an execution hangs.
    fn watch(&self, at: &Arc<AtomicU64>) {
        let (again, at) = (self.command(at), Arc::clone(at));
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
                    eprintln!("it hangs; {}", again());
                    process::abort();
                }
            }
        });
    }
}

/// Prints on a panic how to repeat the failed execution.
struct Again<F: Fn() -> String> {
    command: F,
}

impl<F: Fn() -> String> Drop for Again<F> {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}", (self.command)());
        }
    }
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
