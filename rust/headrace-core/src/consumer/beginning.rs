//! What a line does once, on its first connection: it checks its rights, creates its groups, and asks who else has its name. No
//! I/O and no clock.

use std::collections::VecDeque;
use std::sync::Arc;

use redis::parse_redis_value;

use super::right::{Right, rights};
use super::start::Start;
use super::work::{MAKES_GROUP, Names};
use crate::entries::escaped;
use crate::error::{Error, Fault};
use crate::reading::{Buffers, Exchange, Trouble};

/// How many streams the server is asked about in one go: some 50 KB.
const STREAMS_AT_ONCE: usize = 64;

/// What is asked next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// For the rights on some streams, this one first.
    Rights(usize),
    /// For the groups of some streams, this one first.
    Groups(usize),
    Clients,
    Done,
}

/// A command whose reply is due.
#[derive(Debug)]
enum Due {
    /// Refused without the right to it. The stream has this index.
    Right(usize, Right),
    /// Refused without the group, or because there is one.
    Group(usize, Right),
    Clients,
}

#[derive(Debug)]
pub(super) struct Beginning {
    keys: Vec<Arc<[u8]>>,
    start: Arc<Start>,
    step: Step,
    due: VecDeque<Due>,
    error: Option<Error>,
    has_namesake: Option<bool>,
}

impl Beginning {
    pub(super) fn new(keys: Vec<Arc<[u8]>>, start: Arc<Start>) -> Self {
        Self { keys, start, step: Step::Rights(0), due: VecDeque::new(), error: None, has_namesake: None }
    }

    pub(super) fn is_done(&self) -> bool {
        self.step == Step::Done
    }

    /// Whether the server must be asked for its clients next.
    pub(super) fn asks_for_clients(&self) -> bool {
        self.step == Step::Clients && self.due.is_empty()
    }

    /// Whether the reply of the server about its clients is due.
    pub(super) fn awaits_clients(&self) -> bool {
        matches!(self.due.front(), Some(Due::Clients))
    }

    /// Writes the next commands, while no reply is due. `knows_clients`: the server has been asked for its clients.
    pub(super) fn request(&mut self, knows_clients: bool, buffers: &mut Buffers) {
        let out = &mut buffers.out;
        let last = |first: usize| (first + STREAMS_AT_ONCE).min(self.keys.len());
        match self.step {
            Step::Rights(first) => {
                for at in first..last(first) {
                    for right in rights(&self.keys[at], &self.start) {
                        right.command.write_packed_command(out);
                        self.due.push_back(Due::Right(at, right));
                    }
                }
                self.step = if last(first) < self.keys.len() { Step::Rights(last(first)) } else { Step::Groups(0) };
            }
            Step::Groups(first) => {
                for at in first..last(first) {
                    let right = group_command(&self.keys[at], &self.start);
                    right.command.write_packed_command(out);
                    self.due.push_back(Due::Group(at, right));
                }
                self.step = if last(first) < self.keys.len() { Step::Groups(last(first)) } else { Step::Clients };
            }
            Step::Clients if !knows_clients => {
                redis::cmd("CLIENT").arg("LIST").write_packed_command(out);
                self.due.push_back(Due::Clients);
            }
            Step::Clients | Step::Done => self.step = Step::Done,
        }
    }

    /// The error for the caller, if the server refused what the consumer needs.
    pub(super) fn take_error(&mut self) -> Option<Error> {
        self.error.take()
    }

    /// Whether the server has listed another consumer of this name, once it has listed its clients.
    pub(super) fn take_namesake(&mut self) -> Option<bool> {
        self.has_namesake.take()
    }

    fn judge(&self, due: &Due, refusal: &Fault) -> Result<(), Trouble> {
        let (at, right) = match (due, &*refusal.code) {
            (Due::Group(at, _), "NOGROUP") => return Err(group_missing(&self.keys[*at], &self.start.names).into()),
            (Due::Right(at, right), "NOPERM" | "WRONGTYPE") => (at, right),
            (Due::Group(at, right), code) if code != "BUSYGROUP" => (at, right),
            // Without the right to list clients, there is none of this name.
            _ => return Ok(()),
        };
        Err(right.refused(&self.keys[*at], refusal))
    }
}

impl Exchange for Beginning {
    fn awaits_reply(&self) -> bool {
        !self.due.is_empty()
    }

    fn answer(&mut self, buffers: &mut Buffers) -> Result<bool, Fault> {
        let Some(reply) = buffers.take_reply()? else { return Ok(false) };
        let Some(due) = self.due.pop_front() else { return Ok(true) };
        if let Due::Clients = due {
            let clients = parse_redis_value(reply).ok();
            self.has_namesake = Some(clients.is_some_and(|clients| self.start.client_name.has_namesake(&clients)));
            self.step = Step::Done;
        } else if let Some(line) = reply.strip_prefix(b"-") {
            let refusal = Fault::from_reply(line.strip_suffix(b"\r\n").unwrap_or(line));
            match self.judge(&due, &refusal) {
                Ok(()) => {}
                Err(Trouble::Fault(fault)) => return Err(fault),
                Err(Trouble::Error(error)) => self.error = self.error.take().or(Some(error)),
            }
        }
        Ok(true)
    }

    fn ends_outage(&self) -> bool {
        self.is_done()
    }

    fn disconnected(&mut self) {
        self.due.clear();
        (self.error, self.has_namesake) = (None, None);
        if !self.is_done() {
            self.step = Step::Rights(0);
        }
    }
}

