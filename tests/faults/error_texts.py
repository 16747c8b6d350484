"""The exact error texts of the servers, and how headrace must classify each.

Scenarios (`error_scenarios`, `disruptive_scenarios`) verify them on real servers; the few unverified ones are marked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from support import Program

Kind = Literal["permanent", "retryable"]
Classify = Literal["default", "failover", "strict"]

CLASSIFY: tuple[Classify, ...] = ("default", "failover", "strict")
_SERVERS = ("redis-6.2", "redis-7.0", "redis-8.6", "valkey-9.1")
_KINDS: Mapping[str, Kind] = {"P": "permanent", "R": "retryable"}


@dataclass(frozen=True)
class ErrorText:
    """One error of the servers."""

    name: str
    #: For each of `CLASSIFY`: P (permanent) or R (retryable).
    kinds: str
    #: The text by server, without the leading `-`; servers that are not listed never return it.
    texts: Mapping[str, str]
    #: If it is retryable, whether a retry policy retries it.
    passes: bool = False
    #: Whether the server then closes the connection, because it cannot parse the rest.
    ends: bool = False
    #: Whether it is sent before any command and answers none.
    unsolicited: bool = False
    #: Why no scenario produces it: what returns it, or when.
    unverified: str = ""

    def __str__(self) -> str:
        return self.name

    @property
    def different(self) -> list[str]:
        """The distinct texts."""
        return list(dict.fromkeys(self.texts.values()))

    @property
    def code(self) -> str:
        """The code of a message that gets this error as its reply."""
        return "TOO_LARGE" if self.ends else self.first_word

    @property
    def first_word(self) -> str:
        return next(iter(self.texts.values())).split()[0]

    def kind(self, classify: Classify) -> Kind:
        """The kind of failure of a message that gets this error as its reply."""
        return _KINDS[self.kinds[CLASSIFY.index(classify)]]

    def kind_in_auth(self, classify: Classify) -> Kind:
        """The kind of failure of a message whose connection gets this error as the reply to AUTH."""
        if self.unsolicited or self.first_word in ("LOADING", "BUSY", "MASTERDOWN"):
            return self.kind(classify)
        return "permanent"

    def of(self, program: Program) -> str | None:
        """The text that this server returns; None if it never returns this error."""
        return self.texts.get(family(program))


def family(program: Program) -> str:
    """The server of `_SERVERS` that has the same texts."""
    if not program.is_redis:
        return "valkey-9.1"
    return "redis-6.2" if program.numbers < (7,) else "redis-7.0" if program.numbers < (8,) else "redis-8.6"


def _all(text: str) -> dict[str, str]:
    return dict.fromkeys(_SERVERS, text)


def _each(*, r62: str = "", r70: str = "", r86: str = "", v91: str = "") -> dict[str, str]:
    return {name: text for name, text in zip(_SERVERS, (r62, r70, r86, v91), strict=True) if text}


def _denied(name: str, what: str) -> ErrorText:
    """An ACL refusal: older servers write `this user`, newer ones its name."""
    old, new = f"NOPERM this user has no permissions to {what}", f"NOPERM User app has no permissions to {what}"
    command = what.split("'")[1]
    r62 = old.replace(command, command.partition("|")[0]) + " or its subcommand"
    return ErrorText(name, "PPP", _each(r62=r62, r70=old, r86=new, v91=new))


def _denied_access(name: str, old: str, new: str, *, r62: bool = True) -> ErrorText:
    old, new = (
        f"NOPERM this user has no permissions to access one of the {old}",
        f"NOPERM No permissions to access a {new}",
    )
    return ErrorText(name, "PPP", _each(r62=old if r62 else "", r70=old, r86=new, v91=new))


def _both(text: str) -> dict[str, str]:
    """Texts that contain the server's name."""
    return {**_all(text), "valkey-9.1": text.replace("Redis", "Valkey")}


