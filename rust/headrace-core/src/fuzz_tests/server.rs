//! A server that behaves correctly until chance decides otherwise. For each message it knows how often it arrived, whether it
//! was written, and which complete replies the client has received.

use std::collections::HashMap;

use super::chance::Chance;
use super::run;

/// An entry ID.
pub type Id = (u64, u64);

/// What a reply that the client has received completely says about a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    Id(Id),
    Deduplicated,
    Refused,
    /// For a written message: replicas have it too.
    Covered,
}

/// One arrival of a complete command with a message.
#[derive(Debug, Clone, Copy, Default)]
pub struct Try {
    pub written: bool,
    pub said: Option<Said>,
    pub covered: bool,
    /// Whether the server had closed the connection because of an earlier message, and the client knew that.
    pub passed_over: bool,
}

/// The state that all connections share.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools)] // each says what may happen in this session
pub struct Server {
    pub chance: Chance,
    /// One in `faults` steps goes wrong; 0 means none.
    pub faults: usize,
    pub stalls: bool,
    pub interrupts: bool,
    /// Whether the stream does not exist for NOMKSTREAM.
    pub has_no_stream: bool,
    pub stream: Vec<(Id, usize)>,
    pub tries: Vec<Vec<Try>>,
    /// The number of connections that ended in the middle of a command.
    pub cut_commands: u64,
    pub connections: u64,
    pub steps: u64,
    /// How often each kind of step was taken.
    pub kinds: [u64; KINDS.len()],
    /// When it changes, earlier connections end as soon as they are used.
    pub epoch: u64,
    last: Id,
    pub knows_script: bool,
    /// For each marker its version and row, and whether it says that it counts the rows of its stream.
    markers: HashMap<Vec<u8>, (u64, u64, bool)>,
    /// Whether the server has said that a marker does not exist.
    pub denied_marker: bool,
    rows: HashMap<(Vec<u8>, u64, u64), usize>,
    names: HashMap<(Vec<u8>, Vec<u8>), (Id, usize)>,
    /// The stream of each message that was written.
    pub streams: HashMap<usize, Vec<u8>>,
    /// The fields of the registry of shards, with their values. `None` if there are no shards.
    pub registry: Option<Vec<[Vec<u8>; 2]>>,
}

/// The kinds of steps, in the order of [`Server::kinds`].
pub const KINDS: [&str; 14] = [
    "answered",
    "refused",
    "cut before",
    "cut after",
    "reply cut",
    "garbage",
    "surplus",
    "stall",
    "protocol error",
    "early",
    "connect refused",
    "control",
    "run refused",
    "not covered",
];

impl Server {
    pub fn new(chance: Chance) -> Self {
        Self {
            chance,
            faults: 0,
            stalls: false,
            interrupts: false,
            has_no_stream: false,
            stream: Vec::new(),
            tries: Vec::new(),
            cut_commands: 0,
            connections: 0,
            steps: 0,
            kinds: [0; KINDS.len()],
            epoch: 0,
            last: (7, 0),
            knows_script: false,
            markers: HashMap::new(),
            denied_marker: false,
            rows: HashMap::new(),
            names: HashMap::new(),
            streams: HashMap::new(),
            registry: None,
        }
    }

    pub fn goes_wrong(&mut self) -> bool {
        self.faults > 0 && self.chance.one_in(self.faults)
    }

    pub fn take(&mut self, kind: &str) {
        self.steps += 1;
        self.kinds[KINDS.iter().position(|known| *known == kind).unwrap()] += 1;
    }

    /// Writes an entry that contains these messages.
    fn write(&mut self, stream: &[u8], messages: &[usize]) -> Id {
        let (ms, seq) = self.last;
        self.last = if self.chance.one_in(5) { (ms + 1 + self.chance.size(9) as u64, 0) } else { (ms, seq + 1) };
        for message in messages {
            self.stream.push((self.last, *message));
            self.tries[*message].last_mut().unwrap().written = true;
            let of_message = self.streams.entry(*message).or_insert_with(|| stream.to_vec());
            assert_eq!(of_message, stream, "message {message} is in two streams");
        }
        self.last
    }

    /// The reply to a command about the registry of shards, or about a shard; `None` for any other command.
    pub fn answer_about_shards(&mut self, command: &[Vec<u8>]) -> Option<Vec<u8>> {
        let registry = self.registry.as_mut()?;
        Some(match command[0].as_slice() {
            b"HGETALL" => {
                let fields = registry.iter().flatten().map(|text| bulk(&String::from_utf8_lossy(text)));
                let fields: Vec<_> = fields.collect();
                [format!("*{}\r\n", fields.len()).into_bytes(), fields.concat()].concat()
            }
            b"HSETNX" => {
                let is_new = registry.iter().all(|[field, _]| *field != command[2]);
                if is_new {
                    registry.push([command[2].clone(), command[3].clone()]);
                }
                format!(":{}\r\n", u8::from(is_new)).into_bytes()
            }
            b"XINFO" if self.streams.values().any(|stream| *stream == command[2]) => {
                b"*2\r\n$17\r\nlast-generated-id\r\n$3\r\n7-1\r\n".to_vec()
            }
            b"XINFO" => b"-ERR no such key\r\n".to_vec(),
            _ => return None,
        })
    }

