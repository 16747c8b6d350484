//! Reads entries of streams: what to ask for, what the replies mean, and what was lost.
//!
//! [`session`] decides, without I/O and clock; [`crate::reader`] drives its socket.

mod batch;
mod info;
mod input;
mod loss;
mod paging;
mod position;
mod range;
mod request;
mod session;
mod sink;
mod stream;

pub use batch::ReadBatch;
pub(crate) use paging::Paging;
pub(crate) use position::Position;
pub(crate) use range::{End, Start};
pub(crate) use session::{Session, SessionOptions};
pub(crate) use stream::Stream;