_HELLO = (
    "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO {}AUTH <user> <pass> "
    "option can be used to authenticate the client and select the RESP protocol version at the same time"
)
_SNAPSHOT = (
    "MISCONF Redis is configured to save RDB snapshots, but {} to disk. Commands that may modify the data set are "
    "disabled, because this instance is configured to report errors during writes if RDB snapshotting fails "
    "(stop-writes-on-bgsave-error option). Please check the Redis logs for details about the RDB error."
)
_UNABLE = _SNAPSHOT.format("it's currently unable to persist")
_PROTECTED = (
    "DENIED Redis is running in protected mode because protected mode is enabled{}. In this mode connections are only "
    "accepted from the loopback interface. If you want to connect from external computers to Redis you may adopt one "
    "of the following solutions: 1) Just disable protected mode sending the command 'CONFIG SET protected-mode no' "
    "from the loopback interface by connecting to Redis from the same host the server is running, however MAKE SURE "
    "Redis is not publicly accessible from internet if you do so. Use CONFIG REWRITE to make this change permanent. 2) "
    "Alternatively you can just disable the protected mode by editing the Redis configuration file, and setting the "
    "protected mode option to 'no', and then restarting the server. 3) If you started the server manually just for "
    "testing, restart it with the '--protected-mode no' option. 4) {} password{}. NOTE: You only "
    "need to do one of the above things in order for the server to start accepting connections from the outside."
)
_NO_PASSWORD, _FOR_ALL = " and no password is set for the default user", " for the default user"
_PROTECTED_NOW = _PROTECTED.format(_NO_PASSWORD, "Set up an authentication", _FOR_ALL)
_WAIT = (
    "ERR WAIT cannot be used with replica instances. Please also note that {}if a replica is configured to be writable "
    "(which is not the default) writes to replicas are just local and are not propagated."
)
_TOP = "ERR The ID specified in XADD is equal or smaller than the target stream top item"
_INVALID_ID = "ERR Invalid stream ID specified as stream command argument"

#: Authentication and permissions.
_RIGHTS = (
    ErrorText("no password", "PPP", _all("NOAUTH Authentication required.")),
    ErrorText(
        "no password in HELLO",
        "PPP",
        _each(
            r62=_HELLO.format(""), r70=_HELLO.format(""), r86=_HELLO.format("<proto> "), v91=_HELLO.format("<proto> ")
        ),
    ),
    ErrorText("wrong password", "PPP", _all("WRONGPASS invalid username-password pair or user is disabled.")),
    ErrorText(
        "unexpected password",
        "PPP",
        _all(
            "ERR AUTH <password> called without any password configured for the default user. Are you sure your "
            "configuration is correct?"
        ),
    ),
    _denied("no permission for the command", "run the 'xadd' command"),
    _denied("no permission for the group", "run the 'xgroup|create' command"),
    _denied("no permission for the database", "run the 'select' command"),
    _denied_access("no permission for the key", "keys used as arguments", "key"),
    _denied_access("read-only permission for the key", "keys used as arguments", "key", r62=False),
    _denied_access("no permission for the channel", "channels used as arguments", "channel"),
    ErrorText(
        "protected mode",
        "RRP",
        _each(
            r70=_PROTECTED.format(_NO_PASSWORD, "Setup a an authentication", _FOR_ALL),
            r86=_PROTECTED_NOW,
            v91=_PROTECTED_NOW.replace("Redis is running", "Running")
            .replace("computers to Redis", "computers,")
            .replace("connecting to Redis from", "connecting from")
            .replace("Redis is not", "it's not")
            .replace("the Redis configuration", "the configuration"),
        ),
        unsolicited=True,
    ),
    ErrorText(
        "old protected mode",
        "RRP",
        _each(
            r62=_PROTECTED.format(
                ", no bind address was specified, no authentication password is requested to clients",
                "Setup a bind address or an authentication",
                "",
            )
        ),
        unsolicited=True,
        unverified="where it was given no address to listen on, as servers of tests are",
    ),
    ErrorText("too many clients", "RRR", _all("ERR max number of clients reached"), passes=True, unsolicited=True),
)

