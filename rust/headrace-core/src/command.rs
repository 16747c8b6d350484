//! The commands that carry messages, as bytes, and their replies. No I/O.

mod reply;
pub(crate) mod script;
mod script_reply;
mod wait_reply;
pub(crate) mod xadd;
mod xadd_reply;

pub(crate) use reply::{Expect, Reply};
pub(crate) use script_reply::{MAX_RUN, ScriptReply};
pub use xadd_reply::EntryId;
pub(crate) use xadd_reply::NextId;
