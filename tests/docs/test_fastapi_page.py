"""The program of docs/fastapi.md, with as much of FastAPI as it uses. The laboratory `recipes` runs it with FastAPI."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import redis

from headrace.testing import LocalServer
from support.groups import pending_of
from support.pages import DOCS, blocks_of


class App:
    """An application with a lifespan."""

    def __init__(self, lifespan: Callable[[App], Any]) -> None:
        self.state = SimpleNamespace()
        self.lifespan = lifespan
        self.routes: dict[str, Callable[..., Any]] = {}

    def route(self, path: str, **_: Any) -> Callable[[Any], Any]:
        def add(function: Any) -> Any:
            self.routes[path.partition("{")[0]] = function
            return function

        return add

    get = post = route


class Client:
    """Calls an application on an event loop in a thread, within its lifespan, as Starlette's test client does."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def __enter__(self) -> Client:
        self._thread.start()
        self._lifespan = self._app.lifespan(self._app)
        self._run(self._lifespan.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._lifespan.__aexit__(None, None, None))
        assert self._run(_tasks()) == 1
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def get(self, path: str, status: int = 200) -> Any:
        prefix, _, last = path.rpartition("/")
        response = SimpleNamespace(status_code=status)
        route = self._app.routes.get(f"{prefix}/") or self._app.routes[path]
        value = self._run(route(response) if prefix == "" else route(last))
        return SimpleNamespace(status_code=response.status_code, json=lambda: value)

    def post(self, path: str) -> Any:
        return self.get(path, 201)


async def _tasks() -> int:
    return len(asyncio.all_tasks())


def test_the_consumer_runs_for_as_long_as_the_application(
    any_server: LocalServer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fastapi: Any = ModuleType("fastapi")
    fastapi.FastAPI, fastapi.Response = App, SimpleNamespace
    testclient: Any = ModuleType("fastapi.testclient")
    testclient.TestClient = Client
    monkeypatch.setitem(sys.modules, "fastapi", fastapi)
    monkeypatch.setitem(sys.modules, "fastapi.testclient", testclient)
    monkeypatch.setenv("REDIS_URL", any_server.url)
    (block,) = blocks_of((DOCS / "fastapi.md").read_text())
    exec(compile(block.text, "fastapi.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == block.prints
    assert client.xlen("order-events") == 1
    assert pending_of(client, "order-events", "shop") == {}
