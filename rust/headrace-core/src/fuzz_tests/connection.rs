//! A connection to the [server](super::server) that decides at random how each command on it is handled.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::run;
use super::server::{Said, Server, messages, said};
use super::slow::{Reader, Stop};
use crate::error::{Fault, code};
use crate::net::{Mock, Readiness};

const REFUSALS: [&str; 14] = [
    "OOM command not allowed when used memory > 'maxmemory'.",
    "LOADING Redis is loading the dataset in memory",
    "ERR odd",
    "READONLY You can't write against a read only replica.",
    "WRONGTYPE Operation against a key",
    "BUSY Redis is busy",
    "NOPERM no",
    "MOVED 1234 127.0.0.1:7000",
    "MISCONF Errors writing to the AOF file",
    "NOSCRIPT No matching script.",
    "",
    "made up",
    "GAP 0",
    "ERR max number of clients reached",
];

const GARBAGE: [&[u8]; 16] = [
    b"+OK\r\n",
    b":1\r\n",
    b"*0\r\n",
    b"_\r\n",
    b">2\r\n",
    b"$3\r\nabc\r\n",
    b"$-2\r\n",
    b"$9999\r\n",
    b"$4\r\n7-3\r\n\r\n",
    b"\0\xff",
    b"HTTP/1.1 400 Bad Request\r\n",
    b"*9223372036854775807\r\n",
    b"*1\r\n*1\r\n*1\r\n",
    b"$18446744073709551617\r\n",
    b"\r\n",
    b"-ERR a\rb",
];

const EARLY: [&[u8]; 4] = [b"$3\r\n7-1\r\n", b"$-1\r\n", b"-OOM no\r\n", b"-ERR Protocol error: x\r\n"];

/// What a reply says: for each message, the index of the attempt and the result.
type Reported = Vec<(usize, usize, Said)>;

/// The server's end of a connection.
pub struct Connection {
    server: Arc<Mutex<Server>>,
    epoch: u64,
    input: Vec<u8>,
    output: VecDeque<u8>,
    /// The total number of bytes of output, and how many of them the client has received.
    offered: u64,
    handed: u64,
    /// The results that the client knows once it has this many bytes.
    promises: VecDeque<(u64, Reported)>,
    /// The messages written since the last WAIT.
    uncovered: Reported,
    /// Whether the client gets all of the output in one piece.
    in_one: bool,
    /// How the connection ends, after the output.
    end: Option<&'static str>,
    is_silent: bool,
    /// Whether it accepts no more bytes.
    is_full: bool,
    /// Once the client has this many bytes, it knows that nothing it sent after them was processed.
    closed_over: Option<u64>,
}

impl Connection {
    pub fn dial(server: &Arc<Mutex<Server>>) -> Result<Box<dyn Mock>, Fault> {
        let mut state = server.lock().unwrap_or_else(PoisonError::into_inner);
        if state.goes_wrong() && state.chance.one_in(2) {
            state.take("connect refused");
            return Err(Fault::new(code::CONNECT, "connection refused"));
        }
        state.connections += 1;
        let epoch = state.epoch;
        drop(state);
        Ok(Box::new(Self {
            server: Arc::clone(server),
            epoch,
            input: Vec::new(),
            output: VecDeque::new(),
            offered: 0,
            handed: 0,
            promises: VecDeque::new(),
            uncovered: Vec::new(),
            in_one: false,
            end: None,
            is_silent: false,
            is_full: false,
            closed_over: None,
        }))
    }

    fn offer(&mut self, reply: &[u8]) {
        self.output.extend(reply);
        self.offered += reply.len() as u64;
    }

    fn finish(&mut self, server: &mut Server) {
        self.end = Some(*server.chance.pick(&[code::EOF, code::RESET]));
        if server.chance.one_in(4) {
            // Output still in transit is lost.
            self.output.clear();
        }
    }

    /// Takes one step, if a command has arrived.
    fn act(&mut self, server: &mut Server) -> bool {
        if server.epoch != self.epoch && self.end.is_none() {
            self.finish(server);
        }
        if self.end.is_some() || self.is_silent {
            return false;
        }
        let mut reader = Reader::new(&self.input);
        match reader.command() {
            Ok(command) => {
                let length = reader.at;
                self.input.drain(..length);
                self.answer(server, &command);
                true
            }
            Err(Stop::More) => {
                if !self.input.is_empty() && self.input.len() > 200 && server.goes_wrong() {
                    server.take("early");
                    self.offer(server.chance.part(&EARLY));
                    self.end = Some(code::EOF);
                    // The client has no time to send the rest: otherwise this would be a reply like any other.
                    self.is_full = true;
                    self.closed_over = Some(self.offered);
                }
                false
            }
            Err(Stop::Wrong) => panic!("no command: {}", self.input.escape_ascii()),
        }
    }

