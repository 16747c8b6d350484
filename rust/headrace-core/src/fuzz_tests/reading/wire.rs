//! A connection between a session and the server: what is on its way in both directions.

use std::collections::VecDeque;

use super::super::chance::Chance;
use super::history::{History, Time};
use super::lie::Liar;
use super::server::{Reply, Said, Server, command};

#[derive(Debug, Default)]
pub struct Wire {
    pub is_open: bool,
    /// What the server has received of the next command.
    received: Vec<u8>,
    commands: VecDeque<Vec<Vec<u8>>>,
    /// What the session has not received.
    replies: VecDeque<u8>,
    /// How many bytes lie before the end of each reply, when it was made, and what it says.
    said: VecDeque<(usize, Time, Vec<Said>)>,
    /// What the server of this connection is.
    pub server: Server,
}

impl Wire {
    pub fn new(server: Server) -> Self {
        Self { is_open: true, server, ..Self::default() }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.received.extend_from_slice(bytes);
        while let Some((words, length)) = command(&self.received) {
            self.received.drain(..length);
            self.commands.push_back(words);
        }
    }

    /// Lets the server answer the next command. Returns whether it did. `is_over`: it waits for entries no longer.
    pub fn answer(&mut self, history: &History, is_over: bool, liar: &mut Liar) -> bool {
        let Some(words) = self.commands.front() else { return false };
        let Some(Reply { bytes, at, said }) = self.server.answer(history, words, is_over, liar) else { return false };
        self.commands.pop_front();
        self.replies.extend(bytes);
        self.said.push_back((self.replies.len(), at, said));
        true
    }

    pub fn has_replies(&self) -> bool {
        !self.replies.is_empty()
    }

    /// Moves some bytes to the session: at most what fits into `space`. Returns their number, and what replies that have arrived
    /// completely say.
    pub fn deliver(&mut self, space: &mut [u8], most: usize) -> (usize, Vec<(Time, Said)>) {
        let count = most.min(space.len()).min(self.replies.len());
        for (to, byte) in space.iter_mut().zip(self.replies.drain(..count)) {
            *to = byte;
        }
        let mut arrived = Vec::new();
        for (end, _, _) in &mut self.said {
            *end = end.saturating_sub(count);
        }
        while self.said.front().is_some_and(|(end, _, _)| *end == 0) {
            let Some((_, at, said)) = self.said.pop_front() else { break };
            arrived.extend(said.into_iter().map(|said| (at, said)));
        }
        (count, arrived)
    }

    /// The number of bytes of the next delivery.
    pub fn piece(&self, chance: &mut Chance) -> usize {
        match chance.below(4) {
            0 => 1 + chance.below(8),
            1 => 1 + chance.below(self.replies.len().max(1)),
            _ => self.replies.len(),
        }
    }
}
