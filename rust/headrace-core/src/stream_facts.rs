//! What a server says about a stream, and what follows from it: how far a group or a reader is behind, and what was removed
//! before it was read. No I/O and no clock.
//!
//! `Reader`, [`inspect`](crate::inspect()), the planner of a Spark read and the command `headrace inspect` all use these rules.

mod info;
mod lag;
mod loss;

pub use info::StreamInfo;
pub use lag::GroupPosition;
pub use loss::Loss;
pub(crate) use loss::{NOT_COUNTED, ReadSince};
