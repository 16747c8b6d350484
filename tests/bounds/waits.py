"""The duration of calls in states that only a deadline or Ctrl-C ends."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Literal

from headrace import DeliveryReport, Dispatcher, Endpoint
from support.fake_server import FakeServer, Peer, entry_id
from support.interrupts import interrupted
from support.pipelines import KEY
from support.stalls import STALLS, Stall, Surroundings

Progress = Literal["5 replies", "none, but a byte now and then"]


def named(ended_by: str) -> list[str]:
    """The states that this timeout of an endpoint ends."""
    return [name for name, stall in STALLS.items() if stall.ended_by == ended_by]


def flush(around: Surroundings, stall: Stall, timeout: float | None = None) -> tuple[float, DeliveryReport]:
    """The seconds of a flush in this state, and its report."""
    with stall.enter(around) as dispatcher:
        started = time.monotonic()
        report = dispatcher.flush(timeout)
        seconds = time.monotonic() - started
        _ = report.ok  # marks the failures as seen
        return seconds, report


def connect(around: Surroundings, name: str, seconds: float) -> tuple[float, DeliveryReport]:
    """The same with a connect_timeout of this many seconds, which ends the state."""
    return flush(replace(around, connect_timeout=seconds), STALLS[name])


def silence(around: Surroundings, name: str, seconds: float) -> tuple[float, DeliveryReport]:
    """The seconds of a flush from the last byte sent until command_timeout ends it."""
    with STALLS[name].enter(replace(around, command_timeout=seconds)) as dispatcher:
        last, sent = time.monotonic(), dispatcher.stats().bytes_sent

        def watch() -> None:
            nonlocal last, sent
            while not over.wait(0.002):
                if (now := dispatcher.stats().bytes_sent) != sent:
                    last, sent = time.monotonic(), now

        over = threading.Event()
        thread = threading.Thread(target=watch)
        thread.start()
        report = dispatcher.flush()
        ended = time.monotonic()
        over.set()
        thread.join()
        _ = report.ok  # marks the failures as seen
        return ended - last, report


def ctrl_c(around: Surroundings, stall: Stall) -> float:
    """Seconds from a SIGINT to the KeyboardInterrupt."""
    with stall.enter(around) as dispatcher:
        with interrupted() as interrupt:
            dispatcher.flush()
        return interrupt.seconds


def after_progress(progress: Progress, command_timeout: float) -> tuple[float, DeliveryReport]:
    """The seconds of a flush after the last progress, which comes long after its start."""
    last = 0.0

    def script(peer: Peer) -> None:
        nonlocal last
        peer.commands(10)
        last = time.monotonic()
        pause = 0.4 * command_timeout
        if progress == "none, but a byte now and then":
            peer.send(b"$1000\r\n")
            peer.trickle(pause)
        for number in range(1, 6):
            time.sleep(pause)
            peer.send(entry_id(number))
            last = time.monotonic()
        peer.wait_for_end()

    with FakeServer(script) as fake:
        endpoint = Endpoint(host="127.0.0.1", port=fake.port, stream_key=KEY, command_timeout=command_timeout)
        with Dispatcher(endpoint) as dispatcher:
            for _ in range(10):
                dispatcher.produce(b"x")
            report = dispatcher.flush()
            ended = time.monotonic()
            _ = report.ok  # marks the failures as seen
    return ended - last, report
