"""A canary: a secret passed in each possible way, and searched for in every place where it might appear.

Spark's own places are those of tests/spark/test_datasource_secrets.py, memory without Python is rust/headrace-core's
tests/memory_scan, and what `Debug` shows of the core's types src/secret/tests.rs.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import dataclasses
import inspect
import io
import json
import logging
import os
import pickle
import pprint
import pydoc
import subprocess
import sys
import textwrap
import traceback
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import prometheus_client
import pyarrow as pa
import pytest

from headrace import DeliveryError
from headrace.metrics import PrometheusCollector
from headrace.testing import LocalServer
from support import Certs
from support.canary import WAYS, Secret, Trace, Way, dumped_stacks, record
from support.fixture_types import StartServer

Texts = Iterable[str | bytes]


# --- where to look


def attributes(thing: object) -> Iterator[str]:
    """The representation of each attribute of an object, and of the objects its methods are bound to."""
    for name in dir(thing):
        with contextlib.suppress(AttributeError, TypeError):  # such as __abstractmethods__
            value = getattr(thing, name)
            if not isinstance(value, types.MappingProxyType):
                yield f"{name}={value!r}"
    yield repr(getattr(thing, "__dict__", "no __dict__"))


def chain(error: BaseException) -> Iterator[BaseException]:
    """An exception with its causes, contexts and frames."""
    seen: list[BaseException] = []
    rest: list[BaseException | None] = [error]
    while rest:
        one = rest.pop()
        if one is not None and one not in seen:
            seen.append(one)
            rest += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]
    yield from seen


def said(error: BaseException) -> Iterator[str]:
    for one in chain(error):
        yield from (str(one), repr(one), repr(one.args), repr(one.__dict__), *getattr(one, "__notes__", ()))


def with_locals(error: BaseException) -> Iterator[str]:
    yield "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())


def arrow(trace: Trace) -> Iterator[pa.Table]:
    for report in trace.reports:
        yield from (pa.table(report.to_arrow()), pa.table(report.to_arrow(only_failed=True)))


def as_ipc(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def prometheus(trace: Trace) -> str:
    registry = prometheus_client.CollectorRegistry()
    registry.register(PrometheusCollector(*trace.dispatchers))
    return prometheus_client.generate_latest(registry).decode()


def logs(trace: Trace) -> Iterator[str]:
    formatter = logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s")
    for one in trace.logged:
        yield from (formatter.format(one), one.getMessage(), repr(one.__dict__))


def modules() -> Iterator[str]:
    """The global variables of the package."""
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] in ("headrace", "pyspark_headrace"):
            yield from (f"{name}.{key}={value!r}" for key, value in vars(module).items() if key != "__builtins__")


def command_lines(trace: Trace) -> Iterator[bytes]:
    """What `ps` shows of this process and its children, including servers."""
    yield f"of {len(trace.server)} commands".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(os.getpid()) in (folder.name, folder.joinpath("stat").read_text().rpartition(")")[2].split()[1]):
                yield folder.joinpath("cmdline").read_bytes() + folder.joinpath("comm").read_bytes()


def environment_of_a_child(trace: Trace) -> bytes:
    return subprocess.run(["env"], capture_output=True, check=True).stdout


def pickles(things: Iterable[object]) -> Iterator[bytes]:
    for thing in things:
        yield from (pickle.dumps(thing, protocol) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1))


def stats(trace: Trace) -> Iterator[str]:
    for dispatcher in trace.dispatchers:
        yield from (repr(dispatcher.stats()), repr(dataclasses.asdict(dispatcher.stats())))


def not_picklable(trace: Trace) -> Iterator[str]:
    for dispatcher in trace.dispatchers:
        with pytest.raises(TypeError) as caught:
            pickle.dumps(dispatcher)
        yield str(caught.value)


#: Each place to search, and a word that must be found there, as proof that the place was searched.
PLACES: dict[str, tuple[Callable[[Trace], Texts], str]] = {
    "repr of endpoints": (lambda t: map(repr, t.endpoints), "Endpoint("),
    "str of endpoints": (lambda t: map(str, t.endpoints), "stream key"),
    "format of endpoints": (lambda t: [f"{e} {e!s:>9} {e!r:<9}" for e in t.endpoints], "stream key"),
    "containers of endpoints": (lambda t: [repr([t.endpoints]), pprint.pformat({"a": t.endpoints})], "Endpoint("),
    "attributes of endpoints": (lambda t: [x for e in t.endpoints for x in attributes(e)], "connect_timeout=5.0"),
    "copies of endpoints": (lambda t: [repr([copy.copy(e), copy.deepcopy(e)]) for e in t.endpoints], "Endpoint("),
    "unpickled endpoints": (lambda t: [repr(pickle.loads(pickle.dumps(e))) for e in t.endpoints], "Endpoint("),
    "JSON of endpoints": (lambda t: [json.dumps(t.endpoints, default=f) for f in (repr, str)], "Endpoint("),
    "members and signatures": (
        lambda t: [repr(inspect.getmembers(x)) for e in t.endpoints for x in (e, e.from_url, e.__reduce__)],
        "from_url",
    ),
    "help": (lambda t: map(pydoc.render_doc, t.endpoints), "Where entries go and how"),
    "Debug of the core's endpoints": (lambda t: [e._debug() for e in t.endpoints], "Explicit {"),
    "Debug of the core's dispatchers": (lambda t: [d._debug() for d in t.dispatchers], "Producer {"),
    "state of endpoints": (lambda t: [repr(e._state()) for e in t.endpoints], "stream_key"),
    "pickles of endpoints": (lambda t: pickles(t.endpoints), "stream_key"),
    "repr and str of dispatchers": (lambda t: [f"{d} {d!r}" for d in t.dispatchers], "<Dispatcher: "),
    "attributes of dispatchers": (lambda t: [x for d in t.dispatchers for x in attributes(d)], "unreported=0"),
    "errors of pickled dispatchers": (not_picklable, "a dispatcher cannot be pickled"),
    "reports": (lambda t: [f"{r} {r!r}" for r in t.reports], "<DeliveryReport: 3 delivered"),
    "attributes of reports": (lambda t: [x for r in t.reports for x in attributes(r)], "failed_by_code={"),
    "failures": (
        lambda t: [x for r in t.reports for f in r.failed for x in (f.message, f.code, repr(f))],
        "cannot connect",
    ),
    "pickles of failures": (lambda t: pickles(f for r in t.reports for f in r.failed), "cannot connect"),
    "answers of a server that echoes": (lambda t: t.echoes or ["no AUTH, no echo"], "o"),
    "outcomes as Arrow": (lambda t: map(as_ipc, arrow(t)), "cannot connect"),
    "schema and metadata of Arrow": (
        lambda t: [a.schema.to_string(show_schema_metadata=True) + repr(a.schema.metadata) for a in arrow(t)],
        "message_id",
    ),
    "counters": (stats, "failed_by_code"),
    "Prometheus": (lambda t: [prometheus(t)], "headrace_messages"),
    "refused endpoints, what is said": (lambda t: [x for e in t.refusals for x in said(e)], "must be"),
    "refused endpoints, tracebacks with locals": (
        lambda t: [x for e in t.refusals for x in with_locals(e)],
        "ConfigError",
    ),
    "refused endpoints, pickles": (lambda t: pickles(t.refusals), "ConfigError"),
    "exceptions, what is said": (lambda t: [x for e in t.errors for x in said(e)], "were not delivered"),
    "exceptions, tracebacks with locals": (lambda t: [x for e in t.errors for x in with_locals(e)], "<Dispatcher: "),
    "exceptions, pickles": (lambda t: pickles(e for e in t.errors if isinstance(e, DeliveryError)), "DeliveryError"),
    "exceptions, their attributes": (lambda t: [x for e in t.errors for x in attributes(e)], "__traceback__"),
    "log records": (logs, "<Dispatcher: "),
    "warnings": (lambda t: [x for w in t.warned for x in (str(w), repr(vars(w)))], "ForgottenWarning"),
    "what cannot be raised": (lambda t: t.unraisable or ["nothing"], "nothing"),
    "stdout": (lambda t: [t.stdout], "<Dispatcher: "),
    "stderr": (lambda t: [t.stderr], "Exception in thread"),
    "stacks of faulthandler": (lambda _: [dumped_stacks()], "in dumped_stacks"),
    "global variables of the package": (lambda _: modules(), "headrace.endpoint.Endpoint="),
    "command lines of processes": (command_lines, "python"),
    "environment of a child": (lambda t: [environment_of_a_child(t)], "PATH="),
    "MONITOR": (lambda t: [t.server["MONITOR"]], "XADD"),
    "SLOWLOG": (lambda t: [t.server["SLOWLOG"]], "XADD"),
    "CLIENT LIST": (lambda t: [t.server["CLIENT LIST"]], "'headrace'"),
    "ACL LOG": (lambda t: [t.server["ACL LOG"]], "["),
    "INFO": (lambda t: [t.server["INFO"]], "cmdstat_xadd"),
    "the server's log": (lambda t: [t.server["log"]], "Ready to accept connections"),
    "entries and keys": (lambda t: [t.server["keys and entries"]], "payload"),
}

#: The places that hold a secret passed by value: the docstring of such an endpoint says so of pickles.
IN_PLAIN = {"state of endpoints", "pickles of endpoints"}


# --- the search


@pytest.fixture
def trace(
    request: pytest.FixtureRequest,
    start_server: StartServer,
    certs: Certs,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Trace:
    way: Way = request.param
    server: LocalServer
    if way.of_tls:
        pair = certs.server
        server = start_server(
            needs="tls",
            transport="tls",
            tls_cert=pair.cert,
            tls_key=pair.key,
            tls_ca_cert=certs.ca,
            tls_client_auth=True,
        )
    else:
        server = start_server(transport="tcp")
    return record(way, server, tmp_path, certs, caplog, capfd, monkeypatch)


@pytest.mark.parametrize("trace", WAYS, ids=[way.name for way in WAYS], indirect=True)
def test_a_secret_appears_only_where_expected(trace: Trace) -> None:
    looked_at, found, expected = [], set(), set()
    if trace.way.in_endpoint:
        expected |= IN_PLAIN
    if trace.way.in_environment:
        expected.add("environment of a child")
    for place, (look, word) in PLACES.items():
        texts = list(look(trace))
        as_bytes = [text if isinstance(text, bytes) else text.encode("utf-8", "replace") for text in texts]
        assert any(word.encode() in text for text in as_bytes), f"{place}: {word!r} is not among {len(texts)} texts"
        looked_at.append(place)
        if any(trace.secret.is_in(text) for text in texts):
            found.add(place)
    assert found == expected
    assert len(looked_at) >= 30
    print(f"{trace.way.name}: {len(looked_at)} places looked at, {len(found - expected)} secrets found")


def test_each_encoding_of_a_secret_is_detected() -> None:
    secret = Secret()
    line = secret.lines[0]
    shown: list[str | bytes] = [
        *(secret.text, line, repr(line), f"({secret.text})", line.hex(), line.decode().encode("utf-16-le")),
        *(
            str(list(line)),
            json.dumps({"a": secret.text}),
            pickle.dumps(secret.text),
            textwrap.indent(secret.text, " "),
        ),
    ]
    shown += [base64.b64encode(b"user"[:before] + line) for before in range(5)]
    for text in shown:
        assert secret.is_in(text), text
    assert not secret.is_in("canary-")
    assert secret.text not in repr(secret)


#: A process that stops after each step until it gets a line.
STEPS = """
import sys
from pathlib import Path
from headrace import Dispatcher, Endpoint