#: The state of the server or of the key.
_STATES = (
    ErrorText("no stream", "PPP", _all("WRONGTYPE Operation against a key holding the wrong kind of value")),
    ErrorText("memory is full", "PRP", _all("OOM command not allowed when used memory > 'maxmemory'."), passes=True),
    ErrorText("replica", "PRP", _all("READONLY You can't write against a read only replica."), passes=True),
    ErrorText(
        "snapshot failed",
        "RRR",
        {
            **_both(_UNABLE),
            "redis-6.2": _SNAPSHOT.format("it is currently not able to persist").replace("persist to", "persist on"),
        },
        passes=True,
    ),
    ErrorText(
        "file is full",
        "RRR",
        _all("MISCONF Errors writing to the AOF file: No space left on device"),
        passes=True,
    ),
    ErrorText("loading", "RRR", _both("LOADING Redis is loading the dataset in memory"), passes=True),
    ErrorText(
        "replica without its master",
        "RRR",
        _all("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."),
        passes=True,
    ),
    ErrorText("too few replicas", "RRR", _all("NOREPLICAS Not enough good replicas to write."), passes=True),
    ErrorText(
        "busy with a script",
        "RRR",
        _both("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."),
        passes=True,
    ),
    ErrorText(
        "busy with a function",
        "RRR",
        _each(
            r70="BUSY Redis is busy running a script. You can only call FUNCTION KILL or SHUTDOWN NOSAVE.",
            r86="BUSY Redis is busy running a script. You can only call FUNCTION KILL or SHUTDOWN NOSAVE.",
            v91="BUSY Valkey is busy running a script. You can only call FUNCTION KILL or SHUTDOWN NOSAVE.",
        ),
        passes=True,
    ),
    ErrorText("unassigned slot", "RRR", _all("CLUSTERDOWN Hash slot not served"), passes=True),
    ErrorText("cluster is down", "RRR", _all("CLUSTERDOWN The cluster is down"), passes=True),
    ErrorText(
        "cluster only reads",
        "RRR",
        _all("CLUSTERDOWN The cluster is down and only accepts read commands"),
        passes=True,
    ),
    ErrorText("slot of another node", "RRR", _all("MOVED 9102 127.0.0.1:7001")),
    ErrorText("migrating slot", "RRR", _all("ASK 9102 127.0.0.1:7001")),
    ErrorText(
        "migrating slot, two keys", "RRR", _all("TRYAGAIN Multiple keys request during rehashing of slot"), passes=True
    ),
    ErrorText("two slots", "PPP", _all("CROSSSLOT Keys in request don't hash to the same slot")),
    ErrorText("redirected", "RRR", _each(v91="REDIRECT 127.0.0.1:1")),
    ErrorText(
        "no such script",
        "RRR",
        {**_all("NOSCRIPT No matching script. Please use EVAL."), "valkey-9.1": "NOSCRIPT No matching script."},
        passes=True,
    ),
)

#: Errors of the script of `exactly_once`.
_SCRIPT = (
    ErrorText(
        "marker of another kind",
        "PPP",
        _all("BAD_MARKER the key of the marker holds something else"),
        unverified="by the script of headrace",
    ),
)

#: Commands and IDs that the server refuses.
_COMMANDS = (
    ErrorText("protocol 9", "RRP", _all("NOPROTO unsupported protocol version")),
    ErrorText(
        "unknown command",
        "PPP",
        {
            **_all("ERR unknown command 'XADD', with args beginning with: 'events' '*' 'payload' 'canary' "),
            "redis-6.2": "ERR unknown command `XADD`, with args beginning with: `events`, `*`, `payload`, `canary`, ",
        },
    ),
    ErrorText(
        "unknown command in a script",
        "PPP",
        # Redis 6.2 returns an error without a code, which starts with the position in the script.
        _each(
            r70="ERR Unknown Redis command called from script",
            r86="ERR Unknown Redis command called from script",
            v91="ERR Unknown command called from script",
        ),
    ),
    ErrorText("odd arguments", "RRP", _all("ERR wrong number of arguments for 'xadd' command")),
    ErrorText("invalid ID", "RRP", _all(_INVALID_ID)),
    ErrorText(
        "sequence is exhausted",
        "RRR",
        # Redis 7.0 repeats the error of an earlier command.
        _each(r70="ERR Elements are too large to be stored", r86=_TOP, v91=_TOP),
    ),
    ErrorText("ID below the top", "RRR", _all(_TOP)),
    ErrorText("ID zero", "RRR", _all("ERR The ID specified in XADD must be greater than 0-0")),
    ErrorText(
        "stream is exhausted",
        "RRR",
        _all("ERR The stream has exhausted the last possible ID, unable to add more items"),
    ),
    ErrorText("negative MAXLEN", "RRR", _all("ERR The MAXLEN argument must be >= 0.")),
    ErrorText("MAXLEN without a number", "RRR", _all("ERR value is not an integer or out of range")),
    ErrorText("negative LIMIT", "RRR", _all("ERR The LIMIT argument must be >= 0.")),
    ErrorText(
        "LIMIT of nothing", "RRP", _all("ERR syntax error, LIMIT cannot be used without specifying a trimming strategy")
    ),
    ErrorText("LIMIT without ~", "RRP", _all("ERR syntax error, LIMIT cannot be used without the special ~ option")),
    ErrorText(
        "MAXLEN and MINID",
        "RRP",
        _all("ERR syntax error, MAXLEN and MINID options at the same time are not compatible"),
    ),
    ErrorText("KEEPREF and DELREF", "RRP", _all(_INVALID_ID)),
    ErrorText(
        "IDMP with an ID",
        "RRP",
        {**_all(_INVALID_ID), "redis-8.6": "ERR syntax error, IDMP/IDMPAUTO can be used only with auto-generated IDs"},
    ),
    ErrorText(
        "IDMP without a producer",
        "RRP",
        {**_all(_INVALID_ID), "redis-8.6": "ERR syntax error, IDMP requires a non-empty producer ID"},
    ),
    ErrorText(
        "IDMP without an ID",
        "RRP",
        {**_all(_INVALID_ID), "redis-8.6": "ERR syntax error, IDMP requires a non-empty idempotent ID"},
    ),
    ErrorText(
        "IDMP twice",
        "RRP",
        {**_all(_INVALID_ID), "redis-8.6": "ERR syntax error, IDMP/IDMPAUTO specified multiple times"},
    ),
    ErrorText("database out of range", "RRR", _all("ERR DB index is out of range")),
    ErrorText(
        "database in a cluster",
        "RRR",
        {**_all("ERR SELECT is not allowed in cluster mode"), "valkey-9.1": "ERR DB index is out of range"},
    ),
    ErrorText("WAIT on a replica", "RRR", {**_all(_WAIT.format("since Redis 4.0 ")), "valkey-9.1": _WAIT.format("")}),
    ErrorText("script is not busy", "RRR", _all("NOTBUSY No scripts in execution right now.")),
    ErrorText("key is busy", "RRR", _all("BUSYKEY Target key name already exists.")),
    ErrorText("aborted transaction", "RRR", _all("EXECABORT Transaction discarded because of previous errors.")),
    ErrorText(
        "no group",
        "RRR",
        _all("NOGROUP No such key 'events' or consumer group 'g' in XREADGROUP with GROUP option"),
    ),
)

