"""`Dispatcher.begin`: the tokens and versions that can name a batch, and the errors of all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from headrace import MessageError
from headrace.testing import LocalServer
from support.delivery import MARKER, script

Connect = Callable[..., Any]

TOKEN = "a token has 1 to 1024 bytes, got "
VERSION = "a version is a number from 0 to 9007199254740992, got "
INTEGER = "a version must be an integer: got "


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("",), TOKEN + "0"),
        (("x" * 1_025,), TOKEN + "1025"),
        (("ü" * 513,), TOKEN + "1026"),
        ((5,), "a token must be a str: got int"),
        ((None,), "a token must be a str: got NoneType"),
        ((b"t",), "a token must be a str: got bytes"),
        (("\ud800",), "a token must be valid Unicode: it has lone surrogates"),
        (("t", -1), VERSION + "-1"),
        (("t", 2**53 + 1), VERSION + "9007199254740993"),
        (("t", 2**64), VERSION + "18446744073709551616"),
        (("t", -(10**5_000)), VERSION + "a larger one"),
        (("t", np.int8(-1)), VERSION + "-1"),
        (("t", 1.5), INTEGER + "float"),
        (("t", True), INTEGER + "bool"),
        (("t", np.True_), INTEGER + "bool"),
        (("t", None), INTEGER + "NoneType"),
        (("t", "7"), INTEGER + "str"),
        (("t", np.float64(7)), INTEGER + "float64"),
    ],
)
def test_an_invalid_batch_name_is_refused(any_server: LocalServer, arguments: Any, message: str) -> None:
    with script(any_server) as dispatcher:
        with pytest.raises(MessageError) as caught:
            dispatcher.begin(*arguments)
        assert str(caught.value) == message
        dispatcher.begin("t", version=0)


def test_every_integer_is_a_valid_version(any_server: LocalServer, connect: Connect) -> None:
    with script(any_server) as dispatcher:
        for version in (0, np.int8(1), np.uint64(2), 2**53):
            dispatcher.begin("batch", version)
            dispatcher.produce(b"x")
            assert dispatcher.flush().deduplicated == 0
            assert connect(any_server).get(MARKER) == b"%d 1" % int(version)


def test_begin_propagates_base_exceptions_of_a_version(any_server: LocalServer) -> None:
    class Interrupted:
        def __index__(self) -> int:
            raise KeyboardInterrupt

    with script(any_server) as dispatcher, pytest.raises(KeyboardInterrupt):
        dispatcher.begin("t", Interrupted())
