//! Adds rows to streams of a cluster with the blocking `cluster_pipe` of redis-rs, and reports which rows it believes were
//! delivered.
//!
//! ```text
//! cluster_rows 127.0.0.1:7000 127.0.0.1:7001     connects to the cluster of these nodes, and prints `ready`
//! ```
//!
//! A line `KEY PAYLOAD` on standard input is a row. An empty line sends the rows before it as one pipeline, and prints one
//! line for each of them: `ok`, or the error. All options of the client have their defaults. After an error it reconnects:
//! the pipeline of redis-rs 1.8 neither replaces a connection that has ended nor looks for the node that a slot has moved to.

use std::env;
use std::io::{self, BufRead, Write};
use std::process::ExitCode;

use redis::cluster::{ClusterClient, ClusterConnection, ClusterPipeline, cluster_pipe};

fn main() -> ExitCode {
    match write_rows() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            let _ = writeln!(io::stderr(), "cluster_rows: {message}");
            ExitCode::FAILURE
        }
    }
}

fn write_rows() -> Result<(), String> {
    let nodes: Vec<String> = env::args().skip(1).map(|node| format!("redis://{node}")).collect();
    let client = ClusterClient::new(nodes).map_err(|error| error.to_string())?;
    let mut connection = Some(client.get_connection().map_err(|error| error.to_string())?);
    let mut output = io::BufWriter::new(io::stdout().lock());
    let print = |line: &str, output: &mut dyn Write| writeln!(output, "{line}").map_err(|error| error.to_string());
    print("ready", &mut output)?;
    output.flush().map_err(|error| error.to_string())?;
    let (mut pipeline, mut rows) = (cluster_pipe(), 0);
    for line in io::stdin().lock().lines() {
        let line = line.map_err(|error| error.to_string())?;
        if let Some((key, payload)) = line.split_once(' ') {
            pipeline.cmd("XADD").arg(key).arg("*").arg("payload").arg(payload);
            rows += 1;
            continue;
        }
        for said in send(&pipeline, rows, &client, &mut connection) {
            print(&said, &mut output)?;
        }
        output.flush().map_err(|error| error.to_string())?;
        (pipeline, rows) = (cluster_pipe(), 0);
    }
    Ok(())
}

/// The client's result for each row. An error that names no commands applies to every row.
fn send(
    pipeline: &ClusterPipeline,
    rows: usize,
    client: &ClusterClient,
    connection: &mut Option<ClusterConnection>,
) -> Vec<String> {
    let opened = connection.take().map_or_else(|| client.get_connection(), Ok);
    let answered = opened.and_then(|mut opened| {
        let ids = pipeline.query::<Vec<String>>(&mut opened)?;
        *connection = Some(opened);
        Ok(ids)
    });
    let error = match answered {
        Ok(ids) => return ids.iter().map(|_| "ok".into()).collect(),
        Err(error) => error,
    };
    let code = error.code().map_or_else(|| format!("{:?}", error.kind()), Into::into);
    let Some(refused) = error.into_server_errors() else { return vec![code; rows] };
    if let [(0, _)] = *refused {
        // An error of the first row, or one that names no rows.
        return vec![code; rows];
    }
    let mut said = vec!["ok".to_owned(); rows];
    for (row, error) in &*refused {
        said[*row] = error.code().into();
    }
    said
}
