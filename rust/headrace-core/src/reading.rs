//! Reads the entries of streams: the requests, the meaning of the replies, and the loss of entries.
//!
//! [`session`] decides, without I/O or a clock; a [`pool`] moves its bytes.

mod assignment;
mod attempt;
mod backward;
mod batch;
mod buffers;
mod channel;
mod columns;
mod errors;
mod exchange;
mod info;
mod input;
mod lag;
mod link;
mod members;
mod outage;
mod pages;
mod paging;
mod pass;
mod pool;
mod position;
mod range;
mod request;
mod session;
mod sink;
mod slots;
mod standing;
mod stream;
mod trouble;

pub(crate) use assignment::MAX_CONNECTIONS;
pub(crate) use attempt::{Attempted, Prepare};
pub(crate) use backward::{Backward, BackwardSession};
pub use batch::ReadBatch;
pub(crate) use buffers::{Buffers, Read};
pub(crate) use channel::Channel;
pub(crate) use columns::{MAX_BATCH_ROWS, columns, read_body, read_metadata};
pub(crate) use errors::{is_of_stream, protocol, stream_refused};
pub(crate) use exchange::Exchange;
pub(crate) use link::{Link, failed};
pub(crate) use members::{Asked, Members};
pub(crate) use outage::Outage;
pub(crate) use pages::{Pages, Taken};
pub(crate) use paging::Paging;
pub(crate) use pool::{Advance, Pool};
pub(crate) use position::{Place, Position};
pub(crate) use range::{End, Start, first_backward, last_backward};
pub(crate) use session::{Session, SessionOptions};
pub(crate) use slots::{by_slot, endpoint_of};
pub(crate) use standing::{Standing, TRIES_EVERY};
pub(crate) use stream::Stream;
pub(crate) use trouble::Trouble;
