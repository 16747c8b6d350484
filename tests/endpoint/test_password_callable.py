"""A callable as the password: what it may return and raise, and endpoints with one as values."""

from __future__ import annotations

import asyncio
import copy
import functools
import os
import pickle
import time
from collections.abc import Callable

import pyarrow as pa
import pytest

from headrace import ConcurrentUseError, ConfigError, Dispatcher, Endpoint, RetryPolicy
from headrace.testing import LocalServer
from support.endpoints import CANARY, build
from support.processes import in_child
from support.rotation import Connect, Vault, send, set_password, to

WRONGPASS = ("permanent", "WRONGPASS", "no")
CONFIG = ("retryable", "CONFIG", "no")


def message(dispatcher: Dispatcher) -> str:
    dispatcher.produce(b"x")
    (failure,) = dispatcher.flush().failed
    assert (failure.kind, failure.code, failure.written) == CONFIG
    return failure.message


# --- what it returns and raises


class SecretError(Exception):
    """An exception whose class may be shown, but not its text."""


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (TimeoutError(CANARY), "raised TimeoutError"),
        (SecretError(CANARY), f"raised {__name__}.SecretError"),
        (ExceptionGroup(CANARY, [ValueError(CANARY)]), "raised ExceptionGroup"),
        ("", "returned an empty password"),
        (b"", "returned an empty password"),
        (None, "returned NoneType, not str or bytes"),
        (5, "returned int, not str or bytes"),
        ([CANARY], "returned list, not str or bytes"),
        (CANARY + "\ud800", "returned a str with a lone surrogate"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else None,
)
def test_errors_name_the_failing_callable_but_reveal_no_secret(
    any_server: LocalServer, answer: object, why: str
) -> None:
    vault = Vault(answer)
    dispatcher = Dispatcher(to(any_server, password=vault.read), retry=RetryPolicy(deadline=5))
    assert message(dispatcher) == f"password: the callable support.rotation.Vault.read {why}"
    assert vault.asked == 1


def test_a_coroutine_function_is_refused(any_server: LocalServer) -> None:
    async def read() -> str:
        return await asyncio.sleep(0, "x")

    dispatcher = Dispatcher(to(any_server, password=read))
    with pytest.warns(RuntimeWarning, match="never awaited"):
        assert message(dispatcher).endswith("read returned coroutine, not str or bytes")


def test_a_callable_failure_affects_only_one_batch(any_server: LocalServer, connect: Connect) -> None:
    set_password(connect(any_server), "right")
    vault = Vault(TimeoutError(), "right")
    dispatcher = Dispatcher(to(any_server, password=vault.read))
    assert send(dispatcher) == [CONFIG]
    assert send(dispatcher) == []
    dispatcher.close()


@pytest.mark.parametrize("raised", [KeyboardInterrupt("of the callable"), SystemExit(3)])
@pytest.mark.parametrize("way", ["flush", "produce", "produce_batch", "dispatch", "second time"])
def test_exceptions_that_end_the_program_are_raised(
    any_server: LocalServer, connect: Connect, raised: BaseException, way: str
) -> None:
    admin = connect(any_server)
    set_password(admin, "right")
    vault = Vault(*(["wrong"] if way == "second time" else []), raised, "right")
    dispatcher = Dispatcher(to(any_server, password=vault.read), window_max_entries=1)

    def call() -> None:
        if way == "dispatch":
            dispatcher.dispatch(b"x")
        elif way == "produce_batch":
            dispatcher.produce_batch(rows(3), payload="payload")
        else:
            dispatcher.produce(b"x")
            if way == "produce":
                dispatcher.produce(b"y")
            dispatcher.flush()

    with pytest.raises(type(raised)) as caught:
        call()
    assert caught.value is raised
    report = dispatcher.flush()
    # No accepted message is lost; rows that were not accepted have their outcome.
    assert {(one.code, one.written) for one in report.failed} <= {("INTERRUPTED", "no")}
    taken = {"dispatch": 0, "produce_batch": 3}.get(way, 1)
    assert report.delivered + len(report.failed) == taken
    if way != "dispatch":  # the dispatcher keeps its message, as after Ctrl-C
        assert admin.xlen("s") == report.delivered
    assert send(dispatcher) == []
    dispatcher.poll()


def rows(count: int) -> pa.RecordBatch:
    return pa.record_batch({"payload": [str(number) for number in range(count)]})


def test_a_slow_callable_counts_as_a_timeout(any_server: LocalServer) -> None:
    def read() -> str:
        time.sleep(0.2)  # what is tested
        return "x"

    dispatcher = Dispatcher(to(any_server, password=read, connect_timeout=0.1))
    dispatcher.produce(b"x")
    (failure,) = dispatcher.flush().failed
    assert (failure.kind, failure.code, failure.written) == ("retryable", "TIMEOUT", "no")
    assert failure.message.endswith("within 0.1 s: timed out while waiting for the password")


