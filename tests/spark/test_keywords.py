"""The keyword arguments of `write` and `xadd`, as the driver checks them. No Spark runs here."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import ConfigError, Endpoint
from headrace.spark import write, xadd

ENDPOINT = Endpoint(host="h", stream_key="s")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"mesage_id": "n"}, "unknown option 'mesage_id'; did you mean 'message_id'?"),
        ({"nope": 5}, "unknown option 'nope'; help(headrace.spark.write) lists all options"),
        ({"maxlen": 5}, "unknown option 'maxlen': it belongs to Endpoint"),
        (
            {"paylod": "n", "tls": True, "nope": 5},
            "unknown options 'paylod' (did you mean 'payload'?), 'tls' (it belongs to Endpoint), 'nope'; "
            "help(headrace.spark.write) lists all options",
        ),
    ],
)
def test_unknown_options_are_named(given: dict[str, Any], text: str) -> None:
    no_frame: Any = None  # it is not looked at
    for call in (lambda: write(no_frame, ENDPOINT, **given), lambda: xadd(ENDPOINT, **given)):
        with pytest.raises(ConfigError) as caught:
            call()
        assert str(caught.value) == text
        assert caught.value.option == next(iter(given))
