//! A connection between a session and a model of a server: what is on its way in both directions.

use std::collections::VecDeque;
use std::io::Read as _;

use super::chance::Chance;
use super::reply::command;

/// `S`: the server at the other end. `R`: what a reply says, which is known once all of it has arrived.
#[derive(Debug)]
pub struct Wire<S, R> {
    pub is_open: bool,
    pub server: S,
    /// What the server has received of the next command.
    received: Vec<u8>,
    commands: VecDeque<Vec<Vec<u8>>>,
    /// What the session has not received.
    replies: VecDeque<u8>,
    /// How many bytes lie before the end of each reply, and what it says.
    said: VecDeque<(usize, R)>,
}

impl<S, R> Wire<S, R> {
    pub fn new(is_open: bool, server: S) -> Self {
        let (commands, replies, said) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        Self { is_open, server, received: Vec::new(), commands, replies, said }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.received.extend_from_slice(bytes);
        while let Some((words, length)) = command(&self.received) {
            self.received.drain(..length);
            self.commands.push_back(words);
        }
    }

    /// Lets the server answer the next command. Returns whether it did: it may wait for entries.
    pub fn answer(&mut self, answer: impl FnOnce(&mut S, &[Vec<u8>]) -> Option<(Vec<u8>, R)>) -> bool {
        let Some(words) = self.commands.front() else { return false };
        let Some((bytes, said)) = answer(&mut self.server, words) else { return false };
        self.commands.pop_front();
        self.replies.extend(bytes);
        self.said.push_back((self.replies.len(), said));
        true
    }

    /// The commands that the server has received and not executed.
    pub fn into_commands(self) -> VecDeque<Vec<Vec<u8>>> {
        self.commands
    }

    pub fn has_replies(&self) -> bool {
        !self.replies.is_empty()
    }

    /// Moves some bytes to the session: at most what fits into `space`. Returns their number, and what replies that have arrived
    /// completely say.
    pub fn deliver(&mut self, space: &mut [u8], most: usize) -> (usize, Vec<R>) {
        let count = most.min(space.len()).min(self.replies.len());
        self.replies.read_exact(&mut space[..count]).unwrap();
        let mut arrived = Vec::new();
        for (end, _) in &mut self.said {
            *end = end.saturating_sub(count);
        }
        while self.said.front().is_some_and(|(end, _)| *end == 0) {
            arrived.extend(self.said.pop_front().map(|(_, said)| said));
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