    fn answer(&mut self, server: &mut Server, command: &[Vec<u8>]) {
        let is_run = run::is_run(command);
        if command[0] == b"WAIT" && command[1] != b"0" {
            return self.answer_wait(server);
        }
        if command[0] != b"XADD" && !is_run {
            return self.answer_control(server, command);
        }
        let messages = messages(command);
        assert!(!messages.is_empty());
        server.came(&messages, false);
        if !server.goes_wrong() {
            server.take("answered");
            let (reply, reported) = server.execute(command, false);
            self.promise(server, &reply, reported);
            return;
        }
        match server.chance.below(9) {
            0 => {
                server.take("refused");
                let refusal = server.pick_refusal(&REFUSALS);
                self.promise(server, format!("-{refusal}\r\n").as_bytes(), said(&messages, Said::Refused));
            }
            1 => {
                server.take("cut before");
                self.finish(server);
            }
            2 => {
                server.take("cut after");
                server.execute(command, false);
                self.finish(server);
            }
            3 => {
                server.take("reply cut");
                let (reply, _) = server.execute(command, false);
                let part = server.chance.below(reply.len());
                self.offer(&reply[..part]);
                self.finish(server);
            }
            4 => {
                server.take("garbage");
                if server.chance.one_in(2) {
                    server.execute(command, false);
                }
                let garbage = if is_run && server.chance.one_in(2) {
                    let count = messages.len();
                    [
                        format!("*3\r\n:{}\r\n$0\r\n\r\n:0\r\n", count + 1),
                        format!("*3\r\n:{count}\r\n$2\r\nno\r\n:0\r\n"),
                    ][server.chance.below(2)]
                    .clone()
                    .into_bytes()
                } else if server.chance.one_in(4) && !is_run && !server.has_no_stream {
                    b"$-1\r\n".to_vec()
                } else {
                    server.chance.part(&GARBAGE).to_vec()
                };
                self.offer(&garbage);
                self.end = Some(code::EOF);
            }
            5 if self.input.is_empty() => {
                server.take("surplus");
                let (reply, reported) = server.execute(command, false);
                self.promise(server, &reply, reported);
                let surplus =
                    [&reply[..], b"-ERR surplus\r\n", b"-ERR sur", b":", b"$", b"*2\r\n:1"][server.chance.below(6)];
                self.offer(surplus);
                self.in_one = true;
            }
            6 if server.stalls => {
                server.take("stall");
                if server.chance.one_in(2) {
                    server.execute(command, false);
                }
                self.is_silent = true;
            }
            7 => {
                server.take("protocol error");
                self.promise(server, b"-ERR Protocol error: invalid bulk length\r\n", said(&messages, Said::Refused));
                self.closed_over = Some(self.offered);
                self.end = Some(code::EOF);
            }
            _ if is_run => {
                server.take("run refused");
                server.knows_script &= !server.chance.one_in(8);
                let (reply, reported) = server.execute(command, true);
                self.promise(server, &reply, reported);
            }
            _ => {
                server.take("cut before");
                self.finish(server);
            }
        }
    }

    fn answer_control(&mut self, server: &mut Server, command: &[Vec<u8>]) {
        let about_shards = server.answer_about_shards(command);
        let honest: &[u8] = match command[0].as_slice() {
            _ if about_shards.is_some() => about_shards.as_deref().unwrap_or_default(),
            b"CLIENT" => b"+OK\r\n",
            b"WAIT" => b":0\r\n",
            b"INFO" => b"$33\r\nrole:master\r\nconnected_slaves:1\r\n\r\n",
            b"PING" => b"+PONG\r\n",
            b"EVAL" => b"+ready\r\n",
            b"HELLO" => b"*4\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$5\r\n8.6.2\r\n",
            b"XINFO" => {
                b"*6\r\n$13\r\nidmp-duration\r\n:86400\r\n$12\r\nidmp-maxsize\r\n:100\r\n$12\r\niids-tracked\r\n:0\r\n"
            }
            other => panic!("what is {}?", other.escape_ascii()),
        };
        if !(server.goes_wrong() && server.chance.one_in(4)) {
            return self.offer(honest);
        }
        server.take("control");
        match server.chance.below(5) {
            0 => self.finish(server),
            1 => {
                let part = server.chance.below(honest.len());
                self.offer(&honest[..part]);
                self.finish(server);
            }
            2 => self.offer(format!("-{}\r\n", server.pick_refusal(&REFUSALS)).as_bytes()),
            3 if server.stalls => self.is_silent = true,
            _ => {
                self.offer(server.chance.part(&GARBAGE));
                self.end = Some(code::EOF);
            }
        }
    }

