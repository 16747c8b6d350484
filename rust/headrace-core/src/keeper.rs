//! The keeper of leases: a thread, or a task of the caller's event loop, beside the one that reads. It has its own connection to
//! each server.

#[cfg(not(feature = "shuttle"))]
pub(crate) mod clock;
mod doze;
mod keeping;
mod kept;
mod line;
mod members;
mod on_loop;
pub(crate) mod sync;

#[cfg(feature = "shuttle")]
pub(crate) use sync::clock;

use crate::net::{NeverInterrupted, block_on};

pub(crate) use doze::Doze;
pub(crate) use keeping::{Keeping, LONGEST, PATIENCE};
pub(crate) use kept::Kept;
pub(crate) use on_loop::LoopKeeper;
use sync::{Builder, JoinHandle};

/// The thread of a keeper.
#[derive(Debug)]
pub(crate) struct Keeper {
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Starts the thread.
    pub(crate) fn start<K: Kept + 'static>(keeping: Keeping<K>) -> std::io::Result<Self> {
        let run = move || block_on(keeping.run(&mut NeverInterrupted));
        Builder::new().name("headrace-keeper".to_owned()).spawn(run).map(|thread| Self { thread: Some(thread) })
    }

    /// Waits for the end of the thread, which has been asked to end.
    pub(crate) fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            // The panic hook has already printed any panic of the thread.
            let _ = thread.join();
        }
    }

    /// The thread belongs to the parent: this process has none.
    pub(crate) fn forget(&mut self) {
        self.thread = None;
    }
}
