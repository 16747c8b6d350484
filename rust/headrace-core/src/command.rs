//! The commands that carry messages, as bytes, and their replies. No I/O.

mod expect;
mod reply;
pub(crate) mod script;
mod script_reply;
mod status_reply;
mod stream_key;
mod wait_reply;
pub(crate) mod xadd;
mod xadd_reply;

pub use crate::resp::EntryId;
pub(crate) use expect::Expect;
pub(crate) use reply::{Reply, ScriptReply};
pub use script::marker_key;
pub(crate) use script_reply::MAX_RUN;
pub(crate) use stream_key::stream_key;
pub(crate) use xadd_reply::NextId;
