//! A server's description of a stream, and the facts that follow from it: the lag of a group or a reader, and the entries that
//! were removed before they were read. No I/O and no clock.
//!
//! `Reader`, [`inspect`](crate::inspect()), the planner of a Spark read and the command `headrace inspect` all use these rules.

mod info;
mod lag;
mod loss;

pub use info::StreamInfo;
pub use lag::GroupPosition;
pub use loss::Loss;
pub(crate) use loss::{NOT_COUNTED, ReadSince};
