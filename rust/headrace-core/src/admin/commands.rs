//! Arbitrary commands for tools: each goes to the server that has its key.

use redis::Value;

use super::command::Command;
use super::kept_connections::KeptConnections;
use super::session::Target;
use crate::cluster::Node;
use crate::contain::contain;
use crate::endpoint::Endpoint;
use crate::error::{Error, Fault, Result};
use crate::net::{ConnectError, ConnectLog, NotedStep, Watch};
use crate::resp::outline::WHOLE;

/// A command with its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The name of the command and its arguments, in order.
    pub words: Vec<Vec<u8>>,
    /// The key that determines which node of a cluster gets the command; `None` means the stream of the endpoint.
    pub key: Option<Vec<u8>>,
    /// Whether the command changes anything. If so, it is never sent again over another connection.
    pub writes: bool,
}

/// The reply to a command.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// A null.
    Nil,
    /// An integer.
    Int(i64),
    /// A simple or a bulk string.
    Bytes(Vec<u8>),
    /// An array.
    List(Vec<Answer>),
    /// An error reply, as [`Error::Command`].
    Refused(Error),
}

/// The result of a connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The steps that were reached.
    pub steps: Vec<NotedStep>,
    /// The reason for a failure: an error code and a sentence.
    pub failure: Option<(String, String)>,
}

/// Sends commands over connections that it keeps open: a single one, or one to each node of a cluster that was asked.
pub struct Commands {
    connections: KeptConnections,
}

impl Commands {
    /// Creates the object without opening a connection.
    pub fn new(endpoint: &Endpoint) -> Self {
        Self { connections: KeptConnections::new(endpoint).with_depth(WHOLE) }
    }

    /// Sends all commands to this node, even if it does not have their streams.
    pub fn to_node(endpoint: &Endpoint, host: String, port: u16) -> Self {
        Self::to(endpoint, Target::Node(Node { host, port }))
    }

    /// Sends all commands to one sentinel, given by its index in the list of the endpoint.
    pub fn to_sentinel(endpoint: &Endpoint, place: usize) -> Self {
        Self::to(endpoint, Target::Sentinel(place))
    }

    fn to(endpoint: &Endpoint, target: Target) -> Self {
        Self { connections: KeptConnections::new(endpoint).with_depth(WHOLE).to(target) }
    }

    /// Reconnects to the server that has the stream of the endpoint, and records the steps.
    ///
    /// # Errors
    /// Fails if an option of the endpoint is invalid, or if the watch ended the wait.
    pub fn connect(&mut self, watch: &mut dyn Watch) -> Result<Attempt> {
        let mut log = ConnectLog::new(watch);
        let connected = contain(|| self.connections.connect(&mut log));
        let steps = log.into_steps();
        match connected {
            Ok(Ok(Ok(()))) => Ok(Attempt { steps, failure: None }),
            Ok(Ok(Err(ConnectError::Fault(fault)))) => {
                Ok(Attempt { steps, failure: Some((fault.code.into_owned(), fault.message)) })
            }
            Ok(Ok(Err(ConnectError::Interrupted))) => Err(Error::Interrupted),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(Error::Internal { message: "connecting ended".to_owned() }),
        }
    }

    /// Returns the reply to each command, in order. All commands for a node are sent in one round trip.
    ///
    /// # Errors
    /// Fails if the server was not reached, or was lost. If a command writes, it is then unknown whether it took effect.
    pub fn call(&mut self, requests: &[Request], watch: &mut dyn Watch) -> Result<Vec<Answer>> {
        let commands: Vec<_> = requests.iter().map(Request::to_command).collect();
        let asked = contain(|| {
            self.connections.ask_all(&commands, watch, |command, reply| match reply.map(Answer::read) {
                Ok(answer) => answer.ok_or_else(|| command.misunderstood()),
                // A refusal for a wrong type must name the key.
                Err(fault) if fault.code == "WRONGTYPE" => Ok(Answer::Refused(command.refused(&fault))),
                Err(fault) => Ok(Answer::Refused(Error::refusal(&fault))),
            })
        });
        asked.unwrap_or_else(|_| Err(Error::Internal { message: "the command ended".to_owned() }))
    }

    /// Closes the connections. The next call opens new ones.
    pub fn close(&mut self) {
        self.connections.close();
    }
}

impl Request {
    fn to_command(&self) -> Command {
        Command::of_words(&self.words, self.key.as_deref(), self.writes)
    }
}

impl Answer {
    /// Converts a value; `None` for a type that RESP2 does not have.
    fn read(value: Value) -> Option<Self> {
        Some(match value {
            Value::Nil => Self::Nil,
            Value::Int(number) => Self::Int(number),
            Value::BulkString(bytes) => Self::Bytes(bytes),
            Value::SimpleString(text) => Self::Bytes(text.into_bytes()),
            Value::Okay => Self::Bytes(b"OK".to_vec()),
            Value::Array(values) => Self::List(values.into_iter().map(Self::read).collect::<Option<_>>()?),
            // In the reply to EXEC.
            Value::ServerError(error) => {
                let line = [error.code(), error.details().unwrap_or_default()].join(" ");
                Self::Refused(Error::refusal(&Fault::from_reply(line.as_bytes())))
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_resp2_reply_type_is_read() {
        let value = Value::Array(vec![
            Value::Nil,
            Value::Int(-1),
            Value::BulkString(b"\xff".to_vec()),
            Value::SimpleString("PONG".to_owned()),
            Value::Okay,
        ]);
        let expected = [
            Answer::Nil,
            Answer::Int(-1),
            Answer::Bytes(b"\xff".to_vec()),
            Answer::Bytes(b"PONG".to_vec()),
            Answer::Bytes(b"OK".to_vec()),
        ];
        assert_eq!(Answer::read(value), Some(Answer::List(expected.to_vec())));
        assert_eq!(Answer::read(Value::Array(vec![Value::Double(0.5)])), None);
    }
}
