"""Options of endpoints and dispatchers, from the tables of the core: tools/write_tables.py writes them."""

# fmt: off
# ruff: noqa: E501

__all__ = ["DISPATCHER", "PRODUCER", "SERVER", "STREAM"]

#: The name of each option, whether it is a boolean, its default if it has one, and what it means.
SERVER: tuple[tuple[str, bool, str | None, str], ...] = (
    ("host", False, None, "Name or IP address of the server; IPv6 with or without brackets. One of host, unix_socket and nodes is required."),
    ("port", False, "6379", "TCP port. The process-wide default takes precedence over this one."),
    ("unix_socket", False, None, "Path of the server's Unix socket, at most 107 bytes (macOS: 103), instead of host. Not with port or tls."),
    ("topology", False, "auto", "What host or nodes are: 'single', one server; 'cluster', nodes of a cluster, which say where the stream is; 'sentinel', sentinels, which name the server. With 'auto', nodes are sentinels if sentinel_master is given, otherwise nodes of a cluster; host is a node of a cluster if it says so in its reply to HELLO at the first connect, otherwise a single server."),
    ("nodes", False, None, "The nodes to ask, instead of host: 'host' or 'host:port' each. For a cluster, any of its nodes, port 6379 by default; the others are found through them. With sentinel_master, the sentinels that know the server, port 26379 by default. They are asked in this order, starting with the one that answered last."),
    ("node_map", False, None, "Where to connect for the addresses that the nodes of a cluster show, behind NAT or forwarded ports: {'10.0.0.1:6379': 'proxy:7001'}, or as text '10.0.0.1:6379=proxy:7001,…'. Addresses that are not in it are used as they are, and so are those of host and nodes. With TLS the certificate must contain the name to connect to."),
    ("max_redirects", False, "5", "How many times in a row a message is sent to another node of a cluster because the last one does not have its stream, or no longer has it. A message that needs more fails with MOVED or ASK."),
    ("sentinel_master", False, None, "Name of the master in the configuration of the sentinels. Each connection goes to the server that they name, if that server says that it is a master."),
    ("sentinel_poll", False, "1", "How often a sentinel is asked, while messages are in flight, whether the server is still the master. If it is not, the connection ends (code SWITCHED), and sending continues with the new master."),
    ("sentinel_username", False, None, "ACL user for the sentinels. Needs one of sentinel_password, sentinel_password_env, sentinel_password_file."),
    ("sentinel_password_env", False, None, "Environment variable that holds the sentinels' password, like password_env."),
    ("sentinel_password_file", False, None, "File that holds the sentinels' password, like password_file."),
    ("sentinel_tls", True, "false", "Whether to use TLS with the sentinels: by default as with the server, and with the same certificates, unless one of the options below is given."),
    ("sentinel_tls_ca_cert", False, None, "The only CA certificates to trust for sentinels, like tls_ca_cert. Needs TLS with the sentinels, as do the options below."),
    ("sentinel_tls_cert", False, None, "The client's certificate chain for sentinels, like tls_cert."),
    ("sentinel_tls_key", False, None, "The private key of sentinel_tls_cert."),
    ("sentinel_tls_server_name", False, None, "Name that the sentinels' certificates must have, instead of the hosts in nodes."),
    ("db", False, "0", "Number of the database: SELECT, which is not sent for 0. Servers have 16 databases by default. The process-wide default takes precedence over this one."),
    ("username", False, None, "ACL user, Redis 6.0 and later: AUTH then has two arguments. Needs one of password, password_env, password_file."),
    ("password_env", False, None, "Environment variable that holds the password, read at each connect."),
    ("password_file", False, None, "File that holds the password (at most 64 KiB), read at each connect. One line break at its end is removed, as with password_env."),
    ("connect_timeout", False, "5", "Longest time for connecting, from name resolution to the last reply of the handshake. The process-wide default takes precedence over this one."),
    ("command_timeout", False, "30", "Longest wait for a reply, or for the next 4 KiB of one. The process-wide default takes precedence over this one."),
    ("tls", True, "false", "Whether to use TLS, 1.2 or later, and check the server's certificate and its name. The name must be a subject alternative name, of type IP if host is an address."),
    ("tls_ca_cert", False, None, "The only CA certificates to trust, instead of the system's. A path is checked immediately, and read at each connect. Needs tls, as do the options below."),
    ("tls_cert", False, None, "The client's certificate chain, if the server asks for one. Needs tls_key."),
    ("tls_key", False, None, "The private key of tls_cert, not encrypted."),
    ("tls_server_name", False, None, "Name that the server's certificate must have, instead of host."),
    ("tls_insecure_skip_verify", True, "false", "Whether to accept any certificate, of any name and age: for a test server at most. tls is still required. Not with tls_ca_cert or tls_server_name, and not in a URL."),
    ("key_field", False, None, "Name of the field in which an entry keeps the key that determined its shard, so that readers know it: the argument key, or the column shard_key. Messages without a key do not have it. Needs shards. By default keys are not kept."),
)
STREAM: tuple[tuple[str, bool, str | None, str], ...] = (
    ("shards", False, None, "Number of streams that messages are spread over, for the nodes of a cluster: the shards stream_key:0, stream_key:1 and so on. Messages with equal keys go to the same one. The number can never change: see shards. By default there is one stream, with the key itself."),
    ("shard_hash", False, "murmur2", "How the shard of a key is determined: by murmur2 as in Kafka's Java client, or by crc32 as in librdkafka. Needs shards."),
    ("shard_names", False, "plain", "How shards are named: plain is stream_key:0 and so on; spread is stream_key:{tag} with tags that divide the slots of a cluster evenly. Needs shards."),
)
PRODUCER: tuple[tuple[str, bool, str | None, str], ...] = (
    ("consumer_group", False, None, "Consumer group to create at each connect if none of that name exists, beginning with new entries: XGROUP CREATE key group $ MKSTREAM. This creates the stream even with nomkstream."),
    ("maxlen", False, None, "Number of entries that the stream keeps: MAXLEN of XADD. 0 means no trimming."),
    ("maxlen_approximate", True, "true", "Whether trimming may keep slightly more (~), also with minid; this is much faster."),
    ("minid", False, None, "Smallest entry ID that the stream keeps: MINID of XADD, Redis 6.2 and later, sent as written. 0 and 0-0 mean no trimming. Takes precedence over maxlen."),
    ("trim_every", False, "1", "The first XADD of a stream key and every n-th after it trim; the others cost the server less. At most maxlen."),
    ("nomkstream", True, "false", "Whether not to create a stream that does not exist (NOMKSTREAM of XADD, Redis 6.2 and later); messages then fail with the code NO_STREAM."),
)
DISPATCHER: tuple[tuple[str, bool, str | None, str], ...] = (
    ("window_max_entries", False, "8192", "Maximum number of entries in flight; 1 with ordered."),
    ("window_max_bytes", False, "4194304", "Maximum number of bytes in flight. The message that exceeds it is still sent, so one is always in flight."),
    ("classify", False, "default", "Which error replies are permanent: docs/outcomes.md has the codes. failover waits for OOM and READONLY to end; strict also makes DENIED, NOPROTO and argument errors permanent."),
    ("token_ttl", False, "86400", "With script: how long after its last message a batch can be started again."),
    ("script_run_rows", False, "400", "With script: maximum number of messages per script call."),
    ("ordered", True, "false", "Whether only one entry is in flight at a time, so that none overtakes one that is sent again. Slow, and not needed with script, which keeps the order in any case."),
    ("wait_replicas", False, "0", "Number of replicas that must have a message before it counts as delivered, by WAIT. A message that too few had in time fails as NOT_REPLICATED: it is in the stream of this server. all: as many as the server has, according to CLUSTER SLOTS, SENTINEL REPLICAS or INFO replication when a connection is opened; without a replica messages fail as NOREPLICAS."),
    ("wait_aof", True, "false", "Whether a message must also be in the append-only file of the server, and in those of wait_replicas replicas, by WAITAOF (Redis 7.2 and later, Valkey)."),
    ("wait_timeout", False, "1", "How long the server waits for the replicas and the append-only files."),
    ("wait_every", False, "8192", "Maximum number of entries per WAIT. flush, dispatch and poll send it too; entries after it wait for its reply."),
    ("retry_max_attempts", False, None, "Maximum number of attempts per message, or per outage when reading, including the first. By default as many as the deadline allows."),
    ("retry_initial_backoff", False, "0.05", "Pause before the second attempt."),
    ("retry_max_backoff", False, "0.5", "Longest pause between two attempts."),
    ("retry_multiplier", False, "2", "Factor from one pause to the next."),
    ("retry_jitter", False, "0.5", "Fraction of a pause that is random."),
    ("retry_deadline", False, "120", "How long retries continue after the first failure: of a message, or of the server when reading."),
    ("retry_unknown", True, "false", "Whether messages that may already be written are also sent again, and may then be in the stream twice; DeliveryReport.possible_duplicates counts those. With the data source it is on by default, unless exactly_once is on. When reading it has no effect."),
)
