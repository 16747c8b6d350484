"""Options of endpoints and dispatchers, from the tables of the core: tools/write_tables.py writes them."""

# fmt: off
# ruff: noqa: E501

__all__ = ["DISPATCHER", "PRODUCER", "SERVER", "STREAM"]

#: The name of each option, whether it is a boolean, its default if it has one, and what it means.
SERVER: tuple[tuple[str, bool, str | None, str], ...] = (
    ("host", False, None, "Name or IP address of the server; IPv6 with or without brackets. One of this, unix_socket and nodes is required."),
    ("port", False, "6379", "TCP port. The process-wide default comes before this one."),
    ("unix_socket", False, None, "Path of the server's Unix socket, at most 107 bytes (macOS: 103), in place of host. Not with port or tls."),
    ("topology", False, "auto", "What host or nodes are: 'single', one server; 'cluster', nodes of a cluster, which say where the stream is; 'sentinel', sentinels, which name the server. With 'auto', nodes are sentinels if there is a sentinel_master, else nodes of a cluster; host is a node of a cluster if it says so in its reply to HELLO at the first connect, else one server."),
    ("nodes", False, None, "The nodes to ask, in place of host: 'host' or 'host:port' each. Of a cluster, any nodes, port 6379 by default; the others are found by them. With sentinel_master, the sentinels that know the server, port 26379 by default. They are asked in this order, from the one on that answered last."),
    ("node_map", False, None, "Where to connect for the addresses that the nodes of a cluster show, behind NAT or forwarded ports: {'10.0.0.1:6379': 'proxy:7001'}, or as text '10.0.0.1:6379=proxy:7001,…'. Addresses that are not in it are used as they are, and so are those of host and nodes. With TLS the certificate must hold the name to connect to."),
    ("max_redirects", False, "5", "How often in a row a message is sent to another node of a cluster because the last one does not have its stream (any more). A message that needs more fails with MOVED or ASK."),
    ("sentinel_master", False, None, "Name of the master in the configuration of the sentinels. Each connection goes to the server that they name, if that says that it is a master."),
    ("sentinel_poll", False, "1", "How often a sentinel is asked, while messages are in flight, whether the server is still the master. If it is not, the connection ends (code SWITCHED) and goes on with the new one."),
    ("sentinel_username", False, None, "ACL user of the sentinels. Needs one of sentinel_password, sentinel_password_env, sentinel_password_file."),
    ("sentinel_password_env", False, None, "Environment variable that holds the sentinels' password, as password_env."),
    ("sentinel_password_file", False, None, "File that holds the sentinels' password, as password_file."),
    ("sentinel_tls", True, "false", "Whether to use TLS with the sentinels: by default as with the server, and with its certificates, unless one of the options below is given."),
    ("sentinel_tls_ca_cert", False, None, "The only CA certificates to trust for sentinels, as tls_ca_cert. Needs TLS with the sentinels, like the options below."),
    ("sentinel_tls_cert", False, None, "The client's certificate chain for sentinels, as tls_cert."),
    ("sentinel_tls_key", False, None, "The private key of sentinel_tls_cert."),
    ("sentinel_tls_server_name", False, None, "Name that the sentinels' certificates must have, in place of the hosts in nodes."),
    ("db", False, "0", "Number of the database: SELECT, which is not sent for 0. Servers have 16 databases by default. The process-wide default comes before this one."),
    ("username", False, None, "ACL user, Redis 6.0 and later: AUTH then has two arguments. Needs one of password, password_env, password_file."),
    ("password_env", False, None, "Environment variable that holds the password, read at each connect."),
    ("password_file", False, None, "File that holds the password (at most 64 KiB), read at each connect. One line end at its end is left out, as at the variable's."),
    ("connect_timeout", False, "5", "Longest time for connecting, from name resolution to the last reply of the handshake. The process-wide default comes before this one."),
    ("command_timeout", False, "30", "Longest silence of the server while replies are pending. The process-wide default comes before this one."),
    ("tls", True, "false", "Whether to use TLS, 1.2 or later, and check the server's certificate and its name. The name must be a subject alternative name, of kind IP where host is an address."),
    ("tls_ca_cert", False, None, "The only CA certificates to trust, in place of the system's. A path is checked at once, and read at each connect. Needs tls, like the options below."),
    ("tls_cert", False, None, "The client's certificate chain, where the server asks for one. Needs tls_key."),
    ("tls_key", False, None, "The private key of tls_cert, not encrypted."),
    ("tls_server_name", False, None, "Name that the server's certificate must have, in place of host."),
    ("tls_insecure_skip_verify", True, "false", "Whether to accept any certificate, of any name and age: for a test server at most. TLS is still needed. Not with tls_ca_cert or tls_server_name, and not in a URL."),
)
STREAM: tuple[tuple[str, bool, str | None, str], ...] = (
    ("shards", False, None, "Streams that messages are spread over, for the nodes of a cluster: the shards stream_key:0, stream_key:1 and so on. Messages with equal keys go to the same one. The number can never change: see shards. By default there is one stream, with the key itself."),
    ("shard_hash", False, "murmur2", "How the shard of a key is found: by murmur2 as in Kafka's Java client, or by crc32 as in librdkafka. Needs shards."),
    ("shard_names", False, "plain", "What shards are called: plain is stream_key:0 and so on; spread is stream_key:{tag} with tags that divide the slots of a cluster evenly. Needs shards."),
)
PRODUCER: tuple[tuple[str, bool, str | None, str], ...] = (
    ("consumer_group", False, None, "Consumer group to create at each connect if there is none of that name, from new entries on: XGROUP CREATE key group $ MKSTREAM. It creates the stream even with nomkstream."),
    ("maxlen", False, None, "Entries that the stream keeps: MAXLEN of XADD. 0 is no trimming."),
    ("maxlen_approximate", True, "true", "Whether trimming may keep a little more (~), for minid too, which is much faster."),
    ("minid", False, None, "Smallest entry ID that the stream keeps: MINID of XADD, Redis 6.2 and later, sent as written. 0 and 0-0 are no trimming. Takes precedence over maxlen."),
    ("trim_every", False, "1", "The first XADD of a stream key and every n-th after it trim; the others cost the server less. At most maxlen."),
    ("nomkstream", True, "false", "Whether a stream that does not exist is left so (NOMKSTREAM of XADD, Redis 6.2 and later); messages then fail with the code NO_STREAM."),
)
DISPATCHER: tuple[tuple[str, bool, str | None, str], ...] = (
    ("window_max_entries", False, "8192", "Most entries in flight; with ordered 1."),
    ("window_max_bytes", False, "4194304", "Most bytes in flight. The message that passes it is still sent: one is always in flight."),
    ("classify", False, "default", "Which error replies are permanent: docs/outcomes.md has the codes. failover waits for OOM and READONLY to end; strict also makes DENIED, NOPROTO and argument errors permanent."),
    ("token_ttl", False, "86400", "With script: how long a batch can be begun again after its last message."),
    ("script_run_rows", False, "400", "With script: most messages per script call."),
    ("ordered", True, "false", "Whether one entry is in flight at a time, so that none overtakes one that is sent again. Slow, and not needed with script, which keeps the order in any case."),
    ("wait_replicas", False, "0", "Replicas that must have a message before it counts as delivered, by WAIT. A message that too few had in time fails as NOT_REPLICATED: it is in the stream of this server. all: as many as the server has, by CLUSTER SLOTS, SENTINEL REPLICAS or INFO replication when a connection is opened; without a replica messages fail as NOREPLICAS."),
    ("wait_aof", True, "false", "Whether a message must also be in the append-only file of the server, and in those of wait_replicas replicas, by WAITAOF (Redis 7.2 and later, Valkey)."),
    ("wait_timeout", False, "1", "How long the server waits for them."),
    ("wait_every", False, "8192", "Most entries per WAIT. flush, dispatch and poll send it too; entries behind it wait for its reply."),
    ("retry_max_attempts", False, None, "Most attempts per message, or in reading per outage, the first included; none: as many as the deadline allows."),
    ("retry_initial_backoff", False, "0.05", "Pause before the second attempt."),
    ("retry_max_backoff", False, "0.5", "Longest pause."),
    ("retry_multiplier", False, "2", "Factor from one pause to the next."),
    ("retry_jitter", False, "0.5", "Random share of a pause."),
    ("retry_deadline", False, "120", "How long after its first failure a message is tried again, or in reading a server."),
    ("retry_unknown", True, "false", "Whether messages that may be written already are sent again too, and may then be there twice; DeliveryReport.possible_duplicates counts those. With the data source it is on by default, unless exactly_once is on. In reading it has no effect."),
)
