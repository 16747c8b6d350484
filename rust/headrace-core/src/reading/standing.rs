//! The standing of a stream: one that cannot be read does not stop the others.

use std::time::Duration;

/// How often the server is asked again about streams that it refused.
pub(crate) const TRIES_EVERY: Duration = Duration::from_secs(1);

/// Whether a stream is read. Of several, the greatest counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum Standing {
    /// The caller has dropped the stream.
    Dropped,
    /// The stream is not the one that was read before, and the caller knows.
    Replaced,
    /// The server refuses its commands, and the caller knows. The server may change its mind.
    Refused,
    /// The server may refuse its commands: a command about this stream alone shows it. `is_known`: the caller knows of an earlier
    /// refusal.
    Suspect { is_known: bool },
    #[default]
    Read,
}

impl Standing {
    /// The greatest of all; that of no stream is the default. One stream that is read decides: the others are not looked at.
    pub(crate) fn greatest(all: impl IntoIterator<Item = Self>) -> Self {
        let mut greatest = None;
        for standing in all {
            greatest = greatest.max(Some(standing));
            if standing == Self::Read {
                break;
            }
        }
        greatest.unwrap_or_default()
    }

    /// Whether the other streams are read without this one.
    pub(crate) fn is_left_out(self) -> bool {
        matches!(self, Self::Dropped | Self::Replaced | Self::Refused)
    }

    pub(crate) fn is_suspect(self) -> bool {
        matches!(self, Self::Suspect { .. })
    }

    /// Ends a suspicion: the server accepted a command about the stream.
    pub(crate) fn accept(&mut self) {
        if self.is_suspect() {
            *self = Self::Read;
        }
    }

    /// Leaves the stream out: the server refused a command about it. Returns whether the caller must be told.
    pub(crate) fn refuse(&mut self) -> bool {
        let is_news = matches!(self, Self::Read | Self::Suspect { is_known: false });
        if !self.is_left_out() {
            *self = Self::Refused;
        }
        is_news
    }

    /// Allows new requests for the stream, if the server refused it; with `reports`, also if the stream was replaced, and the
    /// caller is told again.
    pub(crate) fn try_again(&mut self, reports: bool) {
        if *self == Self::Refused || (reports && *self == Self::Replaced) {
            *self = Self::Suspect { is_known: !reports };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_reported_once() {
        let mut standing = Standing::Read;
        assert!(standing.refuse() && standing.is_left_out());
        standing.try_again(false);
        assert!(standing.is_suspect() && !standing.is_left_out());
        assert!(!standing.refuse() && standing.is_left_out());
        standing.try_again(true);
        assert!(standing.refuse() && !standing.refuse());
    }

    #[test]
    fn the_greatest_of_several_counts() {
        use Standing::{Dropped, Read, Refused, Replaced};
        for (all, greatest) in
            [(&[][..], Read), (&[Dropped, Refused, Replaced], Refused), (&[Dropped, Read, Refused], Read)]
        {
            assert_eq!(Standing::greatest(all.iter().copied()), greatest);
        }
    }

    #[test]
    fn a_dropped_stream_stays_dropped() {
        let mut standing = Standing::Dropped;
        standing.try_again(false);
        standing.try_again(true);
        assert!(!standing.refuse());
        assert_eq!(standing, Standing::Dropped);
        let mut replaced = Standing::Replaced;
        replaced.try_again(false);
        assert_eq!(replaced, Standing::Replaced, "the server cannot bring it back");
    }
}
