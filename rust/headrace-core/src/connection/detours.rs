//! Where a node sent commands that it refused, until nothing is in flight and these redirects are followed. No I/O.

use std::collections::BTreeMap;

use crate::cluster::Redirect;

/// Where a node sent commands: all of a route, or with ASK only those of one stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Detour {
    /// The route of the commands: the number of their slot, or that of a stream that is on another node than its slot.
    pub(crate) route: u16,
    /// The stream, after ASK: others of its slot may not have moved.
    pub(crate) asked: Option<Box<[u8]>>,
    pub(crate) redirect: Redirect,
}

/// Some commands: those of a route, or of one of its streams.
pub(super) type Commands = (u16, Option<Box<[u8]>>);

/// The detours of a round. The node's last redirect counts.
#[derive(Debug, Default)]
pub(super) struct Detours(BTreeMap<Commands, Redirect>);

impl Detours {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn note(&mut self, detour: Detour) {
        self.forget(&detour);
        self.0.insert((detour.route, detour.asked), detour.redirect);
    }

    /// Forgets earlier redirects of the same commands.
    pub(super) fn forget(&mut self, detour: &Detour) {
        let of_route = (detour.route, None);
        let had_route = self.0.remove(&of_route).is_some();
        if detour.asked.is_none() && !had_route {
            self.0.retain(|(route, _), _| *route != detour.route);
        }
    }

    pub(super) fn take(&mut self) -> Vec<Detour> {
        let noted = std::mem::take(&mut self.0).into_iter();
        noted.map(|((route, asked), redirect)| Detour { route, asked, redirect }).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn detour(line: &str, stream: &str) -> Detour {
        let redirect = Redirect::read(line.as_bytes()).unwrap();
        Detour { route: redirect.slot, asked: redirect.is_ask.then(|| stream.as_bytes().into()), redirect }
    }

    #[test]
    fn the_last_redirect_counts() {
        let mut detours = Detours::default();
        let said = [
            detour("ASK 1 h:1", "a"),
            detour("ASK 1 h:1", "b"),
            detour("MOVED 2 h:1", "c"),
            detour("ASK 1 h:2", "a"),
            detour("MOVED 1 h:3", "a"),
            detour("MOVED 1 h:4", "b"),
            detour("ASK 2 h:5", "c"),
            detour("ASK 2 h:6", "d"),
        ];
        said[..4].iter().for_each(|one| detours.note(one.clone()));
        assert_eq!(detours.take(), [said[3].clone(), said[1].clone(), said[2].clone()]);
        for one in &said {
            detours.note(one.clone());
        }
        assert_eq!(detours.take(), said[5..]);
        assert!(detours.is_empty());
    }
}