/// Creates the group of a stream, and the stream, unless they exist; or is refused if the stream does not have the group.
fn group_command(key: &[u8], start: &Start) -> Right {
    let Some(after) = &start.creates_after else {
        let mut command = redis::cmd("XPENDING");
        command.arg(key).arg(&start.names.group);
        return Right { name: "XPENDING", acl: "xpending", command };
    };
    let mut command = redis::cmd("XGROUP");
    command.arg("CREATE").arg(key).arg(&start.names.group).arg(after).arg("MKSTREAM");
    Right { name: "XGROUP CREATE", acl: "xgroup|create", command }
}

/// The error for a missing group.
pub(super) fn group_missing(key: &[u8], names: &Names) -> Error {
    let (stream, key, group) = (key.to_vec(), escaped(key), escaped(&names.group));
    let message = format!("the consumer group '{group}' of the stream '{key}' does not exist: {MAKES_GROUP}");
    Error::GroupMissing { stream, message }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::client_name::ClientName;
    use super::*;
    use crate::error::code;

    fn beginning(keys: usize, creates: bool) -> Beginning {
        let names = Names { group: b"g".to_vec(), consumer: b"c".to_vec(), dead_letter_key: None };
        let start = Start {
            client_name: Arc::new(ClientName::new(&names.group, &names.consumer)),
            names,
            needs: (true, false),
            creates_after: creates.then(|| "0-0".to_owned()),
            is_of_cluster: false,
        };
        let keys = (0..keys).map(|key| Arc::from(format!("s{key}").into_bytes())).collect();
        Beginning::new(keys, Arc::new(start))
    }

    /// Lets it ask, and replies to each command; returns the number of commands.
    fn asks(beginning: &mut Beginning, buffers: &mut Buffers, reply: &[u8]) -> Result<usize, Fault> {
        beginning.request(false, buffers);
        buffers.sent(buffers.out.len());
        let asked = beginning.due.len();
        for _ in 0..asked {
            buffers.space()[..reply.len()].copy_from_slice(reply);
            beginning.received(reply.len(), buffers)?;
        }
        Ok(asked)
    }

    #[test]
    fn a_line_has_begun_after_its_rights_its_groups_and_the_clients() {
        let (mut beginning, mut buffers) = (beginning(65, true), Buffers::default());
        let rounds =
            [(64 * 6, &b"-ERR value\r\n"[..]), (6, b"-ERR value\r\n"), (64, b"+OK\r\n"), (1, b"-BUSYGROUP it\r\n")];
        for (commands, reply) in rounds {
            assert_eq!(asks(&mut beginning, &mut buffers, reply).unwrap(), commands);
            assert!(!beginning.ends_outage(), "the next command may be refused");
        }
        assert!(beginning.asks_for_clients());
        let other = ClientName::new(b"g", b"c");
        let clients = format!("id=1 name={} db=0\n", other.own());
        let clients = format!("${}\r\n{clients}\r\n", clients.len());
        assert_eq!(asks(&mut beginning, &mut buffers, clients.as_bytes()).unwrap(), 1);
        assert_eq!((beginning.take_namesake(), beginning.is_done(), beginning.ends_outage()), (Some(true), true, true));
    }

    #[test]
    fn a_server_that_was_asked_for_its_clients_is_not_asked_again() {
        let (mut beginning, mut buffers) = (beginning(1, true), Buffers::default());
        asks(&mut beginning, &mut buffers, b"+OK\r\n").unwrap();
        asks(&mut beginning, &mut buffers, b"+OK\r\n").unwrap();
        beginning.request(true, &mut buffers);
        assert_eq!((beginning.is_done(), beginning.awaits_reply(), beginning.take_namesake()), (true, false, None));
    }

    #[test]
    fn a_refusal_is_an_error_unless_it_may_pass_or_leads_elsewhere() {
        for reply in [&b"-NOPERM no permissions\r\n"[..], b"-WRONGTYPE Operation against a key\r\n"] {
            let (mut beginning, mut buffers) = (beginning(1, true), Buffers::default());
            asks(&mut beginning, &mut buffers, reply).unwrap();
            assert!(beginning.take_error().unwrap().to_string().contains("XREADGROUP"), "the first one counts");
        }
        let (mut beginning, mut buffers) = (beginning(1, false), Buffers::default());
        asks(&mut beginning, &mut buffers, b"+OK\r\n").unwrap();
        asks(&mut beginning, &mut buffers, b"-NOGROUP No such key\r\n").unwrap();
        assert!(matches!(beginning.take_error(), Some(Error::GroupMissing { .. })));
        for (reply, code) in [(&b"-MOVED 1 h:1\r\n"[..], "MOVED"), (b"-LOADING soon\r\n", "LOADING")] {
            beginning.disconnected();
            asks(&mut beginning, &mut buffers, b"+OK\r\n").unwrap();
            assert_eq!(asks(&mut beginning, &mut buffers, reply).unwrap_err().code, code);
        }
    }

    #[test]
    fn a_lost_connection_is_begun_again_from_the_start() {
        let (mut beginning, mut buffers) = (beginning(1, true), Buffers::default());
        asks(&mut beginning, &mut buffers, b"+OK\r\n").unwrap();
        beginning.request(false, &mut buffers);
        beginning.disconnected();
        assert_eq!((beginning.awaits_reply(), beginning.step), (false, Step::Rights(0)));
        assert_eq!(asks(&mut beginning, &mut Buffers::default(), b"*1\r\n:1\r\n").unwrap(), 6);
        let fault = beginning.received(0, &mut Buffers::default());
        assert!(fault.is_ok_and(|is_answered| !is_answered) && code::is_away(code::EOF));
    }
}
