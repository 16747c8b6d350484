//! Adds entries to streams on all nodes of a cluster with the blocking `cluster_pipe` of redis-rs, for comparison with
//! headrace.
//!
//! ```text
//! cluster_pipe 127.0.0.1:7000 PREFIX STREAMS ROWS MAXLEN TS     connects, reads payloads of 120 bytes, and prints `ready`
//! ```
//!
//! The payloads are read from standard input, one per line, up to an empty line; they are sent repeatedly. After each further
//! line it sends, and prints the number of entry IDs, the seconds and the CPU seconds that this took. The streams are
//! `PREFIX00`, `PREFIX01` and so on, in turn.

use std::env;
use std::io::{self, BufRead, Write};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Instant;

use redis::cluster::{ClusterClient, ClusterConnection, cluster_pipe};
use rustix::time::{ClockId, clock_gettime};

/// The number of commands in a pipeline: the same as for the other clients.
const PIPELINE: usize = 1_000;

/// The entries to send.
struct Load {
    keys: Vec<String>,
    payloads: Vec<Vec<u8>>,
    rows: usize,
    maxlen: String,
    ts: String,
}

fn main() -> ExitCode {
    match measure() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            let _ = writeln!(io::stderr(), "cluster_pipe: {message}");
            ExitCode::FAILURE
        }
    }
}

fn measure() -> Result<(), String> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [server, prefix, streams, rows, maxlen, ts] = arguments.as_slice() else {
        return Err("six arguments are needed".into());
    };
    let mut lines = io::stdin().lock().split(b'\n').map_while(Result::ok);
    let payloads: Vec<_> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
    if payloads.is_empty() {
        return Err("there is no payload".into());
    }
    let keys = (0..number(streams)?).map(|stream| format!("{prefix}{stream:02}")).collect();
    let load = Load { keys, payloads, rows: number(rows)?, maxlen: maxlen.clone(), ts: ts.clone() };
    let client = ClusterClient::new([format!("redis://{server}")]).map_err(|error| error.to_string())?;
    let mut connection = client.get_connection().map_err(|error| error.to_string())?;
    print("ready")?;
    if lines.next().is_none() {
        return Ok(());
    }
    let (began, cpu) = (Instant::now(), cpu_seconds());
    let stored = send(&load, &mut connection)?;
    print(&format!("{stored} {} {}", began.elapsed().as_secs_f64(), cpu_seconds() - cpu))
}

fn send(load: &Load, connection: &mut ClusterConnection) -> Result<usize, String> {
    let (mut stored, mut row) = (0, 0);
    while row < load.rows {
        let end = load.rows.min(row + PIPELINE);
        let mut pipeline = cluster_pipe();
        for row in row..end {
            let command = pipeline.cmd("XADD").arg(&load.keys[row % load.keys.len()]);
            let command = command.arg("MAXLEN").arg("~").arg(&load.maxlen).arg("*");
            command.arg("payload").arg(&load.payloads[row % load.payloads.len()]).arg("ts").arg(&load.ts);
        }
        let ids: Vec<String> = pipeline.query(connection).map_err(|error| error.to_string())?;
        (stored, row) = (stored + ids.len(), end);
    }
    Ok(stored)
}

fn number(text: &str) -> Result<usize, String> {
    usize::from_str(text).ok().filter(|number| *number > 0).ok_or_else(|| format!("not an integer above 0: {text}"))
}

fn print(line: &str) -> Result<(), String> {
    writeln!(io::stdout(), "{line}").map_err(|error| error.to_string())
}

/// The CPU time of this process: user and system, for all threads.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    std::time::Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32).as_secs_f64()
}