    fn promise(&mut self, server: &Server, reply: &[u8], reported: Vec<(usize, Said)>) {
        self.offer(reply);
        let reported = reported.into_iter().map(|(message, said)| (message, server.tries[message].len() - 1, said));
        let reported: Vec<_> = reported.collect();
        let written = reported.iter().filter(|reported| reported.2 != Said::Refused);
        self.uncovered.extend(written.map(|(message, nth, _)| (*message, *nth, Said::Covered)));
        self.promises.push_back((self.offered, reported));
    }

    fn answer_wait(&mut self, server: &mut Server) {
        let covered = std::mem::take(&mut self.uncovered);
        if !server.goes_wrong() {
            server.take("answered");
            self.offer(b":1\r\n");
            self.promises.push_back((self.offered, covered));
            return;
        }
        server.take("not covered");
        match server.chance.below(5) {
            0 => self.offer(b":0\r\n"),
            1 => self.offer(b"-ERR no\r\n"),
            2 => self.finish(server),
            3 if server.stalls => self.is_silent = true,
            _ => {
                self.offer(server.chance.part(&[b"+OK\r\n", b"$3\r\n7-1\r\n", b"$-1\r\n", b":x\r\n", b":", b"*0\r\n"]));
                self.end = Some(code::EOF);
            }
        }
    }

    /// Records the results in the bytes that the client now has.
    fn keep_promises(&mut self, server: &mut Server) {
        while self.promises.front().is_some_and(|promise| promise.0 <= self.handed) {
            for (message, nth, said) in self.promises.pop_front().unwrap().1 {
                match said {
                    Said::Covered => server.tries[message][nth].covered = true,
                    Said::Id(_) | Said::Deduplicated | Said::Refused => server.tries[message][nth].said = Some(said),
                }
            }
        }
    }
}

impl Mock for Connection {
    fn receive(&mut self, buf: &mut [u8]) -> Result<usize, Fault> {
        assert!(!buf.is_empty(), "no room for more");
        let shared = Arc::clone(&self.server);
        let server = &mut *shared.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..server.chance.below(3) {
            self.act(server);
        }
        if self.output.is_empty() {
            return self.end.map_or(Ok(0), |end| Err(Fault::new(end, "the connection ended")));
        }
        let all = self.output.len().min(buf.len());
        let count = if self.in_one || server.chance.one_in(2) { all } else { 1 + server.chance.below(all) };
        for (place, byte) in buf.iter_mut().zip(self.output.drain(..count)) {
            *place = byte;
        }
        self.handed += count as u64;
        self.keep_promises(server);
        Ok(count)
    }

    fn send(&mut self, bytes: &[u8]) -> Result<usize, Fault> {
        let shared = Arc::clone(&self.server);
        let server = &mut *shared.lock().unwrap_or_else(PoisonError::into_inner);
        if self.end.is_some() && server.chance.one_in(2) {
            return Err(Fault::new(code::RESET, "a broken pipe"));
        }
        let count = match server.chance.below(4) {
            _ if self.is_full => 0,
            0 => server.chance.below(bytes.len() + 1),
            1 => server.chance.size(bytes.len() + 1),
            _ => bytes.len(),
        };
        self.input.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn wait(&mut self, writable: bool, timeout: Duration) -> Readiness {
        let shared = Arc::clone(&self.server);
        let server = &mut *shared.lock().unwrap_or_else(PoisonError::into_inner);
        if server.interrupts && server.chance.one_in(20) {
            return Readiness { interrupted: true, ..Readiness::default() };
        }
        for _ in 0..=server.chance.below(4) {
            self.act(server);
        }
        let readable = !self.output.is_empty() || self.end.is_some();
        if !readable && !writable {
            assert!(self.is_silent, "waits for nothing");
            thread::sleep(timeout.min(Duration::from_millis(1)));
        }
        Readiness { readable, writable, interrupted: false }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let shared = Arc::clone(&self.server);
        let server = &mut *shared.lock().unwrap_or_else(PoisonError::into_inner);
        // The rest of the input in its socket: a server could have executed it.
        let passed_over = self.closed_over.is_some_and(|known| known <= self.handed);
        loop {
            let mut reader = Reader::new(&self.input);
            let Ok(command) = reader.command() else { break };
            let length = reader.at;
            self.input.drain(..length);
            server.came(&messages(&command), passed_over);
        }
        server.cut_commands += u64::from(!self.input.is_empty());
    }
}
