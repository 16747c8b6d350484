//! The names of options in other clients: redis-py, valkey-glide, the Kafka clients.

use super::option::OptionSpec;

/// What stands for an option of another client.
#[derive(Debug, Clone, Copy)]
enum Here {
    /// An option, and the class that takes it.
    Option(&'static str, &'static str),
    /// No option; what to do, in words.
    Words(&'static str),
}
use Here::{Option as Opt, Words};

const OF_ENDPOINT: &str = "an Endpoint";
const OF_DISPATCHER: &str = "a Dispatcher";
const OF_READER: &str = "a Reader";
const OF_CONSUMER: &str = "a Consumer";
const OWN_CONNECTIONS: &str = "each dispatcher, reader and consumer has connections of its own, and replaces lost ones";

/// In lower case, with `_` for `.` and `-`.
const OTHERS: &[(&[&str], Here)] = &[
    (&["ssl", "use_ssl", "use_tls", "security_protocol"], Opt("tls", OF_ENDPOINT)),
    (&["ssl_ca_certs", "ssl_ca_data", "ssl_ca_path", "ssl_cafile", "ssl_ca_location"], Opt("tls_ca_cert", OF_ENDPOINT)),
    (&["ssl_certfile", "ssl_certificate_location"], Opt("tls_cert", OF_ENDPOINT)),
    (&["ssl_keyfile", "ssl_key_location"], Opt("tls_key", OF_ENDPOINT)),
    (&["ssl_cert_reqs", "ssl_check_hostname"], Opt("tls_insecure_skip_verify", OF_ENDPOINT)),
    (&["socket_timeout", "request_timeout", "request_timeout_ms"], Opt("command_timeout", OF_ENDPOINT)),
    (&["socket_connect_timeout", "connection_timeout"], Opt("connect_timeout", OF_ENDPOINT)),
    (&["unix_socket_path"], Opt("unix_socket", OF_ENDPOINT)),
    (&["startup_nodes", "addresses", "bootstrap_servers", "sentinels"], Opt("nodes", OF_ENDPOINT)),
    (&["service_name"], Opt("sentinel_master", OF_ENDPOINT)),
    (&["stream", "topic"], Opt("stream_key", OF_ENDPOINT)),
    (&["approximate"], Opt("maxlen_approximate", OF_ENDPOINT)),
    (&["url"], Words("Endpoint.from_url(url) reads a URL")),
    (&["acks"], Opt("wait_replicas", OF_DISPATCHER)),
    (&["enable_idempotence", "transactional_id"], Opt("exactly_once", OF_DISPATCHER)),
    (&["buffer_memory", "queue_buffering_max_kbytes"], Opt("window_max_bytes", OF_DISPATCHER)),
    (
        &["max_in_flight", "max_in_flight_requests_per_connection", "queue_buffering_max_messages"],
        Opt("window_max_entries", OF_DISPATCHER),
    ),
    (&["retries", "max_retries", "retry_on_error", "retry_on_timeout"], Opt("retry", OF_DISPATCHER)),
    (&["auto_offset_reset", "last_id", "offset"], Opt("start", OF_READER)),
    (&["count", "max_poll_records"], Opt("batch_rows", OF_READER)),
    (&["group_id", "groupname", "group_name"], Opt("group", OF_CONSUMER)),
    (&["consumername", "consumer_name", "client_id", "group_instance_id"], Opt("consumer", OF_CONSUMER)),
    (&["min_idle_time"], Opt("min_idle", OF_CONSUMER)),
    (&["noack", "enable_auto_commit"], Opt("ack", OF_CONSUMER)),
    (
        &["decode_responses", "encoding", "encoding_errors"],
        Words("values are bytes; a Reader's fields give them types"),
    ),
    (&["max_connections", "connection_pool", "single_connection_client"], Words(OWN_CONNECTIONS)),
    (&["health_check_interval", "socket_keepalive", "socket_keepalive_options"], Words(OWN_CONNECTIONS)),
    (&["protocol", "resp"], Words("RESP2 is the only protocol")),
];

/// What the option `name` of another client is here, as the end of a sentence; `None` for a name that none of them has.
pub(super) fn explained(specs: &[OptionSpec], name: &str) -> Option<String> {
    let name = name.to_lowercase().replace(['.', '-'], "_");
    let (_, here) = OTHERS.iter().find(|(names, _)| names.contains(&name.as_str()))?;
    Some(match here {
        Opt(option, _) if specs.iter().any(|spec| spec.name == *option) => format!("here it is '{option}'"),
        Opt(option, owner) => format!("here it is '{option}' of {owner}"),
        Words(words) => (*words).to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::OPTIONS;

    #[test]
    fn a_name_of_another_client_is_explained() {
        let said = |name| explained(OPTIONS, name);
        assert_eq!(said("ssl").as_deref(), Some("here it is 'tls'"));
        assert_eq!(said("bootstrap.servers").as_deref(), Some("here it is 'nodes'"));
        assert_eq!(said("group.id").as_deref(), Some("here it is 'group' of a Consumer"));
        assert_eq!(said("protocol").as_deref(), Some("RESP2 is the only protocol"));
        assert_eq!(said("tsl"), None);
    }

    #[test]
    fn the_names_are_those_of_others_and_their_options_exist() {
        for (names, here) in OTHERS {
            for name in *names {
                assert!(OPTIONS.iter().all(|spec| spec.name != *name), "{name}");
                assert_eq!(*name, name.to_lowercase().replace(['.', '-'], "_"));
            }
            if let Opt(option, OF_ENDPOINT) = here {
                assert!(OPTIONS.iter().any(|spec| spec.name == *option), "{option}");
            }
        }
    }
}
