"""The errors of headrace: their classes, and that they can be pickled."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

import headrace.errors
import headrace.testing
from headrace import ConnectionFailedError, DeliveryError, Dispatcher, Endpoint, Failure, HeadraceError

ERRORS = [getattr(headrace.errors, name) for name in headrace.errors.__all__]


def test_every_error_is_listed() -> None:
    classes = [kind for _, kind in inspect.getmembers(headrace.errors, inspect.isclass)]
    assert {kind for kind in classes if issubclass(kind, HeadraceError)} == set(ERRORS)
    assert len(ERRORS) >= 10
    assert {kind.__name__ for kind in ERRORS} - {"LocalServerError"} <= set(headrace.__all__)
    assert headrace.testing.LocalServerError is headrace.errors.LocalServerError


@pytest.mark.parametrize("kind", ERRORS)
def test_errors_can_be_pickled(kind: type[HeadraceError]) -> None:
    failures = (Failure(7, "permanent", "OOM", "no room", "no"), Failure("x", "retryable", "EOF", "gone", "unknown"))
    error = kind("what happened")
    if isinstance(error, DeliveryError):
        error = type(error)(
            "what happened", failures=failures, delivered=3, failed=2, failed_by_code={"OOM": 1, "EOF": 1}
        )
    elif isinstance(error, headrace.errors.ConfigError):
        error = type(error)("what happened", option="port")
    error.add_note("and more")
    for other in (*(pickle.loads(pickle.dumps(error, protocol)) for protocol in range(6)), copy.copy(error)):
        assert type(other) is kind
        assert str(other) == "what happened"
        assert other.__dict__ == error.__dict__
        assert other.__notes__ == ["and more"]
    assert issubclass(kind, HeadraceError)
    assert isinstance(kind(), kind)


def test_errors_that_were_raised_can_be_pickled(closed_port: int) -> None:
    with Dispatcher(Endpoint(host="127.0.0.1", port=closed_port, stream_key="s")) as dispatcher:
        for _ in range(3):
            dispatcher.produce(b"x")
        report = dispatcher.flush()
        with pytest.raises(DeliveryError) as caught:
            report.raise_for_failures()
        error = pickle.loads(pickle.dumps(caught.value))
        assert error.failures == caught.value.failures == tuple(report.failed)
        assert str(error) == str(caught.value)
        with pytest.raises(ConnectionFailedError) as lost:
            dispatcher.dispatch(b"x")
        assert pickle.loads(pickle.dumps(lost.value)).failures == lost.value.failures
    with pytest.raises(headrace.ConfigError) as refused:
        Endpoint(host="h", stream_key="s", port=0)
    assert pickle.loads(pickle.dumps(refused.value)).option == "port"