    /// Picks one of these error replies.
    pub fn pick_refusal(&mut self, refusals: &[&'static str]) -> &'static str {
        let refusal = *self.chance.pick(refusals);
        self.denied_marker |= refusal.starts_with("GAP ");
        refusal
    }

    /// Records that a complete command arrived.
    pub fn came(&mut self, messages: &[usize], passed_over: bool) {
        for message in messages {
            self.tries[*message].push(Try { passed_over, ..Try::default() });
        }
    }

    /// Executes a command; returns the reply, and what it says about each message.
    pub fn execute(&mut self, command: &[Vec<u8>], refuse: bool) -> (Vec<u8>, Vec<(usize, Said)>) {
        let messages = messages(command);
        if command[0] == b"XADD" {
            let name = (command[2] == b"IDMP").then(|| (command[3].clone(), command[4].clone()));
            if self.has_no_stream {
                return (b"$-1\r\n".to_vec(), said(&messages, Said::Refused));
            }
            let id = match name.as_ref().and_then(|name| self.names.get(name)) {
                Some((id, message)) => {
                    assert_eq!(*message, messages[0], "two messages with one name");
                    *id
                }
                None => self.write(&command[1], &messages),
            };
            if let Some(name) = name {
                self.names.insert(name, (id, messages[0]));
            }
            return (bulk(&text(id)), said(&messages, Said::Id(id)));
        }
        self.append(command, &messages, refuse)
    }

    /// Does what `append.lua` does.
    fn append(&mut self, command: &[Vec<u8>], messages: &[usize], refuse: bool) -> (Vec<u8>, Vec<(usize, Said)>) {
        if command[0] == b"EVALSHA" && !self.knows_script {
            return (b"-NOSCRIPT No matching script. Please use EVAL.\r\n".to_vec(), said(messages, Said::Refused));
        }
        self.knows_script = true;
        let run = run::read(command);
        let ([version, from, first, count, ..], key) = (run.numbers, &run.marker_key);
        assert_eq!(count as usize, messages.len());
        let (mut marker, mut of_stream) = (0, run.alone.is_some());
        match self.markers.get(key) {
            Some((its_version, ..)) if *its_version > version => {
                return (format!("*3\r\n:{count}\r\n$0\r\n\r\n:0\r\n").into(), said(messages, Said::Deduplicated));
            }
            Some((its_version, row, its_kind)) if *its_version == version => {
                assert!(*its_kind || run.alone.is_none_or(|alone| *row <= alone), "a marker of the whole batch");
                (marker, of_stream) = (*row, of_stream || *its_kind);
            }
            Some(_) | None => {}
        }
        if marker < from {
            let line = format!("-GAP {marker} {from} {}\r\n", String::from_utf8_lossy(&run.stream_key));
            return (line.into(), said(messages, Said::Refused));
        }
        let done = marker.saturating_sub(first).min(count);
        let (mut reported, mut ids, mut refused) = (Vec::new(), Vec::new(), "");
        for (row, message) in (first..).zip(messages) {
            if row < first + done {
                let its = self.rows.get(&(key.clone(), version, row));
                assert_eq!(its, Some(message), "another message is deduplicated");
                reported.push((*message, Said::Deduplicated));
            } else if self.has_no_stream || !refused.is_empty() || (refuse && self.chance.one_in(3)) {
                if refused.is_empty() {
                    refused = if self.has_no_stream { "NO_STREAM" } else { "OOM no" };
                    self.markers.insert(key.clone(), (version, row, of_stream));
                }
                reported.push((*message, Said::Refused));
            } else {
                let id = self.write(&run.stream_key, &[*message]);
                self.rows.insert((key.clone(), version, row), *message);
                self.markers.insert(key.clone(), (version, row + 1, of_stream));
                reported.push((*message, Said::Id(id)));
                ids.push(id);
            }
        }
        let appended = ids.len();
        if run.form != b"whole" && appended > 2 && ids[0].0 == ids[appended - 1].0 {
            ids.drain(1..appended - 1);
        }
        let mut reply = format!("*{}\r\n:{done}\r\n", 3 + ids.len()).into_bytes();
        reply.extend(bulk(refused));
        reply.extend(format!(":{appended}\r\n").bytes());
        reply.extend(ids.into_iter().flat_map(|id| bulk(&text(id))));
        (reply, reported)
    }
}

pub fn said(messages: &[usize], said: Said) -> Vec<(usize, Said)> {
    messages.iter().map(|message| (*message, said)).collect()
}

fn text((ms, seq): Id) -> String {
    format!("{ms}-{seq}")
}

fn bulk(text: &str) -> Vec<u8> {
    format!("${}\r\n{text}\r\n", text.len()).into_bytes()
}

/// The messages in a command: each is the number at the start of its payload.
pub fn messages(command: &[Vec<u8>]) -> Vec<usize> {
    let number = |payload: &[u8]| {
        let digits = payload.iter().take_while(|byte| byte.is_ascii_digit()).count();
        String::from_utf8_lossy(&payload[..digits]).parse().unwrap()
    };
    let of = |arguments: &[Vec<u8>]| -> Vec<usize> {
        let is_payload = |pair: &&[Vec<u8>]| pair[0].starts_with(b"payload");
        arguments.windows(2).filter(is_payload).map(|pair| number(&pair[1])).collect()
    };
    if run::is_run(command) { run::read(command).rows.iter().flat_map(|row| of(row)).collect() } else { of(command) }
}
