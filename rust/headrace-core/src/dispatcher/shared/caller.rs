//! A call that waits for something other than the outcome of its own message.

use std::thread::{self, Thread};

/// What a call waits for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Goal {
    /// Room for a message. `is_full`: the window had none, so there must be ample room.
    Room { is_full: bool },
    /// The outcomes of the messages that were taken before, `taken` in all.
    Outcomes { taken: u64 },
}

/// A call that waits, and its thread.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) number: u64,
    pub(super) goal: Goal,
    thread: Thread,
}

impl Caller {
    pub(super) fn new(number: u64, goal: Goal) -> Self {
        Self { number, goal, thread: thread::current() }
    }

    /// Makes the call look again whether its goal is reached, or whether to drive.
    pub(super) fn wake(&self) {
        self.thread.unpark();
    }
}
