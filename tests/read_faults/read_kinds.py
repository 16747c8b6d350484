"""The kinds of faults that strike a reader: those of the connection and the server, and changes of the streams."""

from __future__ import annotations

from faults.fault_kinds import KINDS, FaultKind
from faults.proxy import Direction

from .clients import CLIENTS

#: Faults of the reading process.
KILL_AT_STEP = "SIGKILL at a step"
KILL_AT_BYTE = "SIGKILL at a byte"
#: Entries that are removed before they are read.
TRIM_MAXLEN = "XTRIM MAXLEN"
TRIM_MINID = "XTRIM MINID"
ADD_MAXLEN = "XADD MAXLEN"
TRIM_AT_BYTE = "XTRIM in mid-reply"
DELETE_AND_TRIM_AT_BYTE = "XDEL, then XTRIM in mid-reply"
DELETE = "XDEL"
DELETE_AND_TRIM = "XDEL, then XTRIM"
RAISE_ID = "XSETID"
#: Streams that are replaced.
REPLACE_LOWER = "DEL, then lower IDs"
REPLACE_HIGHER = "DEL, then fewer entries"
LOSE_TAIL = "restart without the latest entries"
FAIL_OVER = "failover to a replica without them"

#: Changes that others make to a group, and effects of its consumers on each other.
SET_BACK = "XGROUP SETID back"
SET_FORWARD = "XGROUP SETID forward"
DELETE_CONSUMER = "XGROUP DELCONSUMER"
DESTROY = "XGROUP DESTROY"
CLAIM = "XCLAIM by another client"
NAMESAKE = "two processes of one name"
STOP = "stop in mid-work"

#: Requests on a connection that its client has left; the server gets them later.
LATE_READ = "XREADGROUP comes late"
LATE_ACK = "acknowledgement comes late"
#: The connection ends after the script was executed, at a byte of its reply.
ACK_REPLY = "cut in the reply to an acknowledgement"

#: Matches acknowledgements only: those of headrace's script, and XACK.
ACK = rb"\r\n(?:ack|XACK)\r\n.*"
READ = rb"XREADGROUP\r\n.*"
#: The connection ends within bytes that match.
CUTS: dict[str, tuple[Direction, bytes]] = {
    "cut in an acknowledgement": ("requests", ACK),
    "cut in an XREADGROUP": ("requests", READ),
    "cut in the head of a reply": ("replies", rb"\*\d\r\n\*2\r\n\$\d+\r\n[a-z]+\r\n\*\d+\r\n"),
    "cut in the head of an entry": ("replies", rb"\*2\r\n\$\d+\r\n(?=\d+-\d+\r\n\*)"),
    "cut in an entry ID": ("replies", rb"\d+-\d+\r\n(?=\*\d+\r\n\$)"),
    "cut in the head of fields": ("replies", rb"(?<=-0\r\n)\*\d+\r\n\$\d+\r\n(?=n\r\n)"),
    "cut in a field name": ("replies", rb"note[^\r]*\r\n"),
    "cut in the length of a value": ("replies", rb"(?<=\r\nv\r\n)\$\d+\r\n"),
    "cut in a value": ("replies", rb"(?<=\r\nv\r\n)\$\d+\r\n.+?(?=\r\n)"),
    "cut in an empty reply": ("replies", rb"\*-1\r\n"),
}

#: The kinds of the writing campaign that affect a reader.
NETWORK: dict[str, FaultKind] = {
    name: KINDS[name]
    for name in (
        "reset in requests", "reset in replies", "end in requests", "end in replies", "half-close to the client",
        "half-close to the server", "requests stall", "replies stall", "requests come late", "byte by byte", "narrow",
        "connections refused", "connections not accepted", "SIGSTOP, short", "SIGSTOP, long", "SIGKILL", "CLIENT KILL",
        "ACL DELUSER", "maxclients", "idle timeout", "BUSY script",
    )
}  # fmt: skip

#: Entries are removed while the reader is behind.
REMOVALS = (TRIM_MAXLEN, TRIM_MINID, ADD_MAXLEN, DELETE, DELETE_AND_TRIM)
IN_MID_REPLY = (TRIM_AT_BYTE, DELETE_AND_TRIM_AT_BYTE)
REPLACEMENTS = (REPLACE_LOWER, REPLACE_HIGHER, LOSE_TAIL, FAIL_OVER)
GROUP = (SET_BACK, SET_FORWARD, DELETE_CONSUMER, DESTROY, CLAIM, NAMESAKE, STOP)
LATE = (LATE_READ, LATE_ACK)
PROCESS = (KILL_AT_STEP, KILL_AT_BYTE)

#: What each kind affects, in the order of the tables.
OF: dict[str, str] = {
    **{name: "network" if kind.of == "network" else "server" for name, kind in NETWORK.items()},
    **dict.fromkeys(PROCESS, "reader"),
    **dict.fromkeys([*REMOVALS, *IN_MID_REPLY, RAISE_ID, *REPLACEMENTS], "stream"),
    **dict.fromkeys(GROUP, "group"),
    **dict.fromkeys([*LATE, *CUTS, ACK_REPLY], "bytes"),
}

_WEIGHTS = {LOSE_TAIL: 2, FAIL_OVER: 1, **{name: kind.weight for name, kind in NETWORK.items()}}


def kinds_for(client: str) -> list[str]:
    """The kinds of faults for a client, each repeated by its weight."""
    # A group disappears with its stream, and so does everything known about it.
    others = REPLACEMENTS if CLIENTS[client].group else [name for name, of in OF.items() if of in ("group", "bytes")]
    names = [name for name in OF if name not in others]
    return [name for name in names for _ in range(_WEIGHTS.get(name, 3))]
