//! Leaves out streams that cannot be read, so that the others continue.

use super::super::beginning::group_missing;
use super::super::work::{Work, refusal};
use super::{Ask, Ready, Session};
use crate::error::{Fault, code};
use crate::reading::{Standing, is_of_stream, stream_refused};

impl Session {
    /// Handles the server's refusal of the command whose reply is due. Returns a fault that concerns no single stream.
    pub(super) fn refused(&mut self, fault: Fault) -> Result<(), Fault> {
        // Redis before 7.2, if the stream was deleted while the server waited. Other messages with this code mean something else.
        let is_deleted = fault.code == "UNBLOCKED" && fault.message.contains("no longer exists");
        let is_of_stream = is_of_stream(&fault) || fault.code == "NOGROUP" || is_deleted;
        match self.in_flight.front() {
            // The server did not refuse: its reply cannot be read.
            _ if fault.code == code::PROTOCOL => return Err(fault),
            Some(Ask::Work(work)) => {
                let work = work.clone();
                self.refused_work(&work, &fault)?;
            }
            _ if !is_of_stream => return Err(fault),
            Some(Ask::Pending { stream, .. }) => self.refuse(*stream, &fault.of_command("XPENDING")),
            Some(Ask::Claim { stream }) => self.refuse(*stream, &fault.of_command("XAUTOCLAIM")),
            Some(Ask::Read { stream, .. } | Ask::New { stream: Some(stream), block: None, .. }) => {
                self.refuse(*stream, &fault.of_command("XREADGROUP"));
            }
            Some(Ask::New { stream, .. }) => {
                let of = *stream;
                self.doubt(of);
            }
            None => return Err(fault),
        }
        Ok(())
    }

    fn refused_work(&mut self, work: &Work, fault: &Fault) -> Result<(), Fault> {
        match refusal(&self.streams[work.stream].key, work, fault)? {
            None => {
                self.known.forget();
                self.ledger().unsent(work.clone().after_unknown_script());
                self.shared.doze.added(false);
            }
            Some(error) => {
                let now = self.now;
                self.ledger().refused(work, error, now);
            }
        }
        Ok(())
    }

    /// Handles the refusal of a command about one stream. Once the server accepts the stream again, its pending entries come
    /// first.
    fn refuse(&mut self, at: usize, fault: &Fault) {
        self.push_batch(at);
        let stream = &mut self.streams[at];
        stream.is_behind = true;
        if self.options.acks {
            stream.recover_all();
        }
        if stream.standing.refuse() {
            let is_missing = fault.code == "NOGROUP";
            let error = if is_missing {
                group_missing(&stream.key, &self.options.names)
            } else {
                stream_refused(&stream.key, fault)
            };
            self.ready.push_back(Ready { stream: at, held: 0, result: Err(error) });
        }
    }

    /// Handles the refusal of a request for new entries that waited, or was for several streams: the refusal does not name the
    /// stream at fault, which may have moved to another node. The next request asks for each stream apart, and shows it.
    fn doubt(&mut self, of: Option<usize>) {
        self.ledger().reader_waits = false;
        for (at, stream) in self.streams.iter_mut().enumerate() {
            if of.is_none_or(|of| of == at) && stream.standing == Standing::Read {
                stream.standing = Standing::Suspect { is_known: false };
                stream.is_behind = true;
            }
        }
    }

    /// The greatest standing of the session's streams.
    pub(in crate::consumer) fn standing(&self) -> Standing {
        Standing::greatest(self.streams.iter().map(|stream| stream.standing))
    }

    /// Allows new requests for streams that the server refused; with `reports`, each that it still refuses is reported again.
    pub(in crate::consumer) fn try_again(&mut self, reports: bool) {
        self.streams.iter_mut().for_each(|stream| stream.standing.try_again(reports));
    }

    /// Stops reading a stream. Its entries that were read and not taken stay pending. Returns false if it was dropped before.
    pub(in crate::consumer) fn drop_stream(&mut self, at: usize) -> bool {
        let stream = &mut self.streams[at];
        if stream.standing == Standing::Dropped {
            return false;
        }
        stream.standing = Standing::Dropped;
        self.push_batch(at);
        let mut ledger = self.shared.ledger(self.place);
        self.ready.retain(|ready| {
            if ready.stream == at {
                ledger.forget(ready.held);
            }
            ready.stream != at
        });
        drop(ledger);
        self.check_alone();
        true
    }
}