def test_a_callable_cannot_use_its_own_dispatcher(any_server: LocalServer) -> None:
    raised: list[ConcurrentUseError] = []

    def read() -> str:
        try:
            dispatcher.flush()
        except ConcurrentUseError as error:
            raised.append(error)
        return "x"

    dispatcher = Dispatcher(to(any_server, password=read))
    assert send(dispatcher) == [WRONGPASS]
    assert len(raised) == 2


def test_a_callable_can_use_another_dispatcher(server: LocalServer, connect: Connect) -> None:
    set_password(connect(server), "right")
    inner = Dispatcher(to(server, password=Vault("right").read))

    def read() -> str:
        assert send(inner) == []
        return "right"

    with Dispatcher(to(server, password=read)) as dispatcher:
        assert send(dispatcher) == []
    inner.close()


def test_a_forked_child_calls_the_callable_again(any_server: LocalServer, connect: Connect) -> None:
    set_password(connect(any_server), "right")
    vault = Vault("right")
    with Dispatcher(to(any_server, password=vault.read)) as dispatcher:
        assert send(dispatcher) == []
        assert in_child(lambda: (send(dispatcher), vault.asked)) == ([], 2)
        assert send(dispatcher) == []
    assert vault.asked == 1


# --- values


def a_password() -> str:
    return "right"


class Instance:
    def __call__(self) -> str:
        return CANARY

    def __repr__(self) -> str:
        return CANARY


def test_endpoints_with_callables_compare_by_value() -> None:
    vault = Vault("x")
    one = build(password=vault.read)
    assert one == build(password=vault.read)
    assert hash(one) == hash(build(password=vault.read))
    assert one != build(password=Vault("x").read)
    assert one != build(password="x")
    assert one != build(password_env="X")
    assert build(password=a_password) == build(password=a_password) != build(password=Instance())
    assert build(password=functools.partial(a_password)) != build(password=functools.partial(a_password))
    assert copy.copy(one) is copy.deepcopy(one) is one
    assert vault.asked == 0


def test_an_endpoint_shows_only_the_name_of_its_callable() -> None:
    for callable_, name in (
        (a_password, f"{__name__}.a_password"),
        (Vault("x").read, "support.rotation.Vault.read"),
        (Instance(), f"{__name__}.Instance"),
        (functools.partial(os.getenv, CANARY), "functools.partial"),
        (len, "len"),
    ):
        endpoint = build(password=callable_, username="u")
        shown = f"Endpoint(host='h', username='u', password=<callable {name}>, stream_key='s')"
        assert repr(endpoint) == shown
        assert str(endpoint) == "redis://u@h:6379 stream key s"
        assert not hasattr(endpoint, "password")


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_callable_is_pickled_by_reference(any_server: LocalServer, connect: Connect, protocol: int) -> None:
    set_password(connect(any_server), "right")
    endpoint = to(any_server, password=a_password)
    pickled = pickle.dumps(endpoint, protocol)
    assert b"a_password" in pickled
    assert b"right" not in pickled
    again = pickle.loads(pickled)
    assert again == endpoint
    with Dispatcher(again) as dispatcher:
        assert send(dispatcher) == []
    for callable_ in (lambda: CANARY, functools.partial(lambda: CANARY)):
        with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
            pickle.dumps(build(password=callable_), protocol)


def test_invalid_uses_of_a_callable_are_refused() -> None:
    here = {"host": "h", "stream_key": "s"}
    refusals: list[tuple[Callable[[], object], str]] = [
        (
            lambda: Endpoint._from_text({**here, "password": a_password}),  # type: ignore[dict-item]
            f"password must be text if all options are text, got the callable {__name__}.a_password; "
            "give password_env or password_file",
        ),
        (
            lambda: build(password=a_password, password_file="f"),
            "password, password_env and password_file are mutually exclusive",
        ),
        (lambda: Endpoint.from_url("redis://:x@h", stream_key="s", password=a_password), "password is given twice"),
        (lambda: build(username=a_password), "username must be non-empty text, got a value of type function"),
        (
            lambda: build(password=object()),
            "password must be non-empty text or bytes, or a callable that returns them, got object",
        ),
    ]
    for build_it, why in refusals:
        with pytest.raises(ConfigError) as caught:
            build_it()
        assert str(caught.value).startswith(why)
    assert Endpoint.from_mapping({**here, "password": a_password}) == build(password=a_password)
    assert Endpoint.from_url("redis://h", stream_key="s", password=a_password) == build(password=a_password)
