//! A real server for a test: started on a Unix socket or a free TCP port in a directory of its own, stopped on drop.

#![allow(dead_code, missing_docs, unreachable_pub, clippy::unwrap_used, clippy::panic, clippy::print_stderr)]

use std::env;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use headrace_core::endpoint::{Form, OptionValue};
use headrace_core::{Endpoint, Watch};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// The time limit for a server's first reply to PING.
const START: Duration = Duration::from_secs(20);

pub struct Server {
    process: Child,
    directory: TempDir,
    pub port: Option<u16>,
}

impl Server {
    /// Starts a server on a Unix socket, with further options as in `redis.conf`. `None` if no server is installed, which
    /// fails in CI.
    pub fn start(options: &[&str]) -> Option<Self> {
        Self::launch(None, options)
    }

    /// Starts a server that also listens on a free TCP port. `port_option` is `--port` or `--tls-port`. `None` also if the
    /// server has no TLS.
    pub fn start_tcp(port_option: &str, options: &[&str]) -> Option<Self> {
        Self::launch(Some(port_option), options)
    }

    fn launch(port_option: Option<&str>, options: &[&str]) -> Option<Self> {
        let Some(program) = program() else {
            assert!(env::var_os("CI").is_none(), "no Redis server: set HEADRACE_TEST_SERVER or install one");
            eprintln!("SKIP: no redis-server or valkey-server on PATH, and HEADRACE_TEST_SERVER is not set");
            return None;
        };
        let directory = tempfile::tempdir().unwrap();
        let port = port_option.map(|_| free_port());
        let mut command = Command::new(program);
        command.args(["--save", "", "--appendonly", "no", "--dir"]).arg(directory.path());
        command.arg("--unixsocket").arg(directory.path().join("socket"));
        if port_option != Some("--port") {
            command.args(["--port", "0"]);
        }
        if let (Some(option), Some(port)) = (port_option, port) {
            command.args(["--bind", "127.0.0.1", option]).arg(port.to_string());
        }
        let log = fs::File::create(directory.path().join("log")).unwrap();
        let process = command.args(options).stdin(Stdio::null()).stdout(log).stderr(Stdio::null()).spawn().unwrap();
        let mut server = Self { process, directory, port };
        if !server.await_answer() {
            assert!(env::var_os("CI").is_none(), "the server of HEADRACE_TEST_SERVER or PATH has no TLS");
            eprintln!("SKIP: the server of HEADRACE_TEST_SERVER or PATH has no TLS");
            return None;
        }
        Some(server)
    }

    /// Waits until it runs; returns false if it ended because it has no TLS.
    fn await_answer(&mut self) -> bool {
        let started = Instant::now();
        // Any reply is enough: a server that requires a password refuses, but runs.
        while self
            .client()
            .and_then(|mut client| redis::cmd("PING").query::<redis::Value>(&mut client))
            .is_err_and(|error| error.code().is_none())
        {
            let log = || fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
            if self.process.try_wait().unwrap().is_some() {
                assert!(log().contains("Failed finding TLS support"), "the server ended: {}", log());
                return false;
            }
            assert!(started.elapsed() < START, "the server does not answer: {}", log());
            thread::sleep(Duration::from_millis(5));
        }
        true
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// An independent client, to inspect the stored data.
    pub fn client(&self) -> redis::RedisResult<redis::Connection> {
        redis::Client::open(format!("unix://{}", self.socket().display()))?.get_connection()
    }

    /// The same, retrying while the server accepts no further connection.
    pub fn client_at_last(&self) -> redis::Connection {
        let started = Instant::now();
        loop {
            if let Ok(mut client) = self.client()
                && redis::cmd("PING").query::<String>(&mut client).is_ok()
            {
                return client;
            }
            assert!(started.elapsed() < START, "no room for a client");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// The endpoint of this server's Unix socket, with further options as text.
    pub fn endpoint(&self, options: &[(&str, &str)]) -> Endpoint {
        let socket = self.socket();
        endpoint(&[&[("unix_socket", socket.to_str().unwrap())], options].concat())
    }
}

impl Server {
    /// Stops the server with SIGSTOP: it keeps its connections and answers nothing.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let _ = kill_process(Pid::from_child(&self.process), signal);
    }

    /// Kills the server with SIGKILL: connections end without a reply.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn program() -> Option<PathBuf> {
    if let Some(program) = env::var_os("HEADRACE_TEST_SERVER") {
        return Some(program.into());
    }
    let path = env::var_os("PATH")?;
    let programs = env::split_paths(&path).flat_map(|at| [at.join("redis-server"), at.join("valkey-server")]);
    programs.into_iter().find(|program| program.is_file())
}

/// A port that was free a moment ago.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// An endpoint from options as text; the stream key is `s` unless given.
pub fn endpoint(options: &[(&str, &str)]) -> Endpoint {
    let mut options = options.to_vec();
    if !options.iter().any(|(name, _)| *name == "stream_key") {
        options.push(("stream_key", "s"));
    }
    let options =
        options.iter().map(|(name, value)| ((*name).to_owned(), OptionValue::Text((*value).to_owned().into())));
    Endpoint::new(options, Form::Text).unwrap()
}

/// The endpoint of a TCP port on this machine, by address unless a host is given.
pub fn tcp_endpoint(port: u16, options: &[(&str, &str)]) -> Endpoint {
    let port = port.to_string();
    let mut all = vec![("port", &*port)];
    if !options.iter().any(|(name, _)| *name == "host") {
        all.push(("host", "127.0.0.1"));
    }
    all.extend(options);
    endpoint(&all)
}

/// A watch that interrupts from an instant on.
pub struct InterruptedFrom(pub Instant);

impl Watch for InterruptedFrom {
    fn interrupted(&mut self) -> bool {
        Instant::now() >= self.0
    }
}