#: Commands that the server cannot parse. It reports an error and closes.
_UNREADABLE = tuple(
    ErrorText(name, "PPP", dict.fromkeys(servers, f"ERR Protocol error: {text}"), ends=True)
    for name, text, servers in (
        ("too large", "invalid bulk length", _SERVERS),
        ("too many arguments", "invalid multibulk length", _SERVERS),
        ("no bulk string", "expected '$', got 'P'", _SERVERS),
        ("line too long", "too big inline request", _SERVERS),
        ("count too long", "too big mbulk count string", _SERVERS),
        ("length too long", "too big bulk count string", ("redis-6.2", "redis-7.0", "valkey-9.1")),  # 8.6 reads on
        ("quotes", "unbalanced quotes in request", _SERVERS),
        ("too many arguments before AUTH", "unauthenticated multibulk length", _SERVERS),
        ("too large before AUTH", "unauthenticated bulk length", _SERVERS),
    )
)

#: Errors that a producer gets only from a proxy: treated like any other. For readers UNBLOCKED is temporary.
_OF_OTHERS = tuple(
    ErrorText(" ".join(text.split()[:4]), "RRR", _all(text), passes=text.startswith("UNBLOCKED"), unverified=why)
    for text, why in (
        ("UNKILLABLE Sorry the script already executed write commands against the dataset.", "to SCRIPT KILL"),
        ("NOGOODSLAVE No suitable replica to promote", "by Sentinel"),
        ("NOGOODPRIMARY Primary does not support FAILOVER command", "by Valkey's Sentinel"),
        ("NOQUORUM 1 usable Sentinels. ", "by Sentinel"),
        ("INPROG Failover already in progress", "by Sentinel"),
        ("NOMASTERLINK Can't SYNC while not connected with my master", "to replicas"),
        ("IOERR error or timeout connecting to the client", "to MIGRATE"),
        ("NOTREADY Cluster is not ready to migrate slots", "to CLUSTER"),
        ("INVALIDOBJ Corrupted HLL object detected", "to PFADD"),
        ("UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)", "to readers"),
        ("ERR upstream failure", "by a proxy"),
    )
)

ERROR_TEXTS: tuple[ErrorText, ...] = (*_RIGHTS, *_STATES, *_COMMANDS, *_UNREADABLE, *_OF_OTHERS)
BY_NAME: Mapping[str, ErrorText] = {error.name: error for error in ERROR_TEXTS}
