//! Reads the entries of streams: what to ask for, what the replies mean, and what was lost.
//!
//! [`session`] decides, without I/O or a clock; [`crate::reader`] drives its socket.

mod assignment;
mod backward;
mod batch;
mod columns;
mod errors;
mod exchange;
mod info;
mod input;
mod lag;
mod link;
mod members;
mod outage;
mod outbox;
mod owners;
mod pages;
mod paging;
mod pass;
mod position;
mod range;
mod request;
mod rounds;
mod session;
mod sink;
mod slots;
mod standing;
mod stream;

pub(crate) use assignment::{Assignment, MAX_CONNECTIONS};
pub(crate) use backward::{Backward, BackwardSession};
pub use batch::ReadBatch;
pub(crate) use columns::{MAX_BATCH_ROWS, columns, read_body, read_metadata};
pub(crate) use errors::{is_of_stream, stream_refused};
pub(crate) use exchange::Exchange;
pub(crate) use input::Input;
pub(crate) use link::{Allowed, Link, Trouble, WATCH_EVERY, wait_for_more};
pub(crate) use members::{Asked, Members};
pub(crate) use outbox::Outbox;
pub(crate) use pages::{Pages, Taken};
pub(crate) use paging::Paging;
pub(crate) use pass::Pass;
pub(crate) use position::{Place, Position};
pub(crate) use range::{End, Start, first_backward, last_backward};
pub(crate) use rounds::{Round, Rounds};
pub(crate) use session::{Session, SessionOptions};
pub(crate) use slots::{by_slot, endpoint_of};
pub(crate) use standing::{Standing, TRIES_EVERY};
pub(crate) use stream::Stream;
