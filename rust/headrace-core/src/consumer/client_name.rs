//! The name of a consumer's connections, as `CLIENT LIST` shows it.

use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use redis::Value;

use crate::random;

/// `headrace-consumer:group/consumer/token`. The token distinguishes the connections of this consumer, including those that its
/// server has not ended yet, from those of another consumer with the same name.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ClientName {
    /// The part that all consumers of the same name share.
    shared: String,
    own: String,
}

impl ClientName {
    /// Percent-encodes the names of the group and the consumer: a server refuses some characters.
    pub(super) fn new(group: &[u8], consumer: &[u8]) -> Self {
        let part = |name: &[u8]| percent_encode(name, NON_ALPHANUMERIC).to_string();
        let shared = format!("headrace-consumer:{}/{}", part(group), part(consumer));
        let own = format!("{shared}/{}", random::token());
        Self { shared, own }
    }

    pub(super) fn own(&self) -> &str {
        &self.own
    }

    /// Whether the reply to `CLIENT LIST` shows another consumer with this name. False for any other reply.
    pub(super) fn has_namesake(&self, clients: &Value) -> bool {
        let Value::BulkString(clients) = clients else { return false };
        String::from_utf8_lossy(clients).lines().any(|client| self.is_of_namesake(client))
    }

    /// Whether a line of `CLIENT LIST` belongs to another consumer with this name, of any version of headrace.
    fn is_of_namesake(&self, client: &str) -> bool {
        let name = client.split(' ').find_map(|field| field.strip_prefix("name="));
        name.filter(|name| *name != self.own)
            .and_then(|name| name.strip_prefix(&*self.shared))
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(consumer: &str) -> ClientName {
        ClientName::new(b"g/1", consumer.as_bytes())
    }

    #[test]
    fn a_namesake_is_another_consumer_of_the_same_name() {
        let mine = name("c 1");
        let line = |name: &str| format!("id=7 addr=127.0.0.1:1 name={name} age=1 db=0");
        assert!(!mine.is_of_namesake(&line(mine.own())), "an earlier connection of the same consumer");
        assert!(mine.is_of_namesake(&line(name("c 1").own())));
        assert!(mine.is_of_namesake(&line("headrace-consumer:g%2F1/c%201")), "a version without tokens");
        for other in [name("c 11").own(), name("c").own(), "headrace-consumer:g%2F1/c%2011", "c%201", ""] {
            assert!(!mine.is_of_namesake(&line(other)), "{other}");
        }
        let clients = [line(mine.own()), line(name("c 1").own())].map(|client| client + "\n");
        assert!(mine.has_namesake(&Value::BulkString(clients.concat().into())));
        assert!(!mine.has_namesake(&Value::BulkString(clients[0].clone().into())));
        assert!(!mine.has_namesake(&Value::Nil));
    }
}