def stop_after(step):
    print(step, flush=True)
    sys.stdin.readline()

endpoint = Endpoint(unix_socket=sys.argv[1], stream_key="s", password_file=sys.argv[2])
with Dispatcher(endpoint) as dispatcher:
    dispatcher.produce(b"x")
    assert dispatcher.flush().delivered == 1
    stop_after("delivered")
stop_after("closed")
kept = Path(sys.argv[2]).read_bytes()
stop_after("read by Python")
"""


def count_in_memory(pid: int, pieces: list[bytes]) -> int:
    """How often the pieces occur in the memory of another process, which is stopped.

    A process that searches itself may find the pattern or an earlier copy of its memory.
    """
    found = 0
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            where, rights = line.split()[:2]
            if rights.startswith("rw"):
                start, end = (int(number, 16) for number in where.split("-"))
                memory.seek(start)
                data = memory.read(end - start)
                assert len(data) == end - start, line
                found += sum(data.count(piece) for piece in pieces)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_the_content_of_a_password_file_never_reaches_python(start_server: StartServer, tmp_path: Path) -> None:
    password = os.urandom(2048).hex()
    server = start_server(config={"requirepass": password})
    (tmp_path / "password").touch(mode=0o600)  # headrace warns of a file that others may read
    (tmp_path / "password").write_text(password)
    # Pieces, because freed memory is soon overwritten in part.
    pieces = [password[start : start + 32].encode() for start in range(16, len(password), 512)]
    command = [sys.executable, "-c", STEPS, server.unix_socket, str(tmp_path / "password")]
    pipe, found = subprocess.PIPE, {}
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in process.stdout:
            assert line.strip() in ("delivered", "closed", "read by Python"), line + process.communicate()[0]
            found[line.strip()] = count_in_memory(process.pid, pieces)
            process.stdin.write("\n")
            process.stdin.flush()
    assert process.returncode == 0
    assert found.pop("read by Python") > 0, "the search finds nothing"
    assert found == {"delivered": 0, "closed": 0}
